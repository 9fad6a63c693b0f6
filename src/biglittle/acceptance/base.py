"""The acceptance seam: which drafted tokens stay, and what follows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

__all__ = ["Acceptance", "Block", "Verdict", "judge", "sample"]


@dataclass(frozen=True, slots=True)
class Block:
    """What one round asks an acceptance rule about: `rows` rows, `width` drafted positions."""

    tokens: Tensor
    """Drafted ids, [rows, width] int64; anything past a row's count."""
    counts: Tensor
    """Drafted tokens of every row, [rows] int64, in 0 … width."""
    logits: Tensor
    """The target's processed logits, [rows, width + 1, vocab]: one more position than drafted."""
    raw: Tensor
    """The same before any processor; the same tensor where there is none."""
    q: Tensor | None
    """The distributions that the draft really drew from, [rows, width, vocab] (one-hot for a draft
    without one); None where decoding is greedy or the rule does not need them."""
    uniforms: Tensor | None
    """Uniform numbers in [0, 1), [rows, width + 1] float64, the last for the next token;
    None where decoding is greedy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stays of a block."""

    accepted: Tensor
    """Accepted drafted tokens, [rows] int64."""
    next_tokens: Tensor
    """The target's own token after them, [rows] int64."""


class Acceptance(ABC):
    """An acceptance rule, as two pure functions of tensors.

    `lossless` says whether the output is the target's own: its greedy output, or its distribution
    when sampling. `needs_q` says whether the rule reads the draft's distributions when sampling.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool]
    needs_q: ClassVar[bool] = False
    first: Literal["draft", "target"] = "target"
    """Who writes the first token of a row. The target's is free where it reads a prompt; an
    encoder-decoder model's decoder has none."""
    after_rollback: Literal["draft", "target"] = "draft"
    """Who goes on after a drafted token was replaced."""
    verify_end: bool = True
    """Whether the target looks at a window that ends the row before it is emitted."""
    distribution: Literal["processed", "raw"] = "processed"
    """Which logits `accepts` is given."""

    @abstractmethod
    def accepts(
        self, tokens: Tensor, logits: Tensor, q: Tensor | None, uniforms: Tensor | None
    ) -> Tensor:
        """Whether each token may stay, given that all before it do.

        Args:
            tokens: Drafted ids, [rows, width].
            logits: The target's logits at their positions, [rows, width, vocab].
            q: The draft's distributions there, [rows, width, vocab]; see `Block.q`.
            uniforms: [rows, width] in [0, 1), or None for greedy decoding.

        Returns:
            [rows, width] bool.
        """

    @abstractmethod
    def replace(
        self, logits: Tensor, q: Tensor | None, rejected: Tensor, uniforms: Tensor | None
    ) -> Tensor:
        """The target's token at the first position that does not stay, or after all of them.

        Args:
            logits: The target's processed logits at that position, [rows, vocab].
            q: The draft's distribution there, [rows, vocab]; read only where `rejected`.
            rejected: Whether a drafted token was rejected there, [rows] bool.
            uniforms: [rows] in [0, 1), or None for greedy decoding.

        Returns:
            [rows] int64.
        """


def judge(rule: Acceptance, block: Block) -> Verdict:
    """Apply a rule to a block: the longest prefix that it accepts, then one target token."""
    rows, width = block.tokens.shape
    every = torch.arange(rows, device=block.logits.device)
    accepted = torch.zeros_like(block.counts)
    if width:
        u = None if block.uniforms is None else block.uniforms[:, :width]
        logits = block.raw if rule.distribution == "raw" else block.logits
        stays = rule.accepts(block.tokens, logits[:, :width], block.q, u)
        stays &= torch.arange(width, device=stays.device) < block.counts[:, None]
        accepted = stays.to(torch.int64).cumprod(dim=1).sum(dim=1)  # length of the true prefix
    rejected = accepted < block.counts
    q = None
    if block.q is not None and width:
        q = block.q[every, accepted.clamp(max=width - 1)]
    u = None if block.uniforms is None else block.uniforms[:, -1]
    return Verdict(accepted, rule.replace(block.logits[every, accepted], q, rejected, u))


def sample(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw from unnormalised distributions by inverting their cumulative sums.

    Args:
        weights: Non-negative, [rows, vocab], each row with a positive sum.
        uniforms: [rows] float64 in [0, 1).

    Returns:
        Ids, [rows] int64; an entry of weight 0 is never drawn. `vocab`, which is no id, where
        nothing can be drawn: weights that are all 0, or not a number.
    """
    cumulative = weights.to(torch.float64).cumsum(dim=-1)
    # u < 1 keeps the mark below the sum in exact arithmetic; the clamp does so in floating point:
    # strictly below the last cumulative value, so that the entry found has positive weight.
    total = cumulative[:, -1:]
    mark = (uniforms[:, None] * total).clamp(max=torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, mark, right=True).squeeze(-1)
