"""BiLD rollback: keep what the target does not strongly disagree with (Kim et al. 2023, §3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..errors import PolicyError
from ..lookahead.base import check_number
from ..tensors import argmax
from .base import Acceptance, sample

__all__ = ["Bild"]

CHOICES = {
    "first": ("draft", "target"),
    "after_rollback": ("draft", "target"),
    "shortcut": ("on", "off", "rest"),
    "distribution": ("processed", "raw"),
}


@dataclass(frozen=True, slots=True)
class Bild(Acceptance):
    """Keep a token while −ln p_target(token | prefix) ≤ `rollback`. **Lossy.**

    At the first position beyond the threshold the target's own token replaces the draft's, and
    everything after it is discarded. `rollback` is α_RB, in nats: 0 and negative values are
    thresholds like any other, infinity never rolls back.

    The other fields are the choices in which the paper and its code differ, or which they leave
    open. The defaults are ours; the values that reproduce the authors' code are named.

    Attributes:
        rollback: α_RB, in nats.
        first: Who writes the first token ("target" in the authors' code).
        after_rollback: Who goes on after a rollback ("target" in the authors' code, which
            therefore pays two target passes for one).
        shortcut: What happens at a violation whose token is the target's argmax all the same.
            "on": no rollback there, later positions are still judged; "rest": no rollback there
            nor later in this window (the authors' code); "off": a rollback like any other.
        verify_end: Whether the target looks at a window that ends the row (EOS, or the last
            token allowed) before it is emitted (False in the authors' code).
        distribution: What −ln p is read from: the processed distribution that decoding uses, or
            the raw logits (the authors' code).
    """

    name: ClassVar[str] = "bild"
    lossless: ClassVar[bool] = False
    rollback: float = 3.0
    first: Literal["draft", "target"] = "draft"
    after_rollback: Literal["draft", "target"] = "draft"
    shortcut: Literal["on", "off", "rest"] = "on"
    verify_end: bool = True
    distribution: Literal["processed", "raw"] = "processed"

    def __post_init__(self) -> None:
        check_number(self.name, "rollback", self.rollback)
        for option, values in CHOICES.items():
            if getattr(self, option) not in values:
                raise PolicyError(
                    f"bild: {option}={getattr(self, option)!r} must be one of {', '.join(values)}"
                )

    def accepts(
        self, tokens: Tensor, logits: Tensor, q: Tensor | None, uniforms: Tensor | None
    ) -> Tensor:
        """See `Acceptance.accepts`; the rule is the same whether decoding is greedy or samples."""
        at = tokens[..., None]
        logits = logits.float()
        distance = logits.logsumexp(-1) - logits.gather(-1, at).squeeze(-1)  # −ln p, in nats
        stays = distance <= self.rollback  # false for NaN: a broken model keeps nothing
        if self.shortcut == "off":
            return stays
        agrees = tokens == argmax(logits)
        if self.shortcut == "rest":
            excused = ~stays & agrees
            stays = stays | (excused.to(torch.int64).cumsum(dim=-1) > 0)
        return stays | agrees

    def replace(
        self, logits: Tensor, q: Tensor | None, rejected: Tensor, uniforms: Tensor | None
    ) -> Tensor:
        """The target's own prediction: its argmax, or a sample from its distribution."""
        if uniforms is None:
            return argmax(logits)
        return sample(logits.float().softmax(-1), uniforms)
