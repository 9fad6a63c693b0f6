"""Confidence lookahead whose threshold follows what the target accepted (transformers)."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..results import Round
from .base import Decision, DraftStep, Lookahead, check_probability, check_tokens

__all__ = ["SelfAdjusting", "best_threshold"]

MISS = 3.0  # what a good token that was not drafted costs, in bad ones that were
SAMPLES = 5  # the threshold stays until more than so many tokens were judged


@dataclass(frozen=True, slots=True)
class State:
    """What a row has learned."""

    threshold: float
    judged: tuple[tuple[float, bool], ...] = ()
    """Every judged token's confidence, and whether it was accepted; by confidence, ascending."""


@dataclass(frozen=True, slots=True)
class SelfAdjusting(Lookahead):
    """Stop after a token whose probability is below a threshold that adjusts itself; it is kept.

    After every round the threshold becomes the point of the ROC curve of the row's own history
    that minimises FPR + 3·FNR, once more than five tokens were judged and some were accepted and
    some not. `threshold` is what a row starts with. At most `tokens` a round.

    Source: dynamic speculation in transformers 4.45, where the history outlives the request.
    """

    name: ClassVar[str] = "self_adjusting"
    threshold: float = 0.4
    tokens: int = 20

    def __post_init__(self) -> None:
        check_probability(self.name, "threshold", self.threshold)
        check_tokens(self.name, self.tokens)

    def initial(self, unread: int = 0) -> State:
        """A row without history."""
        return State(self.threshold)

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Keep the unsure token and stop, by each row's own threshold."""
        return self.decide_window(step.confidence[:, None], (), states)[:, 0]

    def decide_window(
        self, confidence: Tensor, steps: Iterable[DraftStep], states: Sequence[Any]
    ) -> Tensor:
        """See `Lookahead.decide_window`."""
        own = [[1.0 if state is None else state.threshold] for state in states]
        below = confidence < torch.tensor(own, device=confidence.device)
        return below.to(torch.int8) * int(Decision.KEEP)

    def observe(self, state: Any, seen: Round) -> State:
        """Judged are the accepted tokens and the first rejected one; those after it are not."""
        if not seen.drafted:
            return state  # type: ignore[no-any-return]
        judged = list(state.judged)
        for at, sure in enumerate(seen.confidence[: min(seen.accepted + 1, seen.drafted)]):
            insort(judged, (sure, at < seen.accepted))
        found = best_threshold(judged) if len(judged) > SAMPLES else None
        return State(state.threshold if found is None else found, tuple(judged))


def best_threshold(judged: Sequence[tuple[float, bool]]) -> float | None:
    """The confidence, among those seen, that as a threshold minimises FPR + 3·FNR; of several the
    largest. None unless some tokens were accepted and some not.

    A token at or above the threshold counts as predicted to be accepted. FPR is the share of the
    rejected tokens that are, FNR the share of the accepted ones that are not.

    Args:
        judged: Tokens' confidence, and whether they were accepted; by confidence, ascending.
    """
    good = sum(map(itemgetter(1), judged))
    bad = len(judged) - good
    if not good or not bad:
        return None
    best, least = 0.0, math.inf
    kept = rejected = 0  # below the confidence that is looked at
    last = -math.inf
    for sure, right in judged:
        if sure > last:
            loss = (1 - rejected / bad) + MISS * (kept / good)
            if loss <= least:
                best, least = sure, loss
            last = sure
        kept += right
        rejected += not right
    return best
