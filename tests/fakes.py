"""Scripted stand-ins: what they predict is a table, so that a test knows every token beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from biglittle.decoding import Engine, Request, Row
from biglittle.decoding.sampling import Pipeline
from biglittle.drafters import Draft, Drafter, ModelDrafter, RowDraft
from biglittle.drafters.base import Decide
from biglittle.engines.base import Limits, Prompt, Saved
from biglittle.engines.timing import Stopwatch
from biglittle.lookahead import DraftStep
from biglittle.policy import PolicyLike, parse_policy
from biglittle.results import Result, Round

Script = Callable[[tuple[int, ...]], Tensor]
"""Logits [vocab] float64 after a prefix."""

CPU = torch.device("cpu")


class Table:
    """A script written down: prefix → logits. After any other prefix it predicts `lost`."""

    def __init__(self, vocab: int, lost: int) -> None:
        self.vocab = vocab
        self.rows: dict[tuple[int, ...], Tensor] = {}
        self.lost = self.peak(lost, 0.9)

    def __call__(self, prefix: tuple[int, ...]) -> Tensor:
        return self.rows.get(prefix, self.lost)

    def peak(self, token: int, probability: float) -> Tensor:
        """Logits that give one token so much probability and share the rest evenly."""
        rest = (1 - probability) / (self.vocab - 1)
        row = torch.full((self.vocab,), rest, dtype=torch.float64)
        row[token] = probability
        return row.log()

    def write(
        self, prompt: Sequence[int], text: Sequence[int], confidence: Sequence[float] | float = 0.9
    ) -> None:
        """Predict `text` after `prompt`, its tokens with so much probability."""
        for n, token in enumerate(text):
            sure = confidence if isinstance(confidence, float) else confidence[n]
            self.rows[(*prompt, *text[:n])] = self.peak(token, sure)


class Markov:
    """A script that looks at the last token only: row i of `logits` follows token i."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits.double()

    def __call__(self, prefix: tuple[int, ...]) -> Tensor:
        return self.logits[prefix[-1]]


class ScriptedRunner:
    """A `Runner` whose logits are a script's.

    As strict as the protocol allows: logits are borrowed (the next call turns them into NaN),
    positions past a row's count are NaN, slots past a row's length keep their garbage, and what
    exceeds `limits` is an error.
    """

    def __init__(
        self, script: Script, vocab: int, *, context: int | None = None, rows: int | None = None
    ) -> None:
        self.name = "scripted"
        self.script = script
        self.vocab = vocab
        self.device = CPU
        self.limits = Limits(context, rows)
        self.lengths: list[int] = []
        self.reused = 0
        self.stopwatch = Stopwatch(CPU)
        self.slots: list[list[int]] = []
        """What is in the cache, beyond the rows' lengths too."""
        self.forwards: list[tuple[int, ...]] = []
        """The counts of every forward."""
        self.admitted = 0
        """Prompts read."""
        self.reads: list[int] = []
        """Tokens of every part of a prompt that was read."""
        self._lent: Tensor | None = None

    def cached(self, row: int) -> list[int]:
        """The tokens that a row has in the cache."""
        return self.slots[row][: self.lengths[row]]

    @torch.inference_mode()
    def admit(
        self, prompt: Prompt, saved: Saved | None = None, *, most: int | None = None
    ) -> Tensor:
        """See `Runner.admit`."""
        self.reused = known = saved.shared(prompt.tokens) if saved else 0
        self._add_row(saved.state[:known] if saved else [])
        self.admitted += 1
        return self.read(len(self.lengths) - 1, prompt.tokens[known:][:most])

    @torch.inference_mode()
    def read(self, row: int, tokens: Sequence[int]) -> Tensor:
        """See `Runner.read`."""
        assert tokens
        self.reads.append(len(tokens))
        self._append(row, list(tokens))
        return self._lend(self._after(tuple(self.cached(row)))[None].clone())

    def fork(self, row: int, length: int | None = None) -> int:
        """See `Runner.fork`."""
        length = self.lengths[row] if length is None else length
        self._add_row(self.cached(row)[:length])
        return length

    def swap(self, a: int, b: int) -> None:
        """See `Runner.swap`."""
        for held in (self.lengths, self.slots):
            own: Any = held
            own[a], own[b] = own[b], own[a]

    @torch.inference_mode()
    def forward(self, tokens: Tensor, counts: Sequence[int], *, last: bool = False) -> Tensor:
        """See `Runner.forward`."""
        rows, width = tokens.shape
        assert rows == len(counts) <= len(self.lengths)
        assert max(counts) <= width
        self.forwards.append(tuple(counts))
        logits = torch.full((rows, width, self.vocab), torch.nan, dtype=torch.float64)
        for row, (ids, count) in enumerate(zip(tokens.tolist(), counts, strict=True)):
            self._append(row, ids[:count])
            prefix = tuple(self.cached(row))
            for position in range(count):
                logits[row, position] = self._after(prefix[: len(prefix) - count + position + 1])
        if last:
            logits = logits[torch.arange(rows), torch.tensor(counts) - 1][:, None]
        return self._lend(logits)

    def truncate(self, lengths: Sequence[int]) -> None:
        """See `Runner.truncate`."""
        for row, length in enumerate(lengths):
            self.lengths[row] = min(self.lengths[row], length)

    def release(self, row: int) -> None:
        """See `Runner.release`."""
        length, slots = self.lengths.pop(), self.slots.pop()
        if row < len(self.lengths):
            self.lengths[row], self.slots[row] = length, slots

    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        """See `Runner.save`."""
        state = self.cached(row)
        assert state == list(tokens[: len(state)])
        return Saved(tuple(state), state)

    def _after(self, prefix: tuple[int, ...]) -> Tensor:
        with self.stopwatch:
            return self.script(prefix)

    def _add_row(self, tokens: list[int]) -> None:
        self.lengths.append(0)
        self.slots.append([])
        assert self.limits.rows is None or len(self.lengths) <= self.limits.rows
        self._append(len(self.lengths) - 1, tokens)

    def _append(self, row: int, tokens: list[int]) -> None:
        assert all(0 <= token < self.vocab for token in tokens)
        start, end = self.lengths[row], self.lengths[row] + len(tokens)
        assert self.limits.context is None or end <= self.limits.context
        self.slots[row][start:end] = tokens
        self.lengths[row] = end

    def _lend(self, logits: Tensor) -> Tensor:
        if self._lent is not None:
            self._lent.fill_(torch.nan)
        self._lent = logits
        return logits


Plan = Callable[[Sequence[int], int], Sequence[tuple[int, float]]]
"""(a row's tokens, budget) → drafted tokens with their probabilities."""


@dataclass
class ScriptedDrafter:
    """A `Drafter` that proposes what a plan says, and checks that it is kept in step."""

    plan: Plan
    context: int | None = None
    max_rows: int | None = None
    reads_target = False
    rows: list[Row] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return 0.0

    def admit(self, row: Row, saved: Saved | None = None, **options: Any) -> None:
        self.rows.append(row)

    def propose(
        self, rows: Sequence[Row], budgets: Sequence[int], decide: Decide, **options: Any
    ) -> Draft:
        assert self.rows == list(rows)
        plans = [
            list(self.plan(row.tokens, budget))[:budget]
            for row, budget in zip(rows, budgets, strict=True)
        ]
        drafts = [RowDraft([], [], open=bool(plan)) for plan in plans]
        before: list[Tensor] = []
        for index in range(max(map(len, plans), default=0)):
            now = [plan[index] if index < len(plan) else (0, 1.0) for plan in plans]
            tokens = torch.tensor([token for token, _ in now])
            sure = torch.tensor([confidence for _, confidence in now])
            step = DraftStep(index, tokens, sure, sure, None, tuple(before))
            before.append(sure)
            decisions = decide(step).tolist()
            for row, draft, plan, (token, confidence), decision in zip(
                rows, drafts, plans, now, decisions, strict=True
            ):
                if draft.open:
                    last = index + 1 == len(plan) or token in row.request.eos_ids
                    draft.push(token, decision, confidence, last=last)
        return Draft(drafts)

    def truncate(self, lengths: Sequence[int]) -> None:
        assert len(lengths) == len(self.rows)

    def release(self, row: int) -> None:
        last = self.rows.pop()
        if row < len(self.rows):
            self.rows[row] = last

    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        return None


class ByteTokenizer:
    """UTF-8 bytes as tokens; ids from 256 up are special and have no text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


def request(
    prompt: Sequence[int],
    policy: PolicyLike = "static:tokens=5",
    *,
    new: int = 12,
    eos: Iterable[int] = (),
    sampling: bool = False,
    pipeline: Pipeline | None = None,
    **options: Any,
) -> Request:
    """A request with a trace, as `Pair` would build it; `sampling` at temperature 1."""
    return Request(
        prompt=Prompt(tuple(prompt)),
        policy=parse_policy(policy),
        pipeline=Pipeline(sampling=sampling) if pipeline is None else pipeline,
        max_new_tokens=new,
        eos_ids=frozenset(eos),
        trace=True,
        **options,
    )


def round_of(drafted: int, accepted: int, confidence: float = 0.7) -> Round:
    """A round whose drafted tokens all had the same confidence."""
    return Round(drafted, accepted, (confidence,) * drafted, fallback=False)


def engine_of(target: ScriptedRunner, drafter: Drafter | None, tokenizer: Any = None) -> Engine:
    """An engine that may emit all that its target knows."""
    return Engine(target, drafter, tokenizer, vocab=target.vocab)


def check_caches(engine: Engine) -> None:
    """A row's cache holds its committed tokens minus the pending one; a draft's, a part of them."""
    target = engine.target
    assert isinstance(target, ScriptedRunner)
    committed = [row.tokens[:-1] for row in engine.rows]
    cached = [target.cached(i) for i in range(len(target.lengths))]
    assert cached[: len(committed)] == committed
    reading = [] if engine._reading is None else [engine._reading.tokens]
    for row, read in zip(reading, cached[len(committed) :], strict=True):
        assert read == row[: len(read)]
        assert len(read) < len(row)
    if isinstance(engine.drafter, ModelDrafter):
        draft = engine.drafter.runner
        assert isinstance(draft, ScriptedRunner)
        for i, length in enumerate(draft.lengths):
            assert draft.cached(i) == committed[i][:length]


def finish(engine: Engine) -> None:
    """Step until done, checking the caches after every step."""
    while engine.busy:
        engine.step()
        check_caches(engine)


def run(engine: Engine, requests: Sequence[Request]) -> list[Result]:
    """Decode requests together, checking the caches after every step."""
    rows = [engine.admit(request) for request in requests]
    finish(engine)
    return [row.result() for row in rows]
