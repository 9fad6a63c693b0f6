"""Real GGUF files: greedy output of every lossless policy is llama.cpp's own, or a near-tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.engines.llama_greedy import own_greedy

from biglittle import LlamaModel, Pair, catalogue
from biglittle.audit import compare

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.slow

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a little model that",
]
DRAFTS = ("itself", "prompt-lookup")
POLICIES = ("none", "dynamic", "static:tokens=5", "heuristic")
NEW = 32


@pytest.fixture(scope="module")
def smollm2() -> LlamaModel:
    entry = catalogue.find("smollm2-135m-instruct")
    assert entry is not None
    return LlamaModel(catalogue.fetch_gguf(entry), {"n_threads": 2})


@pytest.fixture(scope="module")
def wanted(smollm2: LlamaModel) -> list[list[int]]:
    return [own_greedy(smollm2, smollm2.tokenizer(text).input_ids, NEW) for text in TEXTS]


def check(pair: Pair, results: Sequence[Any], wanted: Sequence[list[int]]) -> None:
    """Assert that every result is what is wanted, but for near-ties."""
    requests = pair.requests(TEXTS)
    for request, result, tokens in zip(requests, results, wanted, strict=True):
        found = compare(pair, request.prompt, tokens, result.token_ids)
        assert found.difference is None or found.difference.near_tie, found


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_smollm2_as_it_is_shipped(
    smollm2: LlamaModel, wanted: list[list[int]], draft: str, policy: str
) -> None:
    pair = Pair(smollm2, smollm2 if draft == "itself" else draft, smollm2.tokenizer)
    options: dict[str, Any] = {"policy": policy, "temperature": 0, "max_new_tokens": NEW}
    options["ignore_eos"] = True
    alone = [pair.generate(text, **options) for text in TEXTS]
    check(pair, alone, wanted)
    check(pair, pair.generate(TEXTS, **options), wanted)
    if draft == "itself" and policy != "none":
        assert all(result.stats.acceptance_rate > 0.8 for result in alone)


def test_text_streams_in_whole_characters(smollm2: LlamaModel) -> None:
    pair = Pair(smollm2, "prompt-lookup", smollm2.tokenizer)
    prompt = "Emoji: 🙂 🙃 🙂 🙃 🙂 🙃 🙂"
    pieces = [chunk.text for chunk in pair.stream(prompt, temperature=0, max_new_tokens=24)]
    whole = pair.generate(prompt, temperature=0, max_new_tokens=24)
    assert "".join(pieces) == whole.text
    assert not any("\ufffd" in piece for piece in pieces[:-1])
