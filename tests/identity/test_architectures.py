"""Lossless decoding writes, token by token, what transformers' own greedy decoding writes.

In fp32 on a CPU, on tiny random models of real architectures: one prompt at a time and as a ragged
batch, with every drafter and every policy that leaves the target's greedy output as it is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.models import ALL, CAUSAL, T5, VOCAB, build, encoder_inputs
from transformers import GenerationMixin, T5Config, T5ForConditionalGeneration

from biglittle import Pair, Result

NEW_TOKENS = 20

POLICIES = [
    "dynamic",
    "static:tokens=5",
    "heuristic",
    "dynamic:threshold=0",
    "fallback:threshold=0.3",
    # BiLD's limits: the target writes every token; and every drafted token is rolled back.
    "bild:fallback=2,rollback=3",
    "bild:fallback=0,rollback=-1,shortcut=off",
]
DRAFTS = ["unrelated", "itself", "prompt-lookup:ngram=2", "early-exit:layers=2"]
GRID = [
    (name, draft, POLICIES[(i + shift) % len(POLICIES)], shift)
    for shift in range(len(POLICIES))
    for i, (name, draft) in enumerate((name, draft) for name in ALL for draft in DRAFTS)
]
"""Every architecture with every draft, under another policy with every shift."""


@cache
def model(name: str, seed: int = 0, attention: str = "sdpa") -> Any:
    return build(name, seed, attention)


@cache
def prompts(name: str) -> tuple[Any, ...]:
    """Three of different lengths."""
    if name not in CAUSAL:
        return tuple(encoder_inputs(name, length, i) for i, length in enumerate((4, 9, 6)))
    generator = torch.Generator().manual_seed(1)
    return tuple(
        torch.randint(3, VOCAB, (length,), generator=generator).tolist() for length in (4, 13, 1)
    )


@cache
def plain(name: str, attention: str = "sdpa") -> list[list[int]]:
    """What transformers writes after each."""
    big = model(name, attention=attention)
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    written = []
    for prompt in prompts(name):
        if name in CAUSAL:
            ids = torch.tensor([prompt])
            out = big.generate(ids, attention_mask=torch.ones_like(ids), **options)
            written.append(out[0, len(prompt) :].tolist())
        else:  # the mixin's: Whisper's own is another algorithm, around this one
            out = GenerationMixin.generate(big, **prompt, **options)
            written.append(out[0, 1:].tolist())
    return written


def pair(name: str, draft: str, attention: str = "sdpa") -> Pair:
    drafts = {
        "unrelated": lambda: model(name, 1, attention),
        "itself": lambda: model(name, 0, attention),
    }
    return Pair(model(name, 0, attention), drafts.get(draft, lambda: draft)())


def tokens(results: list[Result]) -> list[list[int]]:
    return [list(result.token_ids) for result in results]


@pytest.mark.parametrize(
    ("name", "draft", "policy"), [(*case, policy) for *case, policy, shift in GRID if shift == 0]
)
def test_singly_and_in_a_ragged_batch(name: str, draft: str, policy: str) -> None:
    both = pair(name, draft)
    options: dict[str, Any] = {"policy": policy, "max_new_tokens": NEW_TOKENS}
    assert tokens([both.generate(prompt, **options) for prompt in prompts(name)]) == plain(name)
    assert tokens(both.generate(list(prompts(name)), **options)) == plain(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "draft", "policy"), [(*case, policy) for *case, policy, shift in GRID if shift > 0]
)
def test_in_a_ragged_batch(name: str, draft: str, policy: str) -> None:
    results = pair(name, draft).generate(
        list(prompts(name)), policy=policy, max_new_tokens=NEW_TOKENS
    )
    assert tokens(results) == plain(name)


@pytest.mark.parametrize("draft", ["unrelated", "early-exit:layers=2"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral", "falcon", "t5", "bart", "whisper"])
def test_with_eager_attention(name: str, draft: str) -> None:
    both = pair(name, draft, "eager")
    options: dict[str, Any] = {"policy": "static:tokens=4", "max_new_tokens": NEW_TOKENS}
    wanted = plain(name, "eager")
    assert tokens(both.generate(list(prompts(name)), **options)) == wanted
    assert tokens([both.generate(prompts(name)[1], **options)]) == wanted[1:2]


@pytest.mark.parametrize("name", list(ALL))
def test_itself_as_draft_is_always_right(name: str) -> None:
    """A draft that is the target never errs: what it drafts comes out of the same cache."""
    result = pair(name, "itself").generate(
        prompts(name)[1], policy="static:tokens=5", max_new_tokens=NEW_TOKENS
    )
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.drafted >= NEW_TOKENS * 5 // 6 - 1


@pytest.mark.parametrize("name", list(ALL))
def test_plain_decoding(name: str) -> None:
    results = Pair(model(name)).generate(list(prompts(name)), max_new_tokens=NEW_TOKENS)
    assert tokens(results) == plain(name)
    assert all(result.stats.drafted == 0 for result in results)


@pytest.mark.parametrize("layers", [(2, 4), (4, 2)], ids=str)
@pytest.mark.parametrize("draft", [None, "early-exit:layers=1"])
def test_a_decoder_that_is_not_as_deep_as_its_encoder(
    draft: str | None, layers: tuple[int, int]
) -> None:
    """Against plain forwards: transformers' own cache has the encoder's number of layers."""
    torch.manual_seed(0)
    shape = {"num_layers": layers[0], "num_decoder_layers": layers[1]}
    big: Any = T5ForConditionalGeneration(T5Config(**{**T5, **shape})).eval()
    with torch.no_grad():
        for weight in big.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3)
    big.generation_config.eos_token_id = None
    wanted = []
    for prompt in prompts("t5"):
        ids = torch.tensor([[0]])
        for _ in range(NEW_TOKENS):
            with torch.inference_mode():
                logits = big(**prompt, decoder_input_ids=ids, use_cache=False).logits
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
        wanted.append(ids[0, 1:].tolist())
    policy = "none" if draft is None else "static:tokens=4"
    results = Pair(big, draft).generate(
        list(prompts("t5")), policy=policy, max_new_tokens=NEW_TOKENS
    )
    assert tokens(results) == wanted
