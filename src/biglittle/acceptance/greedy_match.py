"""Greedy match: a drafted token stays when it is the target's own greedy choice."""

from __future__ import annotations

from torch import Tensor

from ..tensors import argmax

__all__ = ["greedy_accepts", "greedy_replace"]


def greedy_accepts(tokens: Tensor, logits: Tensor) -> Tensor:
    """Whether each token is the argmax: [rows, width], [rows, width, vocab] → bool."""
    return tokens == argmax(logits)


def greedy_replace(logits: Tensor) -> Tensor:
    """The greedy choice: [rows, vocab] → [rows]."""
    return argmax(logits)
