"""Confidence lookahead whose threshold follows what the target accepted (transformers)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..results import Round
from .base import Decision, DraftStep, Lookahead, check_probability, check_tokens

__all__ = ["SelfAdjusting", "best_threshold"]

MISS = 3.0  # what a good token that was not drafted costs, in bad ones that were
SAMPLES = 5  # the threshold stays until more than so many tokens were judged


@dataclass(frozen=True, slots=True)
class State:
    """What a row has learned: every judged token's confidence, and whether it was accepted."""

    threshold: float
    confidence: tuple[float, ...] = ()
    accepted: tuple[bool, ...] = ()


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
        judged = min(seen.accepted + 1, seen.drafted)
        confidence = state.confidence + seen.confidence[:judged]
        accepted = state.accepted + tuple(at < seen.accepted for at in range(judged))
        threshold = best_threshold(confidence, accepted) if len(accepted) > SAMPLES else None
        return State(state.threshold if threshold is None else threshold, confidence, accepted)


def best_threshold(confidence: Sequence[float], accepted: Sequence[bool]) -> float | None:
    """The confidence, among those seen, that as a threshold minimises FPR + 3·FNR; of several the
    largest. None unless some tokens were accepted and some not.

    A token at or above the threshold counts as predicted to be accepted. FPR is the share of the
    rejected tokens that are, FNR the share of the accepted ones that are not.
    """
    sure, good = np.asarray(confidence), np.asarray(accepted, np.bool_)
    if good.all() or not good.any():
        return None
    points = np.unique(sure)[::-1]
    rejected, kept = np.sort(sure[~good]), np.sort(sure[good])
    false_positives = 1 - np.searchsorted(rejected, points) / len(rejected)
    false_negatives = np.searchsorted(kept, points) / len(kept)
    return float(points[np.argmin(false_positives + MISS * false_negatives)])
