"""Whether an architecture that the tests do not cover does what a runner needs: tried out.

A configuration does not tell everything. A model may look ahead, keep a cache of its own or take
one token at a time, so that its state does not roll back; or it may build masks and positions from
a length that all rows are taken to share, so that rows of different lengths come out wrong. A few
tokens show it: after a rollback the logits must be those of a plain forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoEModelOutput

from ...errors import UnsupportedModelError
from ..base import Prompt
from .capability import decoder_config, is_seq2seq, parameters_of
from .runner import TransformersRunner

__all__ = ["TESTED", "rows_limit"]

_CAUSAL = """
    codegen cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 exaone4 falcon gemma gemma2 gemma3
    gemma3_text gemma3n_text gemma4_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neox gpt_oss gptj
    granite granitemoe granitemoehybrid helium hunyuan_v1_dense llama llama4_text minicpm3 ministral
    mistral mixtral nemotron olmo olmo2 olmo3 olmoe opt phi phi3 phimoe qwen2 qwen2_moe qwen3
    qwen3_moe seed_oss smollm3 stablelm starcoder2 xglm
"""
_ENCODER_DECODER = """
    bart blenderbot longt5 m2m_100 marian mbart mt5 nllb-moe pegasus plbart switch_transformers t5
    umt5 whisper
"""
TESTED = {False: frozenset(_CAUSAL.split()), True: frozenset(_ENCODER_DECODER.split())}
"""Model types whose rows, ragged ones included, the tests hold to transformers' own output; by
whether the model has an encoder."""

LONE = frozenset({"gpt_neo"})
"""Model types that measure a window from the longest row, too wide for a trial to reach it."""

SHARED_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary embeddings that are scaled by the longest row."""

_found: WeakKeyDictionary[PreTrainedModel, int | None] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Trial:
    """One row: its prompt, then tokens that are rolled back, then tokens that stay."""

    prompt: int
    wrong: int
    right: int

    def tokens(self, vocab: int) -> list[int]:
        """Prompt and right tokens; from the middle of the vocabulary, away from special ids."""
        return [(vocab // 2 + 3 * i) % vocab for i in range(self.prompt + self.right)]


SINGLE = (Trial(4, 2, 3),)
RAGGED = (Trial(4, 1, 3), Trial(2, 3, 1), Trial(3, 2, 2))


def rows_limit(runner: TransformersRunner) -> int | None:
    """Rows that can run together: None is any number, 1 is one after another.

    Architectures that are not `TESTED` are tried out, once a model object.

    Raises:
        UnsupportedModelError: Not even a single row rolls back.
    """
    model = runner.model
    if _needs_lone_rows(model):
        return 1
    if _is_tested(model):
        return None
    if model not in _found:
        agrees, cause = _try(runner, SINGLE)
        if not agrees:
            raise UnsupportedModelError(_refusal(runner)) from cause
        _found[model] = None if _try(runner, RAGGED)[0] else 1
    return _found[model]


def _is_tested(model: PreTrainedModel) -> bool:
    own = type(model).__module__.startswith("transformers.models.")
    alibi = getattr(model.config, "alibi", False)  # Falcon's other positions
    return own and model.config.model_type in TESTED[is_seq2seq(model)] and not alibi


def _needs_lone_rows(model: PreTrainedModel) -> bool:
    rope = getattr(decoder_config(model), "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    shared = any(part.get("rope_type") in SHARED_ROPE for part in parts)
    return shared or model.config.model_type in LONE


def _refusal(runner: TransformersRunner) -> str:
    config = runner.model.config
    looks_ahead = getattr(config, "is_decoder", True) is False and not is_seq2seq(runner.model)
    remedy = "load it with is_decoder=True, or " if looks_ahead else ""
    return (
        f"{runner.name} ({config.model_type}) cannot append several tokens and take them back; "
        f"{remedy}use another architecture or plain transformers"
    )


def _try(runner: TransformersRunner, trials: Sequence[Trial]) -> tuple[bool, Exception | None]:
    """Whether rows come out right, or what went wrong."""
    try:
        return _agrees(runner, trials), None
    except torch.OutOfMemoryError:
        raise
    except Exception as cause:  # a model's forward may raise anything
        return False, cause


@torch.inference_mode()
def _agrees(runner: TransformersRunner, trials: Sequence[Trial]) -> bool:
    """Whether rows in the cache, after a rollback, have the logits of a plain forward."""
    rows = type(runner)(runner.model)
    texts = [trial.tokens(rows.vocab) for trial in trials]
    states = [_encoder_states(rows.model, 3 + i) for i in range(len(trials))]
    for trial, text, state in zip(trials, texts, states, strict=True):
        encoder = None if state is None else {"encoder_outputs": state}
        rows.admit(Prompt(tuple(text[: trial.prompt]), encoder))
    _append(rows, [list(reversed(text))[: t.wrong] for t, text in zip(trials, texts, strict=True)])
    rows.truncate([trial.prompt for trial in trials])
    logits = _append(rows, [text[t.prompt :] for t, text in zip(trials, texts, strict=True)])
    return all(
        _near(logits[i, : trial.right], _plain(rows.model, text, state)[-trial.right :])
        for i, (trial, text, state) in enumerate(zip(trials, texts, states, strict=True))
    )


def _append(rows: TransformersRunner, parts: list[list[int]]) -> Tensor:
    width = max(map(len, parts))
    tokens = torch.tensor([part + [0] * (width - len(part)) for part in parts], device=rows.device)
    return rows.forward(tokens, [len(part) for part in parts])


def _encoder_states(model: PreTrainedModel, span: int) -> Tensor | None:
    """What an encoder might have said, [1, span, size]; None without one."""
    if not is_seq2seq(model):
        return None
    size = decoder_config(model).hidden_size
    values = torch.arange(span * size, device=model.device, dtype=torch.float32).sin()
    return values.view(1, span, size).to(model.dtype)


def _plain(model: PreTrainedModel, tokens: list[int], states: Tensor | None) -> Tensor:
    """Logits [tokens, vocab] without a cache, called as transformers' generation does."""
    ids = torch.tensor([tokens], device=model.device)
    if states is None:
        inputs: dict[str, Any] = {"input_ids": ids}
        if "position_ids" in parameters_of(model.forward):
            inputs["position_ids"] = torch.arange(len(tokens), device=model.device)[None]
    else:
        encoded = MoEModelOutput(last_hidden_state=states)
        inputs = {"encoder_outputs": encoded, "decoder_input_ids": ids}
    logits: Tensor = model(**inputs, use_cache=False).logits[0]
    return logits


def _near(ours: Tensor, theirs: Tensor) -> bool:
    """Whether logits [tokens, vocab] agree but for rounding.

    The middle token counts: where experts are chosen, rounding may choose another for one token.
    """
    centred = theirs.float() - theirs.float().mean(-1, keepdim=True)
    apart = (ours.float() - theirs.float()).norm(dim=-1) / centred.norm(dim=-1)
    exact = theirs.dtype in (torch.float32, torch.float64)
    return bool(apart.median() < (0.005 if exact else 0.05))
