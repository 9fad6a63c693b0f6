"""Further architectures: exact, or run one row at a time, or refused when the pair is built."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from tests import models
from tests.identity.more_models import (
    CAUSAL,
    ENCODER_DECODER,
    LONE_ROWS,
    REFUSED,
    build,
)
from tests.models import VOCAB
from transformers import GenerationMixin

from biglittle import Pair, UnsupportedModelError
from biglittle.engines import Prompt
from biglittle.engines.transformers import make_runner, probe

NEW_TOKENS = 12
POPULAR = {  # the rest is slow: together they take half a minute
    "CohereForCausalLM",
    "DeepseekV3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "GptOssForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "Llama4ForCausalLM",
    "M2M100ForConditionalGeneration",
    "MixtralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "UMT5ForConditionalGeneration",
}

LENGTHS = (4, 13, 7)


@cache
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 90, (n,), generator=generator).tolist() for n in LENGTHS]


def plain(model: Any) -> list[list[int]]:
    """What transformers writes after each prompt."""
    written = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        out = GenerationMixin.generate(
            model,
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
        )
        start = 1 if model.config.is_encoder_decoder else len(prompt)
        written.append(out[0, start:].tolist())
    return written


def scored(model: Any, prompt: list[int], written: list[int]) -> list[float]:
    """Log-probabilities of what was written, from one forward without a cache."""
    if model.config.is_encoder_decoder:
        ids = torch.tensor([[1, *written]])
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": ids}
    else:
        inputs = {"input_ids": torch.tensor([prompt + written])}
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0, -len(written) - 1 : -1]
    chosen = torch.tensor(written)[:, None]
    found: list[float] = logits.log_softmax(-1).gather(-1, chosen).squeeze(-1).tolist()
    return found


def check(model: Any, draft: Any) -> None:
    """Tokens as transformers writes them, singly and together, with the right log-probabilities:
    small random models repeat themselves, so tokens alone would not show every fault."""
    pair = Pair(model, draft, policy="static:tokens=4")
    options: dict[str, Any] = {
        "policy": "static:tokens=4",
        "max_new_tokens": NEW_TOKENS,
        "logprobs": 0,
    }
    wanted = plain(model)
    for results in (
        [pair.generate(prompt, **options) for prompt in prompts()],
        pair.generate(prompts(), **options),
    ):
        assert [list(result.token_ids) for result in results] == wanted
        for prompt, written, result in zip(prompts(), wanted, results, strict=True):
            logprobs = [entry.logprob for entry in result.logprobs]
            assert logprobs == pytest.approx(scored(model, prompt, written), abs=2e-3)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in POPULAR else pytest.mark.slow)
        for name in (*CAUSAL, *ENCODER_DECODER)
    ],
)
def test_exact(name: str) -> None:
    model = build(name)
    check(model, "prompt-lookup:ngram=1")


@pytest.mark.parametrize("name", LONE_ROWS)
def test_rows_one_after_another(name: str) -> None:
    """A length that all rows are taken to share: rows do not run together, and come out right."""
    model = build(name)
    assert make_runner(model).limits.rows == 1
    check(model, "prompt-lookup:ngram=1")
    check(model, model)


def test_a_draft_that_needs_lone_rows_keeps_the_target_to_one() -> None:
    target, draft = models.build("llama"), build("BloomForCausalLM")
    check(target, draft)
    engine = Pair(target, draft).engine()
    for request in Pair(target, draft).requests(prompts(), max_new_tokens=4):
        engine.admit(request)
    while engine.busy:
        engine.step()
        assert len(engine.rows) <= 1


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_positions_scaled_by_the_longest_row(rope: str) -> None:
    """Such rows would change each other's positions."""
    scales = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 2.0}
    settings = {"rope_type": rope, "rope_theta": 1e4, **scales}
    if rope == "longrope":
        settings["original_max_position_embeddings"] = 64
    model = build("LlamaForCausalLM", rope_parameters=settings)
    assert make_runner(model).limits.rows == 1
    check(model, model)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_when_the_pair_is_built(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name) as caught:
        Pair(build(name), "prompt-lookup")
    assert "\n" not in str(caught.value)


def test_bert_as_a_decoder() -> None:
    """The way out that its refusal names."""
    with pytest.raises(UnsupportedModelError, match="is_decoder=True"):
        Pair(build("BertLMHeadModel"))
    check(build("BertLMHeadModel", is_decoder=True), "prompt-lookup:ngram=1")


def test_tested_means_tested() -> None:
    """Architectures that are not tried out are those that these tests cover."""
    causal = [models.CAUSAL[name]() for name in models.CAUSAL] + [build(name) for name in CAUSAL]
    others = [models.ENCODER_DECODER[name]() for name in models.ENCODER_DECODER]
    others += [build(name) for name in ENCODER_DECODER]
    assert {model.config.model_type for model in causal} == probe.TESTED[False]
    assert {model.config.model_type for model in others} == probe.TESTED[True]


def test_tested_architectures_are_not_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build("llama")
    monkeypatch.setattr(model, "forward", lambda **inputs: pytest.fail("a forward"))
    assert make_runner(model).limits.rows is None


def test_the_trial_runs_once_a_model() -> None:
    model = build("PersimmonForCausalLM")
    assert make_runner(model).limits.rows is None
    forwards = 0

    def count(*args: Any) -> None:
        nonlocal forwards
        forwards += 1

    model.register_forward_pre_hook(count)
    make_runner(model)
    assert forwards == 0


def test_the_trial_leaves_out_of_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("PersimmonForCausalLM")

    def exhaust(**inputs: Any) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(model, "forward", exhaust)
    with pytest.raises(torch.OutOfMemoryError):
        make_runner(model)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel"])
def test_past_a_chunk_and_a_block(name: str) -> None:
    """A prompt that is read in two forwards, beside a short one, and storage that grows."""
    model = build(name, max_position_embeddings=1400)
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in (1100, 250)]
    wanted = []
    for text in texts:
        ids = torch.tensor([text])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
        wanted.append(out[0, len(text) :].tolist())
    pair = Pair(model, "early-exit:layers=1")
    results = pair.generate(texts, policy="static:tokens=3", max_new_tokens=12)
    assert [list(result.token_ids) for result in results] == wanted


@pytest.mark.parametrize("name", ["bart", "marian", "whisper"])  # T5's positions have no end
def test_rows_near_the_end_of_the_context(name: str) -> None:
    """A long row beside a short one that drafts past where the long one may go."""
    sizes = {"max_position_embeddings": 32, "max_target_positions": 32, "num_mel_bins": 8}
    kinds = {"bart": "Bart", "marian": "Marian", "whisper": "Whisper"}
    suffix = "MTModel" if name == "marian" else "ForConditionalGeneration"
    model = build(kinds[name] + suffix, **{"max_source_positions": 16, **sizes})
    starts: list[Any] = [models.encoder_inputs(name, 5, 1), models.encoder_inputs(name, 7, 2)]
    starts[0] = {**starts[0], "decoder_input_ids": torch.arange(3, 28)[None]}
    alone = [Pair(model).generate(start) for start in starts]
    assert [len(result.token_ids) for result in alone] == [32 - 25, 32 - 1]
    together = Pair(model, model).generate(starts, policy="static:tokens=12")
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]


def test_a_copy_of_a_model_in_use_stands_alone() -> None:
    """What helps ragged rows along is copied with the module."""
    model = models.build("t5")
    make_runner(model)  # helps the model's modules along
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    prompt = Prompt((0,), models.encoder_inputs("t5", 5))
    assert make_runner(twin).admit(prompt).abs().max() > 0
    assert make_runner(twin).admit(prompt).equal(make_runner(models.build("t5")).admit(prompt))
