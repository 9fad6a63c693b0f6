"""What a generation returns: text, tokens, where each came from, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Chunk", "FinishReason", "Origin", "Result", "Round", "Stats", "TokenLogprob"]


class Origin(StrEnum):
    """Which model a token came from."""

    ACCEPTED = "accepted"
    """Drafted, and accepted by the target."""
    CORRECTED = "corrected"
    """The target's replacement for a drafted token that it rejected."""
    TARGET = "target"
    """Written by the target: after an accepted window, at a fallback, or without a draft."""


class FinishReason(StrEnum):
    """Why a row ended."""

    EOS = "eos"
    """An end-of-sequence token."""
    STOP = "stop"
    """A stop string, or a stopping criterion."""
    LENGTH = "length"
    """`max_new_tokens`, or the end of the context."""
    CANCELLED = "cancelled"
    ERROR = "error"
    """An exception in the request's own code; see `Result.error`."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probabilities of one position under the target, before any processor."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens there, best first, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one row: for traces, and what lookahead rules learn from."""

    drafted: int
    accepted: int
    confidence: tuple[float, ...]
    """The draft's probability of each token it predicted: the drafted ones, and then one that it
    gave up."""
    fallback: bool
    """Whether the draft gave up the last position."""
    rows: int = 1
    """Rows in the target's pass, where the lookahead may go by their number; else 1."""

    @property
    def predicted(self) -> int:
        """Tokens that the draft predicted, one that it gave up included."""
        return self.drafted + self.fallback


@dataclass(slots=True)
class Stats:
    """What a row cost, and how well drafting went.

    Percentages are of the tokens that the draft predicted (`predicted`), as in Kim et al. 2023:
    `fallback_rate` counts predictions that were given up for the target to make, `rollback_rate`
    predictions that the target replaced.

    Times are wall-clock seconds of the rounds in which the row took part; in a batch they are
    shared with the rows beside it, so they do not add up over rows.
    """

    rounds: int = 0
    target_passes: int = 0
    """Forwards of the target with this row, prefill included."""
    draft_passes: int = 0
    """Forwards of the draft with this row."""
    prompt_tokens: int = 0
    source_tokens: int = 0
    """Tokens that an encoder read."""
    reused_tokens: int = 0
    """Prompt tokens that an earlier turn or another row had computed already."""
    new_tokens: int = 0
    predicted: int = 0
    """Tokens that the draft predicted, those it gave up included."""
    drafted: int = 0
    """Tokens sent to verification."""
    accepted: int = 0
    """Drafted tokens that stayed."""
    fallbacks: int = 0
    rollbacks: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    total_seconds: float = 0.0
    first_token_seconds: float = 0.0
    """From admission to the first token."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted tokens, 0 … 1; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def read_tokens(self) -> int:
        """Tokens of what was asked: the prompt's, and the encoder's where there is one."""
        return self.prompt_tokens + self.source_tokens

    @property
    def accepted_per_round(self) -> float:
        """Mean accepted drafted tokens a round."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean emitted tokens a round."""
        return self.new_tokens / self.rounds if self.rounds else 0.0

    @property
    def fallback_rate(self) -> float:
        """Fallbacks of predicted tokens, 0 … 1."""
        return self.fallbacks / self.predicted if self.predicted else 0.0

    @property
    def rollback_rate(self) -> float:
        """Rollbacks of predicted tokens, 0 … 1."""
        return self.rollbacks / self.predicted if self.predicted else 0.0

    @property
    def outside_seconds(self) -> float:
        """Time in neither model."""
        return max(0.0, self.total_seconds - self.draft_seconds - self.target_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over the row's whole time, prefill included."""
        return self.new_tokens / self.total_seconds if self.total_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Every field and rate, for JSON."""
        rates = (
            "acceptance_rate",
            "accepted_per_round",
            "tokens_per_round",
            "fallback_rate",
            "rollback_rate",
            "outside_seconds",
            "tokens_per_second",
        )
        return {**asdict(self), **{name: getattr(self, name) for name in rates}}

    @classmethod
    def total(cls, parts: Iterable[Stats]) -> Stats:
        """The sum of rows that ran one after another."""
        total = cls()
        for part in parts:
            for name, value in asdict(part).items():
                setattr(total, name, getattr(total, name) + value)
        return total


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a stream yields: what one round added to one row."""

    index: int
    """Which prompt (and sample) of the call, from 0."""
    text: str
    """Text that is certain now; never past a stop string, never half a character."""
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None = None
    """Set on a row's last chunk."""
    result: Result | None = None
    """The whole result, on a row's last chunk."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One a token, if asked for."""
    rounds: tuple[Round, ...] | None = None
    """Those that wrote the tokens, if asked for; a prompt's end gives a token without a round."""


@dataclass(frozen=True, slots=True)
class Result:
    """One finished row."""

    text: str
    """Generated text, without special tokens and without the stop string that ended it."""
    token_ids: tuple[int, ...]
    """Generated tokens, an EOS that ended them included."""
    finish_reason: FinishReason
    origins: tuple[Origin, ...]
    """Where each token came from."""
    policy: str
    lossless: bool
    """Whether the policy guarantees the target's own output."""
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One a token, if asked for."""
    rounds: tuple[Round, ...] | None = None
    """One a round, if asked for."""
    error: BaseException | None = field(default=None, compare=False)
    """What ended the row, where `finish_reason` is ERROR."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data: dict[str, Any] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason.value,
            "origins": [origin.value for origin in self.origins],
            "policy": self.policy,
            "lossless": self.lossless,
            "stats": self.stats.as_dict(),
        }
        if self.logprobs is not None:
            data["logprobs"] = [asdict(entry) for entry in self.logprobs]
        if self.rounds is not None:
            data["rounds"] = [asdict(entry) for entry in self.rounds]
        if self.error is not None:
            data["error"] = str(self.error)
        return data
