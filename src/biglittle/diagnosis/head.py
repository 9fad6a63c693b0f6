"""The draft's head: its share of a draft step, and what cutting it to some tokens would give."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..traces import Proposals, Trace, Traces
from .predict import Comparison, settings
from .profile import Profile

__all__ = ["Cut", "Head", "cut_traces", "study_head"]

PARTS = (16, 8, 4, 2)
"""The vocabulary is tried cut to one in so many of its tokens."""
ROUND = 1000
GAIN = 1.01
"""A cut that makes the best policy faster by less is not worth a word."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A head that knows the first tokens of the vocabulary alone."""

    tokens: int
    covered: float
    """The share of what the target wrote that it knows."""
    speedup: float
    """Of the best setting of a policy, over the target alone."""
    gain: float
    """Over the same policy with the whole head."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a draft model."""

    share: float
    """Of a draft step's time."""
    cuts: tuple[Cut, ...]
    """What was tried, smallest first; nothing where it cannot be cut."""

    @property
    def best(self) -> Cut | None:
        """The one that gains most, where one pays."""
        paying = [cut for cut in self.cuts if cut.gain >= GAIN]
        return max(paying, key=lambda cut: cut.gain, default=None)


def study_head(own: Comparison, family: str, vocab: int, ends: Collection[int]) -> Head | None:
    """What the head costs, and what smaller ones would give; None where it was not timed.

    A token that the draft would choose and no longer knows counts as one that the target rejects,
    though the draft's second choice may be right.

    Args:
        own: Of the draft model, as it is.
        family: The policy that is looked at, in all its settings.
        vocab: Tokens of the head; 0 for one that cannot be cut.
        ends: Tokens that stay, because they end a text.
    """
    costs = own.profile.costs[0]
    if not costs.head:
        return None
    sizes = sorted({vocab // part // ROUND * ROUND or vocab // part for part in PARTS} - {0})
    cuts = [_cut(own, family, tokens, vocab, ends) for tokens in sizes]
    return Head(costs.head / costs.draft, tuple(cuts))


def _cut(own: Comparison, family: str, tokens: int, vocab: int, ends: Collection[int]) -> Cut:
    traces = cut_traces(own.traces, tokens, ends)
    profile = Profile(
        tuple(
            dataclasses.replace(
                costs,
                draft=costs.draft - costs.head * (1 - tokens / vocab),
                head=costs.head * tokens / vocab,
            )
            for costs in own.profile.costs
        )
    )
    policies = settings(traces.header.cap, profile.costs[0])[family]
    (found,) = Comparison(traces, profile, {family: policies}).best()
    before = next(one for one in own.best() if one.family == family)
    written = np.concatenate([np.array(trace.tokens) for trace in traces])
    covered = float(_known(written, tokens, ends).mean())
    return Cut(tokens, covered, found.speedup, found.speedup / before.speedup)


def cut_traces(traces: Traces, tokens: int, ends: Collection[int]) -> Traces:
    """The traces of a draft that knows the first `tokens` tokens, and `ends`, alone.

    Where the draft was right with another token, it is wrong now. How it would go on from there is
    not known; it counts as being as sure as along the target's text.
    """
    found = [_trace(trace, tokens, ends, traces.header.cap) for trace in traces]
    return Traces(traces.header, tuple(found))


def _trace(trace: Trace, tokens: int, ends: Collection[int], cap: int) -> Trace:
    chain = trace.chain
    lost = ~_known(chain.tokens, tokens, ends)
    cut = Proposals(np.where(lost, -1, chain.tokens), chain.confidence, chain.top, chain.entropy)
    branches = {
        int(at) + 1: trace.branches.get(int(at) + 1, chain[at + 1 : at + cap])
        for at in np.flatnonzero(lost)
    }
    return dataclasses.replace(trace, chain=cut, branches={**trace.branches, **branches})


def _known(ids: npt.NDArray[Any], tokens: int, ends: Collection[int]) -> npt.NDArray[np.bool_]:
    return (ids < tokens) | np.isin(ids, list(ends))
