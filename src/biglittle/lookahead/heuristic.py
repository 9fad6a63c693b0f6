"""Heuristic lookahead: two more after a full success, one less after a failure (transformers)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Decision, DraftStep, Lookahead, check_tokens

__all__ = ["Heuristic"]

LIMIT = 64  # a window that only ever succeeds stops growing here


@dataclass(frozen=True, slots=True)
class Heuristic(Lookahead):
    """γ += 2 when every drafted token was accepted, otherwise γ −= 1, not below 1.

    `start` is the first γ of every request (transformers calls the variant that starts anew
    "heuristic_transient"), so that a request's result does not depend on earlier ones.
    """

    name: ClassVar[str] = "heuristic"
    start: int = 5
    tokens: int = LIMIT

    def __post_init__(self) -> None:
        check_tokens(self.name, self.tokens)
        check_tokens(f"{self.name} (start)", self.start)

    def initial(self) -> int:
        """γ of a new row."""
        return min(self.start, self.tokens)

    def budget(self, state: Any) -> int:
        """The row's current γ."""
        return int(state)

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Go on until the budget is spent."""
        return torch.full_like(step.tokens, Decision.CONTINUE, dtype=torch.int8)

    def observe(self, state: Any, drafted: int, accepted: int) -> int:
        """γ for the next round."""
        gamma = int(state)
        if not drafted:
            return gamma
        return min(gamma + 2, self.tokens) if accepted == drafted else max(gamma - 1, 1)
