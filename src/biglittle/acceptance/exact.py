"""Exact acceptance: greedy match for greedy rows, rejection sampling for rows that sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import Acceptance
from .greedy_match import greedy_accepts, greedy_replace
from .rejection import rejection_accepts, rejection_replace

__all__ = ["Exact"]


@dataclass(frozen=True, slots=True)
class Exact(Acceptance):
    """Lossless: the target's greedy output, or samples from exactly its distribution."""

    name: ClassVar[str] = "exact"
    lossless: ClassVar[bool] = True
    needs_q: ClassVar[bool] = True

    def accepts(
        self, tokens: Tensor, logits: Tensor, q: Tensor | None, uniforms: Tensor | None
    ) -> Tensor:
        """See `Acceptance.accepts`."""
        if uniforms is None:
            return greedy_accepts(tokens, logits)
        assert q is not None, "a rule that needs q is given q when rows sample"
        return rejection_accepts(tokens, logits.float().softmax(-1), q, uniforms)

    def replace(
        self, logits: Tensor, q: Tensor | None, rejected: Tensor, uniforms: Tensor | None
    ) -> Tensor:
        """See `Acceptance.replace`."""
        if uniforms is None:
            return greedy_replace(logits)
        return rejection_replace(logits.float().softmax(-1), q, rejected, uniforms)
