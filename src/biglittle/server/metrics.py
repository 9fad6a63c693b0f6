"""What Prometheus is told. Names are vLLM's where it counts the same, so that its dashboards work;
the rest begins with `biglittle:`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .answers import REASONS

if TYPE_CHECKING:
    from ..decoding import Row
    from ..policy import Policy
    from .scheduler import Scheduler

__all__ = ["Metrics", "Progress"]

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
LONG = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960)
FIRST = (*SHORT, *LONG[8:])
COUNTS = tuple(k * 10**e for e in range(5) for k in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a row is, or what a step added: the counters of `Stats` that metrics follow."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    fallbacks: int = 0
    rollbacks: int = 0
    new_tokens: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0

    @classmethod
    def of(cls, row: Row) -> Progress:
        """A row's, now."""
        return cls(*(getattr(row.stats, field.name) for field in fields(cls)))

    def __sub__(self, other: Progress) -> Progress:
        return Progress(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Progress)))


class Metrics:
    """The counters of one server, in a registry of their own.

    Args:
        model: Value of the label `model_name`.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self.gauges = {
            "vllm:num_requests_running": "Rows that decode",
            "vllm:num_requests_waiting": "Rows that wait",
            "vllm:kv_cache_usage_perc": "K/V tokens reserved, of the limit; 0 … 1",
            "biglittle:cached_tokens": "Tokens of rows in the target's K/V cache",
            "biglittle:kept_tokens": "Tokens of ended rows whose state is kept",
        }
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts")
        self.generated = self._counter("vllm:generation_tokens", "Tokens written")
        self.reused = self._counter("vllm:prefix_cache_hits", "Prompt tokens not computed again")
        self.asked = self._counter("vllm:prefix_cache_queries", "Prompt tokens asked for")
        self.succeeded = self._counter(
            "vllm:request_success", "Rows that ended well", "finished_reason"
        )
        self.failures = self._counter("biglittle:request_failure", "Requests that failed", "error")
        self.answers = self._counter("biglittle:http_responses", "Answers", "path", "status")
        self.first = self._histogram("vllm:time_to_first_token_seconds", "From arrival", FIRST)
        self.between = self._histogram("vllm:inter_token_latency_seconds", "Between tokens", SHORT)
        self.queued = self._histogram("vllm:request_queue_time_seconds", "Before a row began", LONG)
        self.whole = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to end", LONG)
        self.prompt_sizes = self._histogram("vllm:request_prompt_tokens", "Tokens", COUNTS)
        self.answer_sizes = self._histogram("vllm:request_generation_tokens", "Tokens", COUNTS)
        self.drafts = self._counter("vllm:spec_decode_num_drafts", "Rounds with a draft")
        self.drafted = self._counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted")
        self.accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Of them, accepted")
        self.by_position = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted, by place", "position"
        )
        self.rounds = self._counter("biglittle:rounds", "Rounds of rows", "policy")
        self.decisions = self._counter(
            "biglittle:lookahead_decisions",
            "What the lookahead made of a round: keep a window, drop its last token, or none",
            "policy",
            "decision",
        )
        self.fallbacks = self._counter("biglittle:fallbacks", "Positions given up by the draft")
        self.rollbacks = self._counter("biglittle:rollbacks", "Windows cut by the target")
        self.seconds = self._counter("biglittle:engine_seconds", "Where time goes", "part")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        found = Counter(name, text, ("model_name", *labels), registry=self.registry)
        if not labels:
            found.labels(self._model)  # it is there from the start, at 0
        return found

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, ("model_name",), registry=self.registry, buckets=buckets)

    def watch(self, scheduler: Scheduler) -> None:
        """Read the gauges off a scheduler."""
        read = (
            lambda: scheduler.running,
            lambda: scheduler.waiting,
            lambda: scheduler.cache_share,
            lambda: scheduler.cached_tokens,
            lambda: scheduler.kept_tokens,
        )
        for (name, text), function in zip(self.gauges.items(), read, strict=True):
            gauge = Gauge(name, text, ("model_name",), registry=self.registry)
            gauge.labels(self._model).set_function(function)

    def text(self) -> bytes:
        """All of them, in Prometheus' format."""
        return generate_latest(self.registry)

    # What the scheduler tells.

    def started(self, seconds: float) -> None:
        """A row began so long after its arrival."""
        self.queued.labels(self._model).observe(seconds)

    def stepped(self, seconds: float, added: Sequence[Progress]) -> None:
        """A step of so many seconds, and what it added to its rows, which share its time."""
        target = max((part.target_seconds for part in added), default=0.0)
        draft = max((part.draft_seconds for part in added), default=0.0)
        parts = {"target": target, "draft": draft, "outside": seconds - target - draft}
        for name, value in parts.items():
            self.seconds.labels(self._model, name).inc(max(0.0, value))

    def progressed(self, row: Row, added: Progress, gap: float, *, first: bool) -> None:
        """What a step added to a row, `gap` seconds after its last tokens, or its arrival."""
        self.generated.labels(self._model).inc(added.new_tokens)
        if added.new_tokens and first:
            self.first.labels(self._model).observe(gap)
        elif added.new_tokens:
            between = self.between.labels(self._model)
            for _ in range(added.new_tokens):
                between.observe(gap / added.new_tokens)
        if added.rounds:
            self._round(row.policy, added)

    def _round(self, policy: Policy, added: Progress) -> None:
        name = family(policy)
        self.rounds.labels(self._model, name).inc()
        decision = "drop" if added.fallbacks else "keep" if added.drafted else "none"
        self.decisions.labels(self._model, name, decision).inc()
        self.fallbacks.labels(self._model).inc(added.fallbacks)
        self.rollbacks.labels(self._model).inc(added.rollbacks)
        if added.drafted:
            self.drafts.labels(self._model).inc()
            self.drafted.labels(self._model).inc(added.drafted)
            self.accepted.labels(self._model).inc(added.accepted)
            for position in range(added.accepted):
                self.by_position.labels(self._model, str(position)).inc()

    def finished(self, row: Row, seconds: float) -> None:
        """A row ended well, so long after its arrival."""
        assert row.finish_reason is not None
        stats = row.stats
        self.succeeded.labels(self._model, REASONS[row.finish_reason]).inc()
        self.whole.labels(self._model).observe(seconds)
        self.prompt_tokens.labels(self._model).inc(stats.read_tokens)
        self.asked.labels(self._model).inc(stats.read_tokens)
        self.reused.labels(self._model).inc(stats.reused_tokens)
        self.prompt_sizes.labels(self._model).observe(stats.read_tokens)
        self.answer_sizes.labels(self._model).observe(stats.new_tokens)

    def failed(self, error: Exception) -> None:
        """A request failed."""
        self.failures.labels(self._model, type(error).__name__).inc()

    def answered(self, path: str, status: int) -> None:
        """An answer was sent."""
        self.answers.labels(self._model, path, str(status)).inc()


def family(policy: Policy) -> str:
    """A policy without its options, of which there are too many for a label."""
    return re.sub(r":[^+]*", "", str(policy))
