"""Drafts from a text that the answer is predicted to be, beside another drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..engines.base import Saved
from .base import Decide, Draft, Drafter, RowDraft
from .prompt_lookup import copy, usable

if TYPE_CHECKING:
    from ..decoding.rows import Row

__all__ = ["PredictedDrafter", "follow", "one_hot"]

LONGEST = 32  # tokens that are compared to find the place


class PredictedDrafter:
    """Copies from a row's prediction (`Request.prediction`) where the row follows it; what has
    none, or has left it, is drafted for by another drafter.

    Args:
        other: The other drafter; None for none.
        vocab: Ids that may be drafted.
    """

    def __init__(self, other: Drafter | None, vocab: int) -> None:
        self.other = other
        self.vocab = vocab
        self.context = None if other is None else other.context
        self.max_rows = None if other is None else other.max_rows
        self.reads_target = other is not None and other.reads_target

    @property
    def seconds(self) -> float:
        """See `Drafter.seconds`."""
        return 0.0 if self.other is None else self.other.seconds

    def admit(self, row: Row, saved: Saved | None = None, **options: Any) -> Any:
        """See `Drafter.admit`."""
        return 0 if self.other is None else self.other.admit(row, saved, **options)

    def truncate(self, lengths: Sequence[int]) -> None:
        """See `Drafter.truncate`."""
        if self.other is not None:
            self.other.truncate(lengths)

    def release(self, row: int) -> None:
        """See `Drafter.release`."""
        if self.other is not None:
            self.other.release(row)

    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        """See `Drafter.save`."""
        return None if self.other is None else self.other.save(row, tokens)

    def propose(
        self, rows: Sequence[Row], budgets: Sequence[int], decide: Decide, **options: Any
    ) -> Draft:
        """See `Drafter.propose`."""
        found = [self._predicted(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        rest = [0 if ids else budget for ids, budget in zip(found, budgets, strict=True)]
        if self.other is None or not any(rest):
            return Draft(copy(found, decide))
        drafted = self.other.propose(rows, rest, decide, **options)
        if not any(found):
            return drafted
        copies = copy(found, decide)
        parts = [
            ours if ids else theirs
            for ids, ours, theirs in zip(found, copies, drafted.rows, strict=True)
        ]
        draft = Draft(parts)
        if drafted.q is not None:
            copied = [index for index, ids in enumerate(found) if ids]
            draft.q = one_hot(drafted.q, parts, copied, draft.width, self.vocab)
        return draft

    def _predicted(self, row: Row, budget: int) -> list[int]:
        """What follows in the row's prediction; empty where it is over or the row has left it."""
        prediction = row.request.prediction
        if not prediction or budget < 1:
            return []
        place = follow(prediction, row.new_tokens)
        if place is None:
            return []
        return usable(list(prediction[place : place + budget]), row, self.vocab)


def follow(prediction: Sequence[int], written: Sequence[int]) -> int | None:
    """Where a text goes on in its prediction: after the longest piece that ends the text, of at
    least two tokens unless the text has one only; of several, the one nearest to where the text
    is. None where there is no such piece, or nothing comes after it."""
    if not written:
        return 0
    array = np.asarray(prediction)
    best = 0
    ends = np.arange(1, len(array))  # after which the text may go on
    for length in range(1, min(len(written), LONGEST) + 1):
        found = ends[ends >= length]
        found = found[array[found - length] == written[-length]]
        if not found.size:
            break
        best, ends = length, found
    if best < min(2, len(written)):
        return None
    return int(ends[np.abs(ends - len(written)).argmin()])


def one_hot(
    q: Tensor, parts: Sequence[RowDraft], copied: Sequence[int], width: int, vocab: int
) -> Tensor:
    """The distributions [rows, width, vocab] with those of copied tokens, which were certain."""
    full = q.new_zeros(q.shape[0], width, vocab)
    full[:, : q.shape[1], : q.shape[2]] = q[:, :width]
    for index in copied:
        ids = torch.tensor(parts[index].ids, device=q.device)
        full[index] = 0.0
        full[index, torch.arange(len(ids)), ids] = 1.0
    return full
