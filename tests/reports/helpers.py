"""Models, prompts, tokenizers and plain decoding for the reports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers as tf
from tests.models import VOCAB, build
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from biglittle import Pair, Result

NEW_TOKENS = 16
LOSSLESS = ["dynamic", "static:tokens=4", "heuristic", "fallback:threshold=0.3"]
DRAFTS = ["unrelated", "itself", "prompt-lookup:ngram=2", "early-exit:layers=1"]


@cache
def model(name: str = "llama", seed: int = 0, attention: str = "sdpa") -> Any:
    return build(name, seed, attention)


def make_pair(draft: str | None, name: str = "llama", attention: str = "sdpa", **more: Any) -> Pair:
    """The target with a draft of that kind."""
    target = model(name, 0, attention)
    drafts = {"unrelated": lambda: model(name, 1, attention), "itself": lambda: target}
    return Pair(target, drafts.get(str(draft), lambda: draft)(), **more)


@cache
def prompt(length: int = 9, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


_plain: dict[Any, tuple[Any, list[int]]] = {}


def plain(big: Any, ids: Sequence[int], new: int = NEW_TOKENS, **options: Any) -> list[int]:
    """What transformers writes greedily; found once."""
    key = (id(big), tuple(ids), new, repr(options))
    if key not in _plain:
        start = torch.tensor([list(ids)])
        out = big.generate(
            start,
            attention_mask=torch.ones_like(start),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            **options,
        )
        _plain[key] = big, out[0, len(ids) :].tolist()  # the model stays, and with it its id
    return _plain[key][1]


def tokens(results: Result | Sequence[Result]) -> Any:
    if isinstance(results, Result):
        return list(results.token_ids)
    return [list(result.token_ids) for result in results]


def bytes_tokenizer(extra: Sequence[str] = (), merges: Sequence[tuple[str, str]] = ()) -> Any:
    """Byte-level BPE with a token for every byte, and these merges; 0 pads, 2 ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<pad>", "<s>", "</s>", *alphabet, *("".join(pair) for pair in merges), *extra]
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


@cache
def text_model(text: str, seed: int = 0) -> tuple[Any, Any]:
    """A model and a byte tokenizer; the model has learned `text` by heart."""
    tokenizer = bytes_tokenizer()
    ids = torch.tensor([[*tokenizer(text).input_ids, 2]])
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    learner: Any = tf.LlamaForCausalLM(config)
    optimizer = torch.optim.Adam(learner.parameters(), lr=5e-3)
    for _ in range(300):
        loss = learner(ids, labels=ids).loss
        if loss < 0.01:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return learner.eval(), tokenizer


class Recorder:
    """Widths of a model's forwards."""

    def __init__(self, watched: Any) -> None:
        self.widths: list[int] = []
        self._hook = watched.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Any, kwargs: dict[str, Tensor]) -> None:
        ids = kwargs.get("decoder_input_ids", kwargs.get("input_ids"))
        assert ids is not None
        self.widths.append(ids.shape[1])

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()
