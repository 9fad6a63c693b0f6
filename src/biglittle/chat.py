"""A conversation that goes on from its own cached state."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .errors import ParameterError
from .results import Chunk, Result, Stats

if TYPE_CHECKING:
    from .decoding import Row
    from .pair import Pair

__all__ = ["Chat"]


class Chat:
    """Messages, and the keys and values of the last turn: a next turn reads only what is new.

    Args:
        pair: The pair that answers.
        system: The system message.
        options: Defaults for every turn, as for `Pair.generate`.
    """

    def __init__(self, pair: Pair, system: str | None, options: dict[str, Any]) -> None:
        self._pair = pair
        self._options = options
        self._saved: Any = None
        self.messages: list[dict[str, str]] = []
        self.last_stats: Stats | None = None
        """What the last answer cost, one that was left early included."""
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def send(self, text: str, **options: Any) -> Result:
        """Say something; the answer. See `Pair.generate` for the options."""
        for chunk in self.stream(text, **options):
            if chunk.result is not None and chunk.result.error is None:
                return chunk.result
        raise AssertionError("a stream ends with a result or raises")

    def stream(self, text: str, **options: Any) -> Generator[Chunk, None, None]:
        """Say something; the answer as it comes. A turn that is left early is kept as far as it
        was written."""
        if not text:
            raise ParameterError("the message is empty")
        messages = [*self.messages, {"role": "user", "content": text}]
        requests = self._pair.requests(messages, **{**self._options, **options})
        if len(requests) != 1:
            raise ParameterError("a chat goes on from one answer: n must be 1")
        request = dataclasses.replace(requests[0], keep_state=True, saved=self._saved)
        return self._answer(messages, request)

    def _answer(self, messages: list[dict[str, str]], request: Any) -> Generator[Chunk, None, None]:
        engine = self._pair.engine()
        row = engine.admit(request)
        whole = False  # whether the last round ran to its end: else the cache is not the tokens'
        try:
            while engine.busy:
                whole = False
                engine.step()
                whole = True
                if (chunk := row.take_chunk()) is not None:
                    yield chunk
        except Exception as cause:  # the models failed: there was no turn
            row.fail(cause)
            raise
        finally:
            engine.cancel(row)
            self.last_stats = row.stats
            self._remember(messages, row, row.saved if whole else None)
        if row.error is not None:
            raise row.error

    def _remember(self, messages: list[dict[str, str]], row: Row, saved: Any) -> None:
        if row.error is None:
            text = row.result().text.rstrip("\ufffd")  # left early, inside a character
            self.messages = [*messages, {"role": "assistant", "content": text}]
            self._saved = saved

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages = [m for m in self.messages[:1] if m["role"] == "system"]
        self._saved = None
