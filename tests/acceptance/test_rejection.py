"""Closed form: what rejection sampling emits is p, to the last digits, whatever q is.

Probabilities are measured on the code itself: a rule that is monotone in its uniform number
accepts with the probability at which bisection finds it to turn, and draws a token with the
length of the interval of numbers that give it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from biglittle.acceptance import Block, Exact, judge
from biglittle.acceptance.base import sample
from biglittle.acceptance.rejection import rejection_accepts, rejection_replace, residual

TOLERANCE = 1e-12


def bisect(holds: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """The numbers in [0, 1] below which a monotone condition holds, by halving."""
    low, high = torch.zeros(shape).double(), torch.ones(shape).double()
    for _ in range(60):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = torch.where(true, middle, low), torch.where(true, high, middle)
    return high


def acceptance_probability(p: Tensor, q: Tensor) -> Tensor:
    """Of every token [vocab], as `rejection_accepts` has it."""
    vocab = len(p)
    tokens = torch.arange(vocab)[:, None]
    ps, qs = (d.expand(vocab, 1, vocab) for d in (p, q))
    return bisect(lambda u: rejection_accepts(tokens, ps, qs, u), (vocab, 1))[:, 0]


def drawn(weights: Tensor) -> Tensor:
    """The distribution that `sample` draws from, [vocab]."""
    vocab = len(weights)
    rows = weights.expand(vocab, vocab)
    up_to = bisect(lambda u: sample(rows, u) <= torch.arange(vocab), (vocab,))
    return up_to.diff(prepend=torch.zeros(1).double())


def emitted(p: Tensor, q: Tensor) -> Tensor:
    """q·accept + (1 − Σ q·accept)·residual."""
    kept = q * acceptance_probability(p, q)
    return kept + (1 - kept.sum()) * drawn(residual(p[None], q[None])[0])


def distribution(*weights: float) -> Tensor:
    raw = torch.tensor(weights, dtype=torch.float64)
    return raw / raw.sum()


DISTRIBUTIONS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=6, max_size=6
).filter(lambda weights: sum(weights) > 0)


@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_the_output_follows_the_target(one: list[float], other: list[float]) -> None:
    p, q = distribution(*one), distribution(*other)
    assert torch.allclose(emitted(p, q), p, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ((1, 2, 3), (3, 2, 1)),
        ((1, 2, 3), (1, 2, 3)),  # p = q: everything is accepted
        ((1, 1, 0), (0, 1, 1)),  # each lacks a token of the other
        ((1, 0, 0), (0, 0, 1)),  # nothing in common
        ((1, 2, 3), (0, 1, 0)),  # a greedy draft
        ((0, 1, 0), (1, 2, 3)),  # a target that is certain
        ((0, 1, 0), (0, 1, 0)),
        ((1e-12, 1, 1), (1, 1e-12, 1)),
    ],
)
def test_the_corners_too(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    one, other = distribution(*p), distribution(*q)
    assert torch.allclose(emitted(one, other), one, rtol=0, atol=TOLERANCE)


def test_the_acceptance_probability_is_p_over_q() -> None:
    p, q = distribution(1, 2, 3, 4), distribution(4, 3, 2, 1)
    expected = torch.minimum(torch.ones(4).double(), p / q)
    assert torch.allclose(acceptance_probability(p, q), expected, rtol=0, atol=TOLERANCE)


def test_a_token_the_target_excludes_is_rejected_even_at_zero() -> None:
    p, q = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 0.0]]])
    zero = torch.zeros(1, 1).double()
    assert not rejection_accepts(torch.tensor([[0]]), p, q, zero).item()
    assert rejection_accepts(torch.tensor([[1]]), p, p, zero).item()


def test_equal_distributions_are_always_accepted() -> None:
    p = distribution(1, 2, 3).expand(1, 3, 3)
    tokens = torch.tensor([[0, 1, 2]])
    almost_one = torch.full((1, 3), 1 - 2**-52, dtype=torch.float64)
    assert rejection_accepts(tokens, p, p, almost_one).all()


def test_an_empty_residual_is_the_target_itself() -> None:
    p = distribution(1, 2, 3)[None]
    assert torch.equal(residual(p, p), p)
    for u, token in ((0.0, 0), (0.5, 2), (0.4, 1)):
        where = torch.tensor([u]).double()
        assert rejection_replace(p, p, torch.tensor([True]), where).item() == token


def test_a_residual_is_taken_only_where_a_token_was_rejected() -> None:
    p, q = distribution(1, 3).repeat(2, 1), distribution(1, 0).repeat(2, 1)
    rejected, u = torch.tensor([True, False]), torch.full((2,), 0.1).double()
    assert rejection_replace(p, q, rejected, u).tolist() == [1, 0]
    assert rejection_replace(p, None, rejected, u).tolist() == [0, 0]


@pytest.mark.parametrize("junk", [math.nan, 0.0])
def test_what_was_not_rejected_never_reads_q(junk: float) -> None:
    p = distribution(1, 3)[None]
    q = torch.full_like(p, junk)
    u = torch.tensor([0.1]).double()
    assert rejection_replace(p, q, torch.tensor([False]), u).item() == 0


def test_a_window_is_judged_token_by_token() -> None:
    """p(x)/q(x) is 1/2 at every position: the numbers say which tokens stay."""
    p = distribution(1, 2, 1).expand(3, 3, 3)
    q = torch.tensor([0.5, 0.25, 0.25]).double().expand(3, 2, 3)
    logits = p.log()
    tokens = torch.zeros(3, 2).long()
    u = torch.tensor([[0.4, 0.4, 0.99], [0.4, 0.6, 0.99], [0.6, 0.4, 0.99]]).double()
    verdict = judge(Exact(), Block(tokens, torch.full((3,), 2), logits, logits, q, u))
    assert verdict.accepted.tolist() == [2, 1, 0]
    # (p − q)₊ leaves token 1 alone; after all tokens the last number draws from p itself.
    assert verdict.next_tokens.tolist() == [2, 1, 1]
