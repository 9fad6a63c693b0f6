"""Constant lookahead: always the same number of tokens (Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Decision, DraftStep, Lookahead, check_tokens

__all__ = ["Constant"]


@dataclass(frozen=True, slots=True)
class Constant(Lookahead):
    """Draft `tokens` tokens every round (γ in the papers)."""

    name: ClassVar[str] = "constant"
    tokens: int = 5

    def __post_init__(self) -> None:
        check_tokens(self.name, self.tokens)

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Go on until the budget is spent."""
        return torch.full_like(step.tokens, Decision.CONTINUE, dtype=torch.int8)
