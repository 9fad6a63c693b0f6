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
    assert state.judged == ((0.2, False), (0.9, True))
    assert rule.observe(state, seen([0.5, 0.4], 2)).judged[1:3] == ((0.4, True), (0.5, True))


def loss(history: list[tuple[float, bool]], threshold: float) -> float:
    """FPR + 3·FNR."""
    bad = [sure >= threshold for sure, accepted in history if not accepted]
    good = [sure < threshold for sure, accepted in history if accepted]
    return sum(bad) / len(bad) + 3 * sum(good) / len(good)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]), st.booleans())))
def test_is_the_best_point_of_the_curve(history: list[tuple[float, bool]]) -> None:
    found = best_threshold(sorted(history))
    if len({accepted for _, accepted in history}) < 2:
        assert found is None
        return
    assert found is not None
    assert found in [sure for sure, _ in history]
    points = [sure for sure, _ in history] + [2.0]
    assert loss(history, found) == pytest.approx(min(loss(history, point) for point in points))


def test_of_several_best_points_the_largest() -> None:
    judged = [(0.3, True), (0.4, False), (0.6, True), (0.9, True)]
    assert loss(judged, 0.3) == loss(judged, 0.6) == 1.0
    assert best_threshold(judged) == 0.6


@pytest.mark.parametrize("options", [{"threshold": 1.5}, {"threshold": -0.1}, {"tokens": 0}])
def test_bad_options(options: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match="self_adjusting"):
        SelfAdjusting(**options)  # type: ignore[arg-type]
