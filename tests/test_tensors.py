"""`argmax` is `torch.argmax`, ties and odd sizes included; `probability` is softmax's entry."""

from __future__ import annotations

import pytest
import torch

from biglittle.tensors import BLOCK, argmax, probability

SIZES = [5, BLOCK - 1, BLOCK, BLOCK + 1, 151_665]


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_the_first_largest(vocab: int, dtype: torch.dtype) -> None:
    scores = torch.randn(3, 2, vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    expected = [(row == row.max()).nonzero()[0].item() for row in scores.flatten(0, 1)]
    assert argmax(scores).flatten().tolist() == expected
    assert argmax(scores[..., : vocab - 2]).shape == (3, 2)


@pytest.mark.parametrize("place", [0, 1, BLOCK - 1, BLOCK, BLOCK + 2])
def test_of_equal_scores_takes_the_first(place: int) -> None:
    scores = torch.zeros(BLOCK + 3)
    assert argmax(scores).item() == 0
    scores[place:] = 1.0
    assert argmax(scores).item() == place


def test_sees_through_minus_infinity() -> None:
    scores = torch.full((BLOCK + 3,), float("-inf"))
    scores[BLOCK + 1] = -1e30
    assert argmax(scores).item() == BLOCK + 1


def test_of_no_rows_is_nothing() -> None:
    assert argmax(torch.zeros(2, 0, 7)).shape == (2, 0)
    assert probability(torch.zeros(0, 7), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probability_is_the_softmax(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    scores = (8 * torch.randn(4, vocab + 3, generator=generator)).to(dtype)[:, :vocab]
    tokens = torch.tensor([0, vocab - 1, int(scores[2].argmax()), 3])
    expected = scores.double().softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)
    assert torch.allclose(probability(scores, tokens).double(), expected, rtol=1e-4)


def test_probability_with_entries_ruled_out() -> None:
    scores = torch.tensor(
        [[float("-inf"), 1.0, 1.0], [float("-inf")] * 3, [float("nan"), 0.0, 0.0]]
    )
    found = probability(scores, torch.tensor([1, 0, 1]))
    assert found[0] == 0.5
    assert found[1].isnan()
    assert found[2].isnan()
