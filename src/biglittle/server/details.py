"""What our extension tells of a choice: each token's origin and probability, and each round."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from ..decoding.stopping import Detokenizer
from ..results import Chunk, Origin, Result, TokenLogprob

__all__ = ["Details"]


class Details:
    """The details of one choice, as its chunks come.

    The texts of the tokens together are the choice's text: of a character that is spread over
    several tokens, the last one has it; what no text shows (an end token, a stop string) is empty.
    A token is told when its text is certain.

    Args:
        tokenizer: The model's.
        prompt: Tokens before the first one.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._waiting: deque[dict[str, Any]] = deque()
        self._certain = 0  # characters of the choice's text that are not told yet

    def take(self, chunk: Chunk) -> dict[str, Any]:
        """What a chunk adds: `tokens` and `rounds`, and in the end `stats`."""
        self._certain += len(chunk.text)
        logprobs = chunk.logprobs or ()
        for token, origin, entry in zip(chunk.token_ids, chunk.origins, logprobs, strict=True):
            self._waiting.append(_token(self._detokenizer.push(token), origin, entry))
        if chunk.result is not None and self._waiting:
            self._waiting[-1]["text"] += self._detokenizer.flush()
        rounds = [dataclasses.asdict(seen) for seen in chunk.rounds or ()]
        found = {"tokens": list(self._told(ended=chunk.result is not None)), "rounds": rounds}
        return found if chunk.result is None else {**found, "stats": chunk.result.stats.as_dict()}

    def whole(self, result: Result) -> dict[str, Any]:
        """All details of a complete choice."""
        return self.take(
            Chunk(
                index=0,
                text=result.text,
                token_ids=result.token_ids,
                origins=result.origins,
                result=result,
                logprobs=result.logprobs,
                rounds=result.rounds,
            )
        )

    def _told(self, *, ended: bool) -> Iterator[dict[str, Any]]:
        """Tokens whose text is certain; when the choice has ended, all, cut where it was."""
        while self._waiting and (ended or len(self._waiting[0]["text"]) <= self._certain):
            token = self._waiting.popleft()
            token["text"] = token["text"][: self._certain]
            self._certain -= len(token["text"])
            yield token


def _token(text: str, origin: Origin, entry: TokenLogprob) -> dict[str, Any]:
    return {
        "id": entry.token,
        "text": text,
        "origin": origin.value,
        "probability": math.exp(entry.logprob),
    }
