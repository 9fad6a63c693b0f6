"""`argmax` is `torch.argmax`, ties and odd sizes included."""

from __future__ import annotations

import pytest
import torch

from biglittle.tensors import BLOCK, SMALL, argmax


@pytest.mark.parametrize("vocab", [5, SMALL - 1, SMALL, SMALL + 1, SMALL + BLOCK, 151_665])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_the_first_largest(vocab: int, dtype: torch.dtype) -> None:
    scores = torch.randn(3, 2, vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    expected = [(row == row.max()).nonzero()[0].item() for row in scores.flatten(0, 1)]
    assert argmax(scores).flatten().tolist() == expected


@pytest.mark.parametrize("place", [0, 1, BLOCK - 1, BLOCK, SMALL, SMALL + 2])
def test_of_equal_scores_takes_the_first(place: int) -> None:
    scores = torch.zeros(SMALL + 3)
    assert argmax(scores).item() == 0
    scores[place:] = 1.0
    assert argmax(scores).item() == place


def test_sees_through_minus_infinity() -> None:
    scores = torch.full((SMALL + 3,), float("-inf"))
    scores[SMALL + 1] = -1e30
    assert argmax(scores).item() == SMALL + 1
