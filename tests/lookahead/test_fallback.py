import math

import pytest
import torch

from biglittle import PolicyError
from biglittle.lookahead import Decision, DraftStep, Fallback


def decide(threshold: float, *top: float) -> list[int]:
    best = torch.tensor(top)
    step = DraftStep(0, torch.ones(len(top)).long(), torch.zeros(len(top)), best, None)
    decisions: list[int] = Fallback(threshold).decide(step, [None] * len(top)).tolist()
    return decisions


def test_drops_the_unsure_token_and_stops() -> None:
    """The comparison is strict, and it is with the largest probability, not the token's own."""
    drop, go_on = Decision.DROP, Decision.CONTINUE
    assert decide(0.5, 0.0, 0.49, 0.5, 0.51, 1.0) == [drop, drop, go_on, go_on, go_on]


def test_zero_never_falls_back() -> None:
    assert decide(0.0, 0.0, 1e-30, 1.0) == [Decision.CONTINUE] * 3


def test_above_one_always_does() -> None:
    assert decide(1.01, 0.0, 0.5, 1.0) == [Decision.DROP] * 3


def test_the_window_is_capped() -> None:
    assert Fallback().budget(None) == 10  # as in the authors' code
    assert Fallback(tokens=3).budget(None) == 3


@pytest.mark.parametrize("threshold", [True, math.nan, "0.6", None])
def test_bad_thresholds(threshold: object) -> None:
    with pytest.raises(PolicyError, match="fallback: threshold=.* must be a number"):
        Fallback(threshold)  # type: ignore[arg-type]


@pytest.mark.parametrize("threshold", [0.0, -1.0])
def test_thresholds_that_never_fall_back(threshold: float) -> None:
    step = DraftStep(0, torch.zeros(1).long(), torch.zeros(1), torch.zeros(1), None)
    assert Fallback(threshold).decide(step, [None]).tolist() == [Decision.CONTINUE]
