"""Rows of a llama.cpp model: sequences of one context."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import BiglittleError
from ..base import Limits, Prompt, Saved
from ..timing import Stopwatch
from .context import ROWS, Context

if TYPE_CHECKING:
    from .model import LlamaModel

__all__ = ["LlamaRunner"]


class LlamaRunner:
    """Rows of a llama.cpp model; see `biglittle.engines.Runner` for the protocol.

    A row is a sequence of a context that no other runner uses meanwhile; it is borrowed with the
    first row.
    """

    def __init__(self, model: LlamaModel) -> None:
        self.model = model
        self.name = model.name
        self.vocab = model.vocab
        self.device = model.device
        self.limits = Limits(context=model.context, rows=ROWS, pooled=True)
        self.lengths: list[int] = []
        self.reused = 0
        self.stopwatch = Stopwatch(self.device)
        self._borrowed: Context | None = None
        self._rows: list[int] = []

    def admit(
        self, prompt: Prompt, saved: Saved | None = None, *, most: int | None = None
    ) -> Tensor:
        """See `Runner.admit`."""
        if self._borrowed is None:
            self._borrow(None if saved is None else saved.state.context)
        sequence = self._take()
        done = 0
        if saved is not None and saved.state.context is self._context:
            shared = saved.shared(prompt.tokens)
            done = shared if self._context.whole(len(saved.tokens), shared) else 0
            self._context.copy(saved.state.sequence, sequence, done)
        self.reused = done
        self._rows.append(sequence)
        self.lengths.append(done)
        return self.read(len(self._rows) - 1, prompt.tokens[done:][:most])

    def read(self, row: int, tokens: Sequence[int]) -> Tensor:
        """See `Runner.read`."""
        with self.stopwatch:
            logits = self._context.decode([self._rows[row]], [tokens], last=True)
        self.lengths[row] += len(tokens)
        return logits

    def fork(self, row: int, length: int | None = None) -> int:
        """See `Runner.fork`."""
        held = self.lengths[row]
        length = held if length is None else length
        length = length if self._context.whole(held, length) else 0
        sequence = self._take()
        self._context.copy(self._rows[row], sequence, length)
        self._rows.append(sequence)
        self.lengths.append(length)
        return length

    def forward(self, tokens: Tensor, counts: Sequence[int], *, last: bool = False) -> Tensor:
        """See `Runner.forward`."""
        feed = [row[:count] for row, count in zip(tokens.tolist(), counts, strict=True)]
        first = len(feed)
        with self.stopwatch:
            logits = self._context.decode(self._rows[:first], feed, last=last)
        self.lengths[:first] = [n + c for n, c in zip(self.lengths[:first], counts, strict=True)]
        return _by_row(logits, [min(count, 1) for count in counts] if last else counts)

    def truncate(self, lengths: Sequence[int]) -> None:
        """See `Runner.truncate`."""
        for row, length in enumerate(lengths):
            self._context.cut(self._rows[row], length)
            self.lengths[row] = min(self.lengths[row], length)

    def swap(self, a: int, b: int) -> None:
        """See `Runner.swap`."""
        for held in (self._rows, self.lengths):
            held[a], held[b] = held[b], held[a]

    def release(self, row: int) -> None:
        """See `Runner.release`."""
        self._context.drop(self._rows[row])
        self._rows[row], self.lengths[row] = self._rows[-1], self.lengths[-1]
        self._rows.pop()
        self.lengths.pop()

    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        """See `Runner.save`."""
        length = self.lengths[row]
        kept = self._context.keep(self._rows[row], length)
        return None if kept is None else Saved(tuple(tokens[:length]), kept)

    @property
    def _context(self) -> Context:
        return self._borrowed or self._borrow(None)

    def _borrow(self, wanted: Context | None) -> Context:
        self._borrowed = self.model.borrow(wanted)
        # The rows' list, not the runner, so that the runner can go. At exit other finalizers may
        # have freed the context already.
        back = weakref.finalize(self, _give_back, self.model, self._borrowed, self._rows)
        back.atexit = False
        return self._borrowed

    def _take(self) -> int:
        sequence = self._context.take()
        if sequence is None:
            raise BiglittleError(f"{self.name}: no more than {ROWS} rows at a time")
        return sequence


def _give_back(model: Any, context: Context, rows: list[int]) -> None:
    for sequence in rows:
        context.drop(sequence)
    model.give_back(context)


def _by_row(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """[positions, vocab], row by row → [rows, width, vocab]; without a copy where counts agree."""
    rows, width = len(counts), max(counts)
    if all(count == width for count in counts):
        return logits.view(rows, width, -1)
    starts = torch.tensor([0, *counts[:-1]]).cumsum(0)
    within = torch.arange(width)[None].minimum(torch.tensor(counts)[:, None] - 1)
    return logits[(starts[:, None] + within).clamp(0, len(logits) - 1)]
