"""Heuristic lookahead: two more after a full success, one less after a failure (transformers)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..results import Round
from .base import Decision, DraftStep, Lookahead, check_probability, check_tokens, keep_below

__all__ = ["Heuristic"]

LIMIT = 64  # a window that only ever succeeds stops growing here


@dataclass(frozen=True, slots=True)
class Heuristic(Lookahead):
    """γ += 2 when every drafted token was accepted, otherwise γ −= 1, not below 1.

    `start` is the first γ of every request (transformers calls the variant that starts anew
    "heuristic_transient"), so that a request's result does not depend on earlier ones. With a
    `threshold`, drafting also stops after a token whose probability is below it, as in
    `Confidence`; what was drafted until then counts as the whole window.
    """

    name: ClassVar[str] = "heuristic"
    start: int = 5
    tokens: int = LIMIT
    threshold: float = 0.0

    def __post_init__(self) -> None:
        check_tokens(self.name, self.tokens)
        check_tokens(f"{self.name} (start)", self.start)
        check_probability(self.name, "threshold", self.threshold)

    def initial(self, unread: int = 0) -> int:
        """γ of a new row."""
        return min(self.start, self.tokens)

    def budget(self, state: Any, rows: int = 1, drafting: int | None = None) -> int:
        """The row's current γ."""
        return int(state)

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Go on until the budget is spent, or after a token below the threshold."""
        return self.decide_window(step.confidence, (), states)

    def decide_window(
        self, confidence: Tensor, steps: Iterable[DraftStep], states: Sequence[Any]
    ) -> Tensor:
        """See `Lookahead.decide_window`."""
        return keep_below(confidence, self.threshold, Decision.KEEP)

    def observe(self, state: Any, seen: Round) -> int:
        """γ for the next round."""
        gamma = int(state)
        if not seen.drafted:
            return gamma
        return min(gamma + 2, self.tokens) if seen.accepted == seen.drafted else max(gamma - 1, 1)
