"""Drafts without a model: what followed the last few tokens when they occurred before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..engines.base import Saved
from ..errors import ParameterError
from ..lookahead.base import DraftStep
from .base import Decide, Draft, RowDraft

if TYPE_CHECKING:
    from ..decoding.rows import Row

__all__ = ["PromptLookupDrafter", "copy", "lookup", "usable"]


class PromptLookupDrafter:
    """Copies from the row itself: n-gram match, the longest first, its latest occurrence.

    Args:
        ngram: The longest n-gram to look for.
        vocab: Ids that may be drafted.
    """

    context: int | None = None
    max_rows: int | None = None
    reads_target = False

    def __init__(self, ngram: int = 3, *, vocab: int) -> None:
        if ngram < 1:
            raise ParameterError(f"prompt lookup: ngram={ngram} must be at least 1")
        self.ngram = ngram
        self.vocab = vocab

    @property
    def seconds(self) -> float:
        """No model, no time."""
        return 0.0

    def admit(self, row: Row, saved: Saved | None = None, **options: Any) -> None:
        """Nothing to do: rows hold their own tokens."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Nothing to do: nothing is cached."""

    def release(self, row: int) -> None:
        """Nothing to do: nothing is cached."""

    def save(self, row: int, tokens: Sequence[int]) -> None:
        """Nothing to keep."""
        return

    def propose(
        self, rows: Sequence[Row], budgets: Sequence[int], decide: Decide, **options: Any
    ) -> Draft:
        """See `Drafter.propose`. A copied token has no probability; it counts as certain."""
        found = [
            usable(lookup(row.tokens, self.ngram, budget), row, self.vocab)
            for row, budget in zip(rows, budgets, strict=True)
        ]
        return Draft(copy(found, decide))


def copy(found: Sequence[Sequence[int]], decide: Decide) -> list[RowDraft]:
    """Drafts of tokens that are known beforehand, as far as the rows' lookahead lets them. They
    have no probability and count as certain."""
    drafts = [RowDraft([], [], open=bool(ids)) for ids in found]
    sure = torch.ones(len(found))
    for index in range(max(map(len, found), default=0)):
        drafting = sum(draft.open for draft in drafts)
        if not drafting:
            break
        tokens = [ids[index] if index < len(ids) else 0 for ids in found]
        before = (sure,) * index
        step = DraftStep(index, torch.tensor(tokens), sure, sure, None, before, drafting=drafting)
        decisions = decide(step).tolist()
        for i, draft in enumerate(drafts):
            if draft.open:
                last = index + 1 == len(found[i])
                draft.push(tokens[i], decisions[i], 1.0, last=last)
    return drafts


def usable(ids: list[int], row: Row, vocab: int) -> list[int]:
    """Up to and with the row's first EOS, and no further than the shared vocabulary."""
    for index, token in enumerate(ids):
        if token >= vocab:
            return ids[:index]
        if token in row.request.eos_ids:
            return ids[: index + 1]
    return ids


def lookup(tokens: Sequence[int], ngram: int, count: int) -> list[int]:
    """Up to `count` tokens that followed the latest earlier occurrence of the longest n-gram
    (of at most `ngram` tokens) that ends `tokens`; empty where there is none."""
    if count < 1 or len(tokens) < 2:
        return []
    array = np.asarray(tokens)
    for size in range(min(ngram, len(tokens) - 1), 0, -1):
        windows = np.lib.stride_tricks.sliding_window_view(array[:-1], size)
        matches = np.flatnonzero((windows == array[-size:]).all(axis=1))
        if matches.size:
            start = int(matches[-1]) + size
            return [int(token) for token in array[start : start + count]]
    return []
