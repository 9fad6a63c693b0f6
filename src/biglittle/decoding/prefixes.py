"""States of rows that have ended, for prompts that begin in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engines.base import Saved, common

__all__ = ["Beginning", "Prefixes"]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the first tokens of a new row are known already; nowhere, by default."""

    shared: int = 0
    """How many they are."""
    twin: int | None = None
    """The number of a row that has them."""
    saved: Saved | None = None
    """A state that has them."""


class Prefixes:
    """Kept states of rows, the least recently used of which goes first.

    Args:
        tokens: The most tokens of the target's states together.
    """

    def __init__(self, tokens: int) -> None:
        self._most = tokens
        self._kept: list[tuple[Saved, Saved | None]] = []  # the least recently used first

    @property
    def tokens(self) -> int:
        """Tokens of the target's states."""
        return sum(len(target.tokens) for target, _ in self._kept)

    def add(self, target: Saved, draft: Saved | None) -> None:
        """Keep the states of a row, in the place of those of its beginnings."""
        if len(target.tokens) > self._most:
            return
        for kept in list(self._kept):
            shared = common(kept[0].tokens, target.tokens)
            if shared == len(target.tokens):
                return
            if shared == len(kept[0].tokens):
                self._kept.remove(kept)
                draft = draft or kept[1]
        self._kept.append((target, draft))
        while self.tokens > self._most:
            self._kept.pop(0)

    def find(self, side: int, tokens: Sequence[int]) -> Saved | None:
        """The target's state (side 0), or the draft's (1), that shares most with a prompt; None
        where none shares anything."""
        states = [kept[side] for kept in self._kept]
        shares = [0 if state is None else state.shared(tokens) for state in states]
        if not any(shares):
            return None
        best = self._kept.pop(shares.index(max(shares)))
        self._kept.append(best)  # it has been of use
        return best[side]
