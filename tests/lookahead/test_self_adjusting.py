"""The threshold follows what the target accepted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from biglittle import PolicyError, Round
from biglittle.lookahead import Decision, DraftStep, SelfAdjusting
from biglittle.lookahead.self_adjusting import best_threshold


def seen(confidence: list[float], accepted: int) -> Round:
    return Round(len(confidence), accepted, tuple(confidence), fallback=False)


def step(*confidence: float) -> DraftStep:
    sure = torch.tensor(confidence)
    return DraftStep(0, torch.ones(len(confidence)).long(), sure, sure, None)


def test_starts_as_given() -> None:
    rule = SelfAdjusting(threshold=0.5)
    decisions = rule.decide(step(0.49, 0.5, 0.9), [rule.initial()] * 3)
    assert decisions.tolist() == [Decision.KEEP, Decision.CONTINUE, Decision.CONTINUE]


def test_rows_have_thresholds_of_their_own() -> None:
    rule = SelfAdjusting()
    history = [seen([0.95, 0.9, 0.9, 0.6], 3), seen([0.95, 0.6], 1)]
    state = rule.initial()
    for each in history:
        state = rule.observe(state, each)
    assert state.threshold == pytest.approx(0.9)
    decisions = rule.decide(step(0.7, 0.7), [state, rule.initial()])
    assert decisions.tolist() == [Decision.KEEP, Decision.CONTINUE]


def test_needs_more_than_five_tokens_of_both_kinds() -> None:
    rule = SelfAdjusting()
    five = rule.observe(rule.initial(), seen([0.9, 0.8, 0.8, 0.7, 0.2], 4))
    assert five.threshold == 0.4
    assert rule.observe(five, seen([0.9], 1)).threshold == pytest.approx(0.7)
    good = rule.observe(rule.initial(), seen([0.9] * 9, 9))
    assert good.threshold == 0.4


def test_tokens_after_the_first_rejected_one_teach_nothing() -> None:
    rule = SelfAdjusting()
    state = rule.observe(rule.initial(), seen([0.9, 0.2, 0.99, 0.99], 1))
    assert state.confidence == (0.9, 0.2)
    assert state.accepted == (True, False)


def brute(confidence: list[float], accepted: list[bool]) -> float:
    """The least FPR + 3·FNR over all thresholds."""
    costs = []
    for threshold in {*confidence, 2.0}:
        bad = [c >= threshold for c, a in zip(confidence, accepted, strict=True) if not a]
        good = [c < threshold for c, a in zip(confidence, accepted, strict=True) if a]
        costs.append(sum(bad) / len(bad) + 3 * sum(good) / len(good))
    return min(costs)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]), st.booleans())))
def test_is_the_best_point_of_the_curve(history: list[tuple[float, bool]]) -> None:
    confidence, accepted = [c for c, _ in history], [a for _, a in history]
    found = best_threshold(confidence, accepted)
    if len(set(accepted)) < 2:
        assert found is None
        return
    assert found in confidence
    bad = [c >= found for c, a in history if not a]
    good = [c < found for c, a in history if a]
    assert sum(bad) / len(bad) + 3 * sum(good) / len(good) == pytest.approx(
        brute(confidence, accepted)
    )


@pytest.mark.parametrize("options", [{"threshold": 1.5}, {"threshold": -0.1}, {"tokens": 0}])
def test_bad_options(options: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match="self_adjusting"):
        SelfAdjusting(**options)  # type: ignore[arg-type]
