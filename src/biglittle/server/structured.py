"""Answers of a given form: a grammar that rules out every token that would leave it."""

from __future__ import annotations

import json
from collections.abc import Collection
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from ..errors import ParameterError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

    from ..pair import Pair

__all__ = ["Grammars", "JsonProcessor"]

ANY_OBJECT: dict[str, Any] = {"type": "object"}
COMPACT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""One way to put spaces: a model that is free to add blanks may add nothing else."""


class Grammars:
    """JSON grammars over a pair's vocabulary (llguidance).

    Args:
        pair: Its tokenizer is read when the first grammar is asked for.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None

    def processor(self, schema: dict[str, Any] | None, ends: Collection[int]) -> JsonProcessor:
        """A processor for one row.

        Args:
            schema: A JSON schema; None for any object.
            ends: Tokens that end a text, at least one.

        Raises:
            ParameterError: A schema that is wrong, or asks for what the grammar cannot express; a
                model without an end token.
        """
        from llguidance import LLMatcher

        if not ends:
            raise ParameterError("response_format needs a model with an end-of-sequence token")
        try:
            text = json.dumps(ANY_OBJECT if schema is None else schema)
            grammar = LLMatcher.grammar_from_json_schema(text, overrides=COMPACT)
        except (RecursionError, ValueError) as cause:
            raise ParameterError(f"response_format: the schema cannot be read: {cause}") from cause
        matcher = LLMatcher(self._vocabulary(), grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # finds what no text can follow, such as {"$ref": "#"}
        if matcher.is_error():
            raise ParameterError(f"response_format: the schema cannot be followed: {why(matcher)}")
        return JsonProcessor(matcher, ends)

    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = _read(self._pair.tokenizer)
            return self._tokenizer


class JsonProcessor(LogitsProcessor):
    """Rules out what the grammar does not allow next.

    A row's own: it is called with prefixes that only grow, as the loop promises for processors of
    the user's.
    """

    def __init__(self, matcher: LLMatcher, ends: Collection[int]) -> None:
        self._matcher = matcher
        self._ends = sorted(ends)
        self._read: int | None = None  # tokens of the row that the grammar has seen

    def copy(self) -> JsonProcessor:
        """One for another row, from the beginning."""
        return JsonProcessor(self._matcher.deep_copy(), self._ends)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [1, vocab] after input_ids [1, tokens]; the first prefix is the prompt."""
        length = input_ids.shape[1]
        start = length if self._read is None else self._read
        self._consume(input_ids[0, start:].tolist())
        self._read = length
        return scores.masked_fill(~self._allowed(scores.shape[1]).to(scores.device), -torch.inf)

    def _consume(self, tokens: list[int]) -> None:
        if tokens and not self._matcher.consume_tokens(tokens):
            raise self._failed()

    def _failed(self) -> ParameterError:
        """For a schema that needs more than the grammar's limits on time and memory allow."""
        return ParameterError(f"response_format: the grammar gave up: {why(self._matcher)}")

    def _allowed(self, vocab: int) -> Tensor:
        """Which tokens may follow, [vocab] bool."""
        allowed = torch.zeros(vocab, dtype=torch.bool)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[:vocab]
            allowed[: len(mask)] = torch.from_numpy(mask.astype(bool))
        if self._matcher.is_error():
            raise self._failed()
        allowed[self._ends] = self._matcher.is_accepting()
        return allowed


def why(matcher: LLMatcher) -> str:
    """What went wrong, without the state that llguidance adds for its authors."""
    return " ".join(matcher.get_error().partition("<state>")[0].split())[:300]


def _read(tokenizer: Any) -> LLTokenizer:
    from transformers import PreTrainedTokenizerFast

    if isinstance(tokenizer, PreTrainedTokenizerFast):
        from llguidance.hf import from_tokenizer

        return from_tokenizer(tokenizer)
    pointer = getattr(tokenizer, "vocabulary", None)
    if pointer is not None:
        from llguidance.llamacpp import lltokenizer_from_vocab

        return lltokenizer_from_vocab(pointer)
    raise ParameterError(
        f"response_format needs a fast tokenizer; this model's is a {type(tokenizer).__name__}"
    )
