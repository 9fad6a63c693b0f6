"""The drafter seam: which tokens come next, cheaply?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from ..engines.base import Saved
from ..lookahead.base import Decision, DraftStep

if TYPE_CHECKING:
    from ..decoding.rows import Row

__all__ = ["Decide", "Draft", "Drafter", "RowDraft"]

Decide = Callable[[DraftStep], Tensor]
"""The rows' lookahead rules: a `Decision` for every row, [rows] int8."""


@dataclass(slots=True)
class RowDraft:
    """What was drafted for one row."""

    ids: list[int]
    """Tokens to verify."""
    confidence: list[float]
    """The draft's probability of each token predicted, one that was given up included."""
    dropped: bool = False
    """Whether one more token was predicted and given up."""
    passes: int = 0
    """Forwards of the draft model that the row took part in."""
    open: bool = True
    """Whether the row still drafts."""

    @property
    def predicted(self) -> int:
        """Tokens predicted, a dropped one included."""
        return len(self.ids) + self.dropped

    def push(self, token: int, decision: int, confidence: float, *, last: bool) -> None:
        """Take the next token, as the lookahead decided."""
        if decision == Decision.DROP:
            self.dropped = True
        else:
            self.ids.append(token)
        self.confidence.append(confidence)
        self.open = decision == Decision.CONTINUE and not last


@dataclass(slots=True)
class Draft:
    """What was drafted for all rows."""

    rows: list[RowDraft]
    q: Tensor | None = None
    """The distributions that the tokens were drawn from, [rows, width, vocab]; None for greedy
    drafts and for drafts without a distribution."""

    @property
    def width(self) -> int:
        """The most tokens of a row."""
        return max((len(row.ids) for row in self.rows), default=0)


class Drafter(Protocol):
    """Proposes tokens for the engine's rows, under the engine's row numbers."""

    context: int | None
    """The most tokens of a row; a row that runs full is no longer drafted for. None: no limit."""
    max_rows: int | None
    """The most rows at a time; None: no limit."""
    reads_target: bool
    """Whether it drafts from what the target has computed for the rows."""

    @property
    def seconds(self) -> float:
        """Time spent in a draft model so far."""

    def admit(
        self,
        row: Row,
        saved: Saved | None = None,
        *,
        twin: tuple[int, int] | None = None,
        most: int | None = None,
    ) -> None:
        """Append a row.

        Args:
            row: The row.
            saved: A state that it begins with.
            twin: A row of the drafter, and how many of its tokens the new one begins with.
            most: The most tokens to read now, at least 1; `propose` goes on.
        """

    def propose(
        self,
        rows: Sequence[Row],
        budgets: Sequence[int],
        decide: Decide,
        *,
        most: int | None = None,
    ) -> Draft:
        """Draft up to `budgets[i]` tokens after `rows[i].tokens`, asking `decide` after each.

        With `most`, no more tokens than so many are read to catch up with rows that are far behind;
        those that still are draft nothing. Bound rows (`Row.bound`) are read whole.
        """

    def truncate(self, lengths: Sequence[int]) -> None:
        """Take back what lies beyond the rows' lengths."""

    def release(self, row: int) -> None:
        """Remove a row; the last row takes its number."""

    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        """Keep a row's state for a later prompt with the same beginning; None without one."""
