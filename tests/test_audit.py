"""An audit tells a near-tie from a bug."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.fakes import ByteTokenizer
from tests.models import build

from biglittle import Pair, ParameterError, PolicyError
from biglittle.audit import Audit, Difference, audit, compare


def test_identical_outputs() -> None:
    pair = Pair(build("llama"), build("llama", seed=1))
    found = audit(pair, [[5, 6, 7], [8, 9]], policy="static:tokens=3", max_new_tokens=12)
    assert [(a.tokens, a.difference) for a in found] == [(12, None), (12, None)]


def test_bfloat16_differs_by_near_ties_only() -> None:
    target = build("llama").to(torch.bfloat16)
    pair = Pair(target, build("llama", seed=1).to(torch.bfloat16))
    prompts = [[i, i + 1, i + 2] for i in range(5, 25)]
    for found in audit(pair, prompts, policy="static:tokens=4", max_new_tokens=24):
        assert found.difference is None or found.difference.near_tie


def test_a_clear_margin_is_no_near_tie() -> None:
    assert not Difference(0, 1, 2, (9.0, 5.0), (9.01, 5.01)).near_tie
    assert Difference(0, 1, 2, (9.0, 8.99), (8.98, 9.0)).near_tie


def test_one_that_ends_where_the_other_goes_on_is_no_near_tie() -> None:
    pair = Pair(build("llama"))
    for one, other in (([5, 6], [5]), ([5], [5, 6])):
        found = compare(pair, pair.requests([1, 2])[0], one, other)
        assert found.difference is not None
        assert not found.difference.near_tie
        assert str(found) == (
            "after 1 token: one output ends and the other goes on: no near-tie, please report it"
        )


def test_the_verdict_in_words() -> None:
    near = Difference(10, 1, 2, (9.0, 8.88), (8.95, 8.9), 2**-7, (" ", ' "'))
    assert str(Audit(10, near)) == (
        "after 10 tokens: ' ' against ' \"', 0.12 apart in logits, and rounding can move them by "
        "0.14: a near-tie"
    )
    far = Difference(0, 1, 2, (9.0, 5.0), (9.0, 5.0))
    assert str(far) == (
        "after 0 tokens: 1 against 2, 4 apart in logits, and rounding can move them by 0.07: "
        "no near-tie, please report it"
    )
    assert str(Audit(12, None)) == "12 tokens, all the same"


def test_tokens_are_told_as_text_where_there_is_a_tokenizer() -> None:
    class Tokenizer(ByteTokenizer):
        def get_vocab(self) -> dict[str, int]:
            return {chr(i): i for i in range(97)}

    tokenizer: Any = Tokenizer()
    for given, texts in ((tokenizer, ("B", "C")), (None, None)):
        pair = Pair(build("llama"), tokenizer=given)
        found = compare(pair, pair.requests([1, 2])[0], [65, 66], [65, 67])
        assert found.difference is not None
        assert found.difference.texts == texts


def test_looks_at_the_scores_that_were_chosen_by() -> None:
    """A penalty moves a token that occurred before by more than any rounding."""
    pair = Pair(build("llama"))
    request = pair.requests([1, 2, 65], repetition_penalty=2.0)[0]
    raw = compare(pair, pair.requests([1, 2, 65])[0], [65], [66]).difference
    seen = compare(pair, request, [65], [66]).difference
    assert raw is not None
    assert seen is not None
    assert seen.narrow[0] == pytest.approx(raw.narrow[0] * (0.5 if raw.narrow[0] > 0 else 2.0))
    assert seen.narrow[1] == pytest.approx(raw.narrow[1])


def test_finds_a_wrong_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: an acceptance rule that keeps everything."""
    pair = Pair(build("llama"), build("llama", seed=1))
    monkeypatch.setattr(
        "biglittle.acceptance.exact.greedy_accepts",
        lambda tokens, logits: torch.ones_like(tokens, dtype=torch.bool),
    )
    (found,) = audit(pair, [5, 6, 7], policy="static:tokens=3", max_new_tokens=12)
    assert found.difference is not None
    assert not found.difference.near_tie


def test_refuses_what_it_cannot_compare() -> None:
    pair = Pair(build("llama"), build("llama", seed=1))
    with pytest.raises(PolicyError, match="lossy"):
        audit(pair, [5, 6], policy="bild")
    with pytest.raises(ParameterError, match="greedy"):
        audit(pair, [5, 6], temperature=0.5)
