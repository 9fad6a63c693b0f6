"""Judging a block, and drawing from a distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from biglittle.acceptance import Block, Exact, judge
from biglittle.acceptance.base import sample

LARGEST = math.nextafter(1.0, 0.0)  # the largest uniform number that there is


def draw(weights: list[float], u: float) -> int:
    return int(sample(torch.tensor([weights], dtype=torch.float64), torch.tensor([u]).double()))


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 1), (0.24, 1), (0.25, 3), (0.74, 3), (0.75, 4), (LARGEST, 4)]
)
def test_sample_inverts_the_cumulative_sum(u: float, token: int) -> None:
    assert draw([0.0, 1.0, 0.0, 2.0, 1.0, 0.0], u) == token


@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-300, 1e-30, 1e-9, 0.1, 1 / 3, 1.0, 7.0]), min_size=1),
    st.one_of(st.sampled_from([0.0, 2**-53, 0.5, LARGEST]), st.floats(0, LARGEST)),
)
def test_sample_never_draws_what_has_no_weight(weights: list[float], u: float) -> None:
    if sum(weights) > 0:
        assert weights[draw(weights, u)] > 0


@pytest.mark.parametrize("weights", [[0.0, 0.0, 0.0], [0.5, math.nan, 0.5], [math.nan] * 3])
def test_sample_says_where_nothing_can_be_drawn(weights: list[float]) -> None:
    for u in (0.0, 0.4, LARGEST):
        assert draw(weights, u) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_sample_holds_over_a_large_vocabulary(dtype: torch.dtype) -> None:
    weights = torch.zeros(3, 150_000, dtype=dtype)
    weights[:, 1000:149_000] = 1e-5
    u = torch.tensor([0.0, 0.5, LARGEST], dtype=torch.float64)
    first, middle, last = sample(weights, u).tolist()
    assert (first, last) == (1000, 148_999)
    assert middle == pytest.approx(75_000, abs=2)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),  # how many of each row's tokens are right
    st.data(),
)
def test_judge_keeps_the_longest_right_prefix(right: list[int], data: st.DataObject) -> None:
    rows, width, vocab = len(right), 4, 7
    counts = [data.draw(st.integers(0, width)) for _ in range(rows)]
    logits = torch.randn(rows, width + 1, vocab, generator=torch.Generator().manual_seed(0))
    best = logits.argmax(-1)
    tokens = best[:, :width].clone()
    for row, count in enumerate(right):
        if count < width:
            tokens[row, count] = (tokens[row, count] + 1) % vocab
    block = Block(tokens, torch.tensor(counts), logits, logits, None, None)
    verdict = judge(Exact(), block)
    expected = [min(a, b) for a, b in zip(right, counts, strict=True)]
    assert verdict.accepted.tolist() == expected
    assert verdict.next_tokens.tolist() == [int(best[r, n]) for r, n in enumerate(expected)]


def test_judge_of_a_block_without_drafts_is_the_targets_own() -> None:
    logits = torch.tensor([[[0.0, 2.0, 1.0]], [[3.0, 2.0, 1.0]]])
    nothing = torch.empty(2, 0, dtype=torch.long)
    verdict = judge(Exact(), Block(nothing, torch.zeros(2).long(), logits, logits, None, None))
    assert verdict.accepted.tolist() == [0, 0]
    assert verdict.next_tokens.tolist() == [1, 0]


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_judge_ignores_what_lies_past_a_rows_count(junk: float) -> None:
    logits: Tensor = torch.tensor([[[0.0, 9.0], [9.0, 0.0], [0.0, 0.0]]]).repeat(2, 1, 1)
    logits[1, 1:] = junk
    tokens = torch.tensor([[1, 0], [1, 0]])
    q = torch.full((2, 2, 2), 0.5)
    q[1, 1] = junk
    for uniforms in (None, torch.full((2, 3), 0.5, dtype=torch.float64)):
        whole = judge(Exact(), Block(tokens, torch.tensor([1, 0]), logits, logits, q, uniforms))
        assert whole.accepted.tolist() == [1, 0]
        assert whole.next_tokens.tolist() == [0, 1]
