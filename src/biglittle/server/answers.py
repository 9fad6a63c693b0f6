"""Results as OpenAI writes them: whole, or in chunks of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..policy import Policy
from ..results import Chunk, FinishReason, Result, TokenLogprob
from .details import Details

__all__ = ["Answer", "ChatAnswer", "TextAnswer"]

REASONS = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}
LOWEST = -9999.0  # OpenAI's stand-in for minus infinity, which JSON has not


@dataclass(kw_only=True)
class Answer(ABC):
    """The answer to one request.

    Attributes:
        id: Of the answer.
        created: Seconds since the epoch.
        model: The model's name.
        policy: What made it.
        choices: Rows of the request.
        samples: Of them, for each prompt.
        tokenizer: For the texts of tokens.
        usage: Whether a stream ends with the usage.
        logprobs: Whether log-probabilities are shown.
        details: Of every choice; None where nobody asked.
    """

    prefix: ClassVar[str]
    whole: ClassVar[str]
    part: ClassVar[str]

    id: str
    created: int
    model: str
    policy: Policy
    choices: int
    samples: int
    tokenizer: Any
    usage: bool
    logprobs: bool
    details: tuple[Details, ...] | None = None
    results: dict[int, Result] = field(default_factory=dict)
    """Of choices that are complete."""

    def take(self, chunk: Chunk) -> None:
        """Remember a choice's end."""
        if chunk.result is not None:
            self.results[chunk.index] = chunk.result

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._whole(index, self.results[index]) for index in range(self.choices)]
        return {**self._head(self.whole), "choices": choices, "usage": self._usage()}

    def opening(self) -> Iterator[dict[str, Any]]:
        """What a stream begins with."""
        return iter(())

    def events(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """What a chunk adds to a stream."""
        self.take(chunk)
        details = self.details[chunk.index].take(chunk) if self.details else None
        if chunk.text or (self.logprobs and chunk.logprobs) or details:
            yield self._event(_detailed(self._delta(chunk), details))
        if chunk.finish_reason is not None:
            yield self._event(self._end(chunk.index, REASONS[chunk.finish_reason]))

    def closing(self) -> dict[str, Any] | None:
        """What a stream ends with, if anything."""
        if not self.usage:
            return None
        return {**self._head(self.part), "choices": [], "usage": self._usage()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "policy": str(self.policy),
            "lossless": self.policy.lossless,
        }

    def _event(self, choice: dict[str, Any]) -> dict[str, Any]:
        event = {**self._head(self.part), "choices": [choice]}
        return {**event, "usage": None} if self.usage else event

    def _whole(self, index: int, result: Result) -> dict[str, Any]:
        details = self.details[index].whole(result) if self.details else None
        return _detailed(self._choice(index, result), details)

    def _usage(self) -> dict[str, Any]:
        stats = [self.results[index].stats for index in range(self.choices)]
        prompts = stats[:: self.samples]  # a prompt's samples read it once
        prompt, completion = sum(s.read_tokens for s in prompts), sum(s.new_tokens for s in stats)
        accepted, drafted = sum(s.accepted for s in stats), sum(s.drafted for s in stats)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(s.reused_tokens for s in prompts)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
                "reasoning_tokens": 0,
            },
        }

    @abstractmethod
    def _choice(self, index: int, result: Result) -> dict[str, Any]: ...

    @abstractmethod
    def _delta(self, chunk: Chunk) -> dict[str, Any]: ...

    @abstractmethod
    def _end(self, index: int, reason: str) -> dict[str, Any]: ...

    def _text(self, token: int) -> str:
        text: str = self.tokenizer.decode([token], skip_special_tokens=False)
        return text


def _detailed(choice: dict[str, Any], details: dict[str, Any] | None) -> dict[str, Any]:
    return choice if details is None else {**choice, "details": details}


@dataclass(kw_only=True)
class ChatAnswer(Answer):
    """Of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def opening(self) -> Iterator[dict[str, Any]]:
        """A delta with the role, for every choice."""
        for index in range(self.choices):
            delta = {"role": "assistant", "content": ""}
            yield self._event(
                {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            )

    def _choice(self, index: int, result: Result) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": result.text, "refusal": None},
            "logprobs": self._logprobs(result.logprobs),
            "finish_reason": REASONS[result.finish_reason],
        }

    def _delta(self, chunk: Chunk) -> dict[str, Any]:
        return {
            "index": chunk.index,
            "delta": {"content": chunk.text},
            "logprobs": self._logprobs(chunk.logprobs),
            "finish_reason": None,
        }

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}

    def _logprobs(self, found: tuple[TokenLogprob, ...] | None) -> dict[str, Any] | None:
        if found is None or not self.logprobs:
            return None
        content = [
            {
                **self._entry(entry.token, entry.logprob),
                "top_logprobs": [self._entry(token, value) for token, value in entry.top],
            }
            for entry in found
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        text = self._text(token)
        # Of a token that holds a part of a character, the text does not tell the bytes.
        raw = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": max(value, LOWEST), "bytes": raw}


@dataclass(kw_only=True)
class TextAnswer(Answer):
    """Of `/v1/completions`."""

    prefix = "cmpl"
    whole = part = "text_completion"

    _offsets: dict[int, int] = field(default_factory=dict, init=False)
    """Characters of the choices whose log-probabilities were written so far."""

    def _choice(self, index: int, result: Result) -> dict[str, Any]:
        return {
            "index": index,
            "text": result.text,
            "logprobs": self._logprobs(index, result.logprobs),
            "finish_reason": REASONS[result.finish_reason],
        }

    def _delta(self, chunk: Chunk) -> dict[str, Any]:
        logprobs = self._logprobs(chunk.index, chunk.logprobs)
        return {
            "index": chunk.index,
            "text": chunk.text,
            "logprobs": logprobs,
            "finish_reason": None,
        }

    def _end(self, index: int, reason: str) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": reason}

    def _logprobs(
        self, index: int, found: tuple[TokenLogprob, ...] | None
    ) -> dict[str, Any] | None:
        if found is None or not self.logprobs:
            return None
        tokens = [self._text(entry.token) for entry in found]
        offsets = []
        offset = self._offsets.get(index, 0)
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        self._offsets[index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [max(entry.logprob, LOWEST) for entry in found],
            "top_logprobs": [
                {self._text(token): max(value, LOWEST) for token, value in entry.top}
                for entry in found
            ],
            "text_offset": offsets,
        }
