import pytest
import torch
from tests.fakes import round_of

from biglittle import PolicyError
from biglittle.lookahead import Decision, DraftStep, Heuristic


@pytest.mark.parametrize(
    ("state", "drafted", "accepted", "after"),
    [
        (5, 5, 5, 7),  # all accepted
        (5, 3, 3, 7),  # all of a window that was cut short
        (5, 5, 4, 4),
        (5, 5, 0, 4),
        (1, 1, 0, 1),  # not below 1
        (5, 0, 0, 5),  # nothing drafted, nothing learned
        (19, 19, 19, 20),  # not above `tokens`
        (20, 20, 20, 20),
    ],
)
def test_two_more_or_one_less(state: int, drafted: int, accepted: int, after: int) -> None:
    assert Heuristic(tokens=20).observe(state, round_of(drafted, accepted)) == after


def test_a_row_starts_from_start() -> None:
    rule = Heuristic(start=4)
    assert rule.budget(rule.initial()) == 4
    assert Heuristic().initial() == 5
    assert Heuristic(start=9, tokens=6).initial() == 6


def test_a_sequence_of_rounds() -> None:
    rule = Heuristic(start=2)
    budgets, state = [], rule.initial()
    for success in (True, True, False, False, False, False, False, False, True):
        budgets.append(rule.budget(state))
        state = rule.observe(state, round_of(budgets[-1], budgets[-1] if success else 0))
    assert [*budgets, rule.budget(state)] == [2, 4, 6, 5, 4, 3, 2, 1, 1, 3]


def step(*confidence: float) -> DraftStep:
    sure = torch.tensor(confidence)
    return DraftStep(0, torch.ones(len(confidence)).long(), sure, sure, None)


def test_stops_at_unsure_tokens_only_with_a_threshold() -> None:
    assert Heuristic().decide(step(0.0, 1.0), [5, 5]).tolist() == [Decision.CONTINUE] * 2
    decisions = Heuristic(threshold=0.5).decide(step(0.49, 0.5, 0.51), [5, 5, 5])
    assert decisions.tolist() == [Decision.KEEP, Decision.CONTINUE, Decision.CONTINUE]


@pytest.mark.parametrize("options", [{"start": 0}, {"tokens": 0}, {"threshold": 1.5}])
def test_bad_options(options: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=f"{next(iter(options))}"):
        Heuristic(**options)  # type: ignore[arg-type]
