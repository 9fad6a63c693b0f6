"""Fallback lookahead (BiLD): the little model hands an unsure position over to the big one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from .base import Decision, DraftStep, Lookahead, check_number, check_tokens, keep_below

__all__ = ["Fallback"]


@dataclass(frozen=True, slots=True)
class Fallback(Lookahead):
    """Stop when the draft's largest probability is below `threshold`; the token is dropped.

    `threshold` is α_FB of Kim et al. 2023 (§3.3), in probability: 0 and below never fall back,
    above 1 always does. At most `tokens` a round, so that the target looks at least that often.
    """

    name: ClassVar[str] = "fallback"
    threshold: float = 0.6
    tokens: int = 10

    def __post_init__(self) -> None:
        check_number(self.name, "threshold", self.threshold)
        check_tokens(self.name, self.tokens)

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Drop the unsure token and stop; the comparison is strict, as in the paper."""
        return keep_below(step.top, self.threshold, Decision.DROP)
