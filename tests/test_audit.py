"""An audit tells a near-tie from a bug."""

from __future__ import annotations

import pytest
import torch
from tests.models import build

from biglittle import Pair, ParameterError, PolicyError
from biglittle.audit import Difference, audit


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
