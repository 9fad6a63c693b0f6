import math

import pytest
import torch

from biglittle import PolicyError
from biglittle.lookahead import Confidence, Decision, DraftStep


def test_keeps_the_unsure_token_and_stops() -> None:
    confidence = torch.tensor([0.0, 0.39, 0.4, 0.41, 1.0])
    top = torch.ones(5)  # what counts is the token that was drafted, not the best one
    step = DraftStep(0, torch.arange(5), confidence, top, None)
    keep, go_on = Decision.KEEP, Decision.CONTINUE
    assert Confidence(0.4).decide(step, [None] * 5).tolist() == [keep, keep, go_on, go_on, go_on]


def test_a_threshold_of_zero_never_stops() -> None:
    step = DraftStep(0, torch.tensor([1]), torch.zeros(1), torch.zeros(1), None)
    assert Confidence(0.0).decide(step, [None]).tolist() == [Decision.CONTINUE]


def test_a_threshold_of_one_stops_at_all_but_certainty() -> None:
    confidence = torch.tensor([0.999, 1.0])
    step = DraftStep(0, torch.tensor([1, 2]), confidence, confidence, None)
    assert Confidence(1.0).decide(step, [None] * 2).tolist() == [Decision.KEEP, Decision.CONTINUE]


def test_the_defaults_are_those_of_transformers() -> None:
    assert (Confidence().threshold, Confidence().tokens) == (0.4, 20)
    assert Confidence(tokens=3).budget(None) == 3


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan, "0.4", None, True])
def test_bad_thresholds(threshold: object) -> None:
    with pytest.raises(PolicyError, match="confidence: threshold=.* must be a number"):
        Confidence(threshold)  # type: ignore[arg-type]
