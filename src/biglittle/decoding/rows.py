"""A request, and the row that it becomes: tokens, origins, text, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..acceptance.base import Acceptance
from ..engines.base import Prompt, Saved
from ..errors import RowError
from ..lookahead.base import Lookahead
from ..policy import Policy
from ..results import Chunk, FinishReason, Origin, Result, Round, Stats, TokenLogprob
from .sampling import Pipeline
from .stopping import Detokenizer, StopStrings

__all__ = ["Request", "Row"]

Criterion = Callable[..., Any]


@dataclass(slots=True)
class Request:
    """One prompt and how to go on from it, checked and with every default filled in."""

    prompt: Prompt
    policy: Policy
    pipeline: Pipeline
    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    seed: int | None = None
    logprobs: int | None = None
    trace: bool = False
    keep_scores: bool = False
    """Whether the row keeps the processed scores of every token it emits."""
    keep_logits: bool = False
    """Whether the row keeps the raw logits of every token it emits."""
    keep_state: bool = False
    """Whether the row's cached state is saved when it ends, for a next turn."""
    saved: tuple[Saved | None, Saved | None] | None = None
    """The target's and the draft's cached state of an earlier turn."""
    index: int = 0
    """Which prompt and sample of the call."""
    prediction: tuple[int, ...] = ()
    """Tokens that the answer is likely to hold, to be drafted from."""
    on_token: Callable[[int], None] | None = None
    """Called with every committed token."""

    @property
    def keeps_logits(self) -> bool:
        """Whether something of every token's logits is kept."""
        return self.logprobs is not None or self.keep_scores or self.keep_logits


@dataclass(slots=True, eq=False)
class Row:
    """A running request. Owns everything that a request's result depends on."""

    request: Request
    tokenizer: Any
    tokens: list[int] = field(init=False)
    """Prompt and generated tokens; the last one is pending: not yet in the target's cache."""
    prompt_length: int = field(init=False)
    origins: list[Origin] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    trace: list[Round] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    lookahead_state: Any = None
    hold: bool = False
    """Whether the target writes the next token alone."""
    finish_reason: FinishReason | None = None
    error: BaseException | None = None
    saved: tuple[Saved | None, Saved | None] | None = None
    generator: torch.Generator = field(init=False)
    started: float = field(init=False)
    _detokenizer: Detokenizer | None = field(init=False)
    _stops: StopStrings = field(init=False)
    _sent_tokens: int = 0
    _sent_rounds: int = 0
    _sent_text: int = 0

    def __post_init__(self) -> None:
        request = self.request
        self.started = time.perf_counter()
        self.tokens = list(request.prompt.tokens)
        self.prompt_length = len(self.tokens)
        self.stats.prompt_tokens = self.prompt_length
        self.stats.source_tokens = request.prompt.source_length
        saved = request.saved[1] if request.saved else None
        self.expect(saved.shared(self.tokens) if saved else 0)
        seed = request.seed
        if seed is None:  # follows torch.manual_seed, as users of transformers expect
            seed = int(torch.randint(2**62, (1,)).item())
        self.generator = torch.Generator().manual_seed(seed)
        self._stops = StopStrings(request.stop)
        self._detokenizer = Detokenizer(self.tokenizer, self.tokens) if self.tokenizer else None

    def expect(self, known: int) -> None:
        """Let the lookahead begin, for a draft that need not read so many tokens of the prompt."""
        if self.lookahead is not None:
            self.lookahead_state = self.lookahead.initial(self.prompt_length - known)

    @property
    def policy(self) -> Policy:
        """The request's policy."""
        return self.request.policy

    @property
    def lookahead(self) -> Lookahead | None:
        """Its lookahead; None for plain decoding."""
        return self.request.policy.lookahead

    @property
    def acceptance(self) -> Acceptance:
        """Its acceptance rule."""
        return self.request.policy.acceptance

    @property
    def pipeline(self) -> Pipeline:
        """Its processors."""
        return self.request.pipeline

    @property
    def new_tokens(self) -> list[int]:
        """Generated tokens."""
        return self.tokens[self.prompt_length :]

    @property
    def remaining(self) -> int:
        """Tokens that may still be written."""
        return self.request.max_new_tokens - (len(self.tokens) - self.prompt_length)

    @property
    def bound(self) -> bool:
        """Whether other drafts would change what it writes: a policy that is lossy, or samples of a
        seed. Rows beside it may not change what is drafted for it."""
        return not self.policy.lossless or (
            self.pipeline.sampling and self.request.seed is not None
        )

    @property
    def draft_begins(self) -> bool:
        """Whether the draft writes the first token."""
        return self.lookahead is not None and self.acceptance.first == "draft"

    @property
    def most_tokens(self) -> int:
        """Tokens that it may come to, the prompt included."""
        return self.prompt_length + self.request.max_new_tokens

    @property
    def finished(self) -> bool:
        """Whether the row has ended."""
        return self.finish_reason is not None

    def uniforms(self, count: int) -> Tensor:
        """The next `count` numbers of the row's own generator, [count] float64 in [0, 1)."""
        return torch.rand(count, generator=self.generator, dtype=torch.float64)

    def push(self, token: int, origin: Origin) -> bool:
        """Commit one token; whether the row has ended with it."""
        if not self.origins:
            self.stats.first_token_seconds = time.perf_counter() - self.started
        self.tokens.append(token)
        self.origins.append(origin)
        self.stats.new_tokens += 1
        if self.request.on_token is not None:
            self.request.on_token(token)
        piece = self._detokenizer.push(token) if self._detokenizer else ""
        if self._stops.push(piece):
            self.finish(FinishReason.STOP)
        elif token in self.request.eos_ids:
            self.finish(FinishReason.EOS)
        elif self._criteria_met():
            self.finish(FinishReason.STOP)
        elif self.remaining <= 0:
            self.finish(FinishReason.LENGTH)
        return self.finished

    def _criteria_met(self) -> bool:
        if not self.request.criteria:
            return False
        ids = torch.tensor([self.tokens], dtype=torch.long)
        scores = tuple(score[None] for score in self.scores) or None
        return any(bool(torch.as_tensor(c(ids, scores)).all()) for c in self.request.criteria)

    def finish(self, reason: FinishReason) -> None:
        """End the row; the text that was held back is certain now."""
        self.finish_reason = reason
        self.stats.total_seconds = time.perf_counter() - self.started
        if self._detokenizer and not self._stops.stopped:
            if self._stops.push(self._detokenizer.flush()) and reason is FinishReason.LENGTH:
                self.finish_reason = FinishReason.STOP
            self._stops.finish()

    def fail(self, cause: BaseException) -> None:
        """End the row with an error of its own."""
        if isinstance(cause, RowError):
            self.error = cause
        else:
            self.error = RowError(f"{type(cause).__name__}: {' '.join(str(cause).split())}")
            self.error.__cause__ = cause
        try:
            self.finish(FinishReason.ERROR)
        except Exception:  # it was the tokenizer: what it could not read stays unread
            self._stops.finish()

    def result(self) -> Result:
        """The finished row."""
        assert self.finish_reason is not None
        request = self.request
        return Result(
            text=self._stops.text,
            token_ids=tuple(self.new_tokens),
            finish_reason=self.finish_reason,
            origins=tuple(self.origins),
            policy=str(self.policy),
            lossless=self.policy.lossless,
            stats=self.stats,
            logprobs=tuple(self.logprobs) if request.logprobs is not None else None,
            rounds=tuple(self.trace) if request.trace else None,
            error=self.error,
        )

    def take_chunk(self) -> Chunk | None:
        """What is new and safe to show since the last chunk; None if there is nothing."""
        tokens = self.new_tokens[self._sent_tokens :]
        text = self._stops.text[self._sent_text : self._stops.safe]
        if not tokens and not text and not self.finished:
            return None
        origins = self.origins[self._sent_tokens :]
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = tuple(self.logprobs[self._sent_tokens :])
        rounds = tuple(self.trace[self._sent_rounds :]) if self.request.trace else None
        self._sent_tokens += len(tokens)
        self._sent_text += len(text)
        self._sent_rounds = len(self.trace)
        return Chunk(
            index=self.request.index,
            text=text,
            token_ids=tuple(tokens),
            origins=tuple(origins),
            finish_reason=self.finish_reason,
            result=self.result() if self.finished else None,
            logprobs=logprobs,
            rounds=rounds,
        )


def by_key(keys: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """Group indices by equal key, in order of first appearance."""
    groups: dict[Any, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.items())
