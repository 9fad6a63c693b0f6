"""Confidence lookahead, "dynamic": stop after a token of which the draft is not sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from .base import Decision, DraftStep, Lookahead, check_probability, check_tokens, keep_below

__all__ = ["Confidence"]


@dataclass(frozen=True, slots=True)
class Confidence(Lookahead):
    """Stop when the drafted token's probability is below `threshold`; the token is kept.

    At most `tokens` a round. Source: dynamic speculation in transformers 4.45, with its defaults.
    """

    name: ClassVar[str] = "confidence"
    threshold: float = 0.4
    tokens: int = 20

    def __post_init__(self) -> None:
        check_probability(self.name, "threshold", self.threshold)
        check_tokens(self.name, self.tokens)

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Keep the unsure token and stop."""
        return keep_below(step.confidence, self.threshold, Decision.KEEP)
