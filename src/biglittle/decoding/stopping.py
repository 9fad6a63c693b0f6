"""When a row's text ends, token by token, and which of it is safe to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Detokenizer", "StopStrings"]


class Detokenizer:
    """Text of a growing list of tokens, a whole character at a time.

    A token may hold part of a multi-byte character, and some tokenizers treat a token's leading
    space by what precedes it. So text is decoded from a few tokens back, and the last piece is
    held back while it ends in the replacement character.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # A few prompt tokens give the first new one its context.
        self._tokens: list[int] = list(prompt[-5:])
        self._start = 0
        self._read = len(self._tokens)

    def push(self, token: int) -> str:
        """Add a token; the text that became certain with it."""
        self._tokens.append(token)
        before = self._decode(self._start, self._read)
        after = self._decode(self._start, len(self._tokens))
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return after[len(before) :]

    def flush(self) -> str:
        """What was held back, incomplete characters included."""
        before = self._decode(self._start, self._read)
        after = self._decode(self._start, len(self._tokens))
        self._start = self._read = len(self._tokens)
        return after[len(before) :]

    def _decode(self, first: int, last: int) -> str:
        text: str = self._tokenizer.decode(
            self._tokens[first:last],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return text


class StopStrings:
    """Looks for stop strings in growing text and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self.text = ""
        """All text so far, cut before the stop string once there is one."""
        self.safe = 0
        """Characters of `text` that no stop string can claim any more."""
        self.stopped = False

    def push(self, piece: str) -> bool:
        """Add text; whether a stop string is complete."""
        longest = max((len(stop) for stop in self._stops), default=0)
        start = max(0, len(self.text) - longest + 1)
        self.text += piece
        found = [
            (at + len(stop), at) for stop in self._stops if (at := self.text.find(stop, start)) >= 0
        ]
        if found:
            # Of several, the one that is complete first, so that the pieces make no difference.
            self.text = self.text[: min(found)[1]]
            self.stopped = True
        self.safe = len(self.text) - (0 if self.stopped else self._held())
        return self.stopped

    def finish(self) -> None:
        """No more text comes: all of it is safe."""
        self.safe = len(self.text)

    def _held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for size in range(max((len(s) for s in self._stops), default=1) - 1, 0, -1):
            if any(len(s) > size and self.text.endswith(s[:size]) for s in self._stops):
                return size
        return 0
