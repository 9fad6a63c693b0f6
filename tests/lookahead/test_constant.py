import pytest
import torch
from tests.fakes import round_of

from biglittle import PolicyError
from biglittle.lookahead import Constant, Decision, DraftStep


@pytest.mark.parametrize("index", [0, 4, 99])
def test_never_stops_by_itself(index: int) -> None:
    unsure = torch.tensor([0.0, 1.0])
    step = DraftStep(index, torch.tensor([1, 2]), unsure, unsure, None)
    assert Constant(5).decide(step, [None, None]).tolist() == [Decision.CONTINUE] * 2


def test_the_budget_is_the_window() -> None:
    rule = Constant(7)
    state = rule.observe(rule.initial(), round_of(7, 0))
    assert rule.budget(state) == 7
    assert Constant().tokens == 5  # γ of the papers


@pytest.mark.parametrize("tokens", [0, -1, 2.0, True, "5"])
def test_windows_are_whole_numbers_from_one_up(tokens: object) -> None:
    with pytest.raises(PolicyError, match="constant: tokens=.* must be a whole number"):
        Constant(tokens)  # type: ignore[arg-type]
