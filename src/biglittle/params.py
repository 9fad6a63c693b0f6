"""Generation parameters: frozen, validated once, with plain errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import LogitsProcessor, StoppingCriteria

from .errors import ParameterError, nearest

__all__ = ["GenerationParams", "make_params"]

DEFAULT_NEW_TOKENS = 256


@dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """How to generate. None means: what the model's `generation_config` says, else the default.

    Attributes:
        max_new_tokens: Most tokens to write (default: 256, or what the context has room for).
        min_new_tokens: No EOS before so many tokens.
        temperature: 0 is greedy; above 0 samples. Default: the model's own, else greedy.
        top_p: Nucleus sampling, in (0, 1].
        top_k: Sample among the k most likely tokens; 0 is all.
        min_p: Drop tokens less likely than this share of the most likely one, in [0, 1].
        repetition_penalty: Above 1 makes tokens that occurred less likely.
        no_repeat_ngram_size: No n-gram of this size twice; 0 is off.
        bad_words: Strings, or token-id sequences, that must not appear.
        suppress_tokens: Token ids that must not appear.
        seed: Of the request's own random generator; None takes one from torch's global one.
        stop: Strings that end the text; they are not part of it. A special token among them ends
            it like an EOS, `ignore_eos` or not.
        eos_token_ids: Token ids that end the text.
        ignore_eos: Go on past EOS until another limit.
        logprobs: None for none; k for the log-probability of every emitted token and of the k
            most likely ones, under the target before any processor.
        n: Samples of every prompt.
        logits_processors: transformers `LogitsProcessor`s of your own. They are called with
            accepted prefixes only, one row at a time, and never after EOS.
        stopping_criteria: transformers `StoppingCriteria` of your own, called after every token.
        trace: Whether results carry a record of every round.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    bad_words: Sequence[str | Sequence[int]] = ()
    suppress_tokens: Sequence[int] | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    eos_token_ids: int | Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    logits_processors: Sequence[LogitsProcessor] = ()
    stopping_criteria: Sequence[StoppingCriteria] = ()
    trace: bool = False

    def __post_init__(self) -> None:
        _whole("max_new_tokens", self.max_new_tokens, 1)
        _whole("min_new_tokens", self.min_new_tokens, 0)
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _whole("top_k", self.top_k, 0)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        _whole("no_repeat_ngram_size", self.no_repeat_ngram_size, 0)
        _whole("logprobs", self.logprobs, 0)
        _whole("n", self.n, 1)
        _whole("seed", self.seed, 0)
        if self.max_new_tokens is not None and (self.min_new_tokens or 0) > self.max_new_tokens:
            raise ParameterError(
                f"min_new_tokens={self.min_new_tokens} is above max_new_tokens="
                f"{self.max_new_tokens}"
            )
        if self.seed is not None and self.seed >= 2**63:
            raise ParameterError(f"seed={self.seed} must be below 2**63")
        self._check_texts()
        if self.suppress_tokens is not None:
            _ids("suppress_tokens", self.suppress_tokens)
        if self.eos_token_ids is not None:
            one = isinstance(self.eos_token_ids, int)
            _ids("eos_token_ids", [self.eos_token_ids] if one else self.eos_token_ids)
        _all_are("logits_processors", self.logits_processors, "LogitsProcessor", callable)
        _all_are("stopping_criteria", self.stopping_criteria, "StoppingCriteria", callable)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def eos_ids(self) -> tuple[int, ...] | None:
        """`eos_token_ids` as a tuple, if given."""
        if self.eos_token_ids is None:
            return None
        if isinstance(self.eos_token_ids, int):
            return (self.eos_token_ids,)
        return tuple(self.eos_token_ids)

    def _check_texts(self) -> None:
        if not isinstance(self.stop, str):
            _many("stop", self.stop, "strings")
        if not all(type(s) is str and s for s in self.stop_strings):
            raise ParameterError("stop: a stop string must be text of at least one character")
        _many("bad_words", self.bad_words, "strings or lists of token ids")
        for word in self.bad_words:
            if not isinstance(word, str):
                _ids("bad_words entry", word)
            if not len(word):
                raise ParameterError("bad_words: an entry is empty")


def make_params(
    params: GenerationParams | None = None, changes: dict[str, Any] | None = None
) -> GenerationParams:
    """Parameters with changes by name.

    Raises:
        ParameterError: An unknown name (with the nearest known one), or a value out of range.
    """
    changes = changes or {}
    known = [field.name for field in dataclasses.fields(GenerationParams)]
    for name in changes:
        if name not in known:
            raise ParameterError(f"unknown parameter {name!r}{nearest(name, known)}")
    if params is None:
        return GenerationParams(**changes)
    if not isinstance(params, GenerationParams):
        raise ParameterError(f"params must be GenerationParams, not {type(params).__name__}")
    return dataclasses.replace(params, **changes)


def _whole(name: str, value: Any, low: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ParameterError(f"{name}={value!r} must be a whole number of at least {low}")


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if value is None:
        return
    good = isinstance(value, int | float) and not isinstance(value, bool)
    good = good and math.isfinite(value) and low <= value <= high
    if not good or (open_low and value == low):
        bounds = f"above {low:g}" if open_low else f"at least {low:g}"
        bounds += "" if math.isinf(high) else f" and at most {high:g}"
        raise ParameterError(f"{name}={value!r} must be a number {bounds}")


def _many(name: str, values: Any, what: str) -> None:
    if isinstance(values, str) or not isinstance(values, Collection):
        raise ParameterError(f"{name}={values!r} must be a list of {what}")


def _ids(name: str, values: Any) -> None:
    _many(name, values, "token ids")
    for token in values:
        _whole(f"{name}: token id", token, 0)


def _all_are(name: str, values: Any, kind: str, test: Any) -> None:
    _many(name, values, f"{kind} objects")
    for value in values:
        if not test(value):
            raise ParameterError(f"{name}: {value!r} is not a {kind}")
