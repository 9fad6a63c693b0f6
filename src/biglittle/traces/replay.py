"""Replay: what a lookahead rule would have done on recorded prompts, round by round, exactly.

Under lossless greedy decoding the text is the target's, whatever the rule. So what a window
proposes depends only on where it starts, and a trace knows it for every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ParameterError, PolicyError
from ..lookahead.base import Decision, DraftStep, Lookahead
from ..policy import PolicyLike, parse_policy
from ..results import Round
from .base import Proposals, Trace, Traces

__all__ = ["Replay", "oracle", "replay"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The rounds of all prompts, those of a prompt one after another; arrays [rounds]."""

    prompt: Ints
    """Which prompt a round is of."""
    start: Ints
    """Generated tokens before it."""
    drafted: Ints
    accepted: Ints
    fallback: Ints
    """1 where the draft gave up the last position."""
    prompts: int
    new_tokens: int
    """Tokens that were written in all."""
    modelled: bool
    """Whether a model drafts; looking a token up is no pass."""

    @property
    def target_passes(self) -> int:
        """Forwards of the target, the reading of the prompts included."""
        return self.prompts + len(self.prompt)

    @property
    def predicted(self) -> Ints:
        """Draft steps of every round."""
        return self.drafted + self.fallback

    @property
    def draft_passes(self) -> int:
        """Forwards of the draft."""
        return int(self.predicted.sum()) if self.modelled else 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted tokens; 0 without drafts."""
        return float(self.accepted.sum() / max(1, self.drafted.sum()))

    @classmethod
    def join(cls, parts: Sequence[tuple[Ints, Replay]]) -> Replay:
        """Replays of parts of a file's prompts as one of all; with each, which prompts it is of."""
        prompt = np.concatenate([own[part.prompt] for own, part in parts])
        order = prompt.argsort(kind="stable")

        def column(name: str) -> Ints:
            return np.concatenate([getattr(part, name) for _, part in parts])[order]

        return cls(
            prompt=prompt[order],
            start=column("start"),
            drafted=column("drafted"),
            accepted=column("accepted"),
            fallback=column("fallback"),
            prompts=sum(part.prompts for _, part in parts),
            new_tokens=sum(part.new_tokens for _, part in parts),
            modelled=parts[0][1].modelled,
        )

    def rounds(self, prompt: int) -> list[tuple[int, int, bool]]:
        """(drafted, accepted, fallback) of a prompt's rounds."""
        own = self.prompt == prompt
        columns = (self.drafted[own], self.accepted[own], self.fallback[own] > 0)
        return list(zip(*(column.tolist() for column in columns), strict=True))


def replay(traces: Traces, policy: PolicyLike) -> Replay:
    """What a lossless policy would do on every prompt, decoding greedily.

    Raises:
        PolicyError: A lossy policy, whose text is not the target's.
        ParameterError: A window that is longer than what was recorded.
    """
    chosen = parse_policy(policy)
    if not chosen.lossless:
        raise PolicyError(f"policy {str(chosen)!r} is lossy: only a real run tells what it writes")
    windows = windows_of(traces)
    rule = chosen.lookahead
    if rule is None:
        return _walk(windows, lambda rows, prompts: _Drafts.none(len(rows)))
    states: list[Any] = [rule.initial(len(trace.prompt)) for trace in traces]
    if states and states[0] is None:  # what it does depends on the start alone
        every = windows.draft(rule, np.arange(len(windows.room)), [None] * len(windows.room))
        return _walk(windows, lambda rows, prompts: every.of(rows))

    def draft(rows: Ints, prompts: Ints) -> _Drafts:
        found = windows.draft(rule, rows, [states[prompt] for prompt in prompts])
        accepted = np.minimum(found.drafted, windows.matches[rows])
        widest = int((found.drafted + found.fallback).max(initial=0))
        confidence = windows.confidence[torch.from_numpy(windows.index[rows, :widest])].tolist()
        columns = (prompts, found.drafted, accepted, found.fallback)
        for (prompt, count, right, fallback), sure in zip(
            np.stack(columns, axis=1).tolist(), confidence, strict=True
        ):
            seen = Round(count, right, tuple(sure[: count + fallback]), fallback > 0)
            states[prompt] = rule.observe(states[prompt], seen)
        return found

    return _walk(windows, draft)


def oracle(traces: Traces) -> Replay:
    """What a lookahead that knows the target would do: draft exactly what will be accepted."""
    windows = windows_of(traces)
    drafted = np.minimum(windows.matches, windows.room)
    every = _Drafts(drafted, np.zeros_like(drafted))
    return _walk(windows, lambda rows, prompts: every.of(rows))


@dataclass(frozen=True, slots=True, eq=False)
class _Drafts:
    """What windows came to."""

    drafted: Ints
    fallback: Ints

    @classmethod
    def none(cls, count: int) -> _Drafts:
        return cls(np.zeros(count, np.int64), np.zeros(count, np.int64))

    def of(self, rows: Ints) -> _Drafts:
        return _Drafts(self.drafted[rows], self.fallback[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Every window of every prompt, one a row: all that a rule could be asked about."""

    prompts: int
    modelled: bool
    """See `Replay`."""
    offset: Ints
    """The row of a prompt's window at position 0, which does not exist: [prompts]."""
    length: Ints
    """Tokens of the target's output, [prompts]."""
    index: Ints
    """Which proposal is the k-th of a window, [rows, cap]; anything where there is none."""
    available: Ints
    """Proposals of a window, [rows]."""
    closed: npt.NDArray[np.bool_]
    """Whether there are no more because the draft would stop there, [rows]."""
    matches: Ints
    """Leading proposals that are the target's tokens, [rows]."""
    room: Ints
    """The most that may be drafted, [rows]."""
    tokens: Tensor
    """Of all proposals, [proposals]; likewise the next three."""
    confidence: Tensor
    top: Tensor
    entropy: Tensor

    def draft(self, rule: Lookahead, rows: Ints, states: Sequence[Any]) -> _Drafts:
        """Ask a rule about windows, as a drafter does token after token."""
        budget = np.minimum([rule.budget(state) for state in states], self.room[rows])
        count = np.minimum(budget, self.available[rows])  # the most that each could come to
        drafts = _Drafts.none(len(rows))
        if (some := np.flatnonzero(count)).size:
            own = [states[row] for row in some.tolist()]
            last, decisions = self._last(rule, rows[some], own, count[some])
            self._check_recorded(rule, rows[some], budget[some], count[some], decisions)
            drafts.fallback[some] = decisions == Decision.DROP
            drafts.drafted[some] = last + 1 - drafts.fallback[some]
        return drafts

    def _last(
        self, rule: Lookahead, rows: Ints, states: Sequence[Any], count: Ints
    ) -> tuple[Ints, Ints]:
        """Which token is each window's last, and what the rule said of it; of `count` at most."""
        width = int(count.max())
        at = torch.from_numpy(self.index[rows, :width])
        confidence = self.confidence[at]
        steps = self._steps(at, confidence)
        decisions = rule.decide_window(confidence, steps, states).numpy().astype(np.int64)
        stops = (decisions != Decision.CONTINUE) | (np.arange(width) >= count[:, None] - 1)
        last = stops.argmax(axis=1)
        return last, decisions[np.arange(len(rows)), last]

    def _check_recorded(
        self, rule: Lookahead, rows: Ints, budget: Ints, count: Ints, decisions: Ints
    ) -> None:
        """Refuse windows that would have gone on beyond the trace."""
        short = (decisions == Decision.CONTINUE) & (count < budget) & ~self.closed[rows]
        if short.any():
            raise ParameterError(
                f"{rule.name}: a window of more than {int(count[short][0])} tokens, the most that "
                "the trace holds; record with a larger cap, or give the policy a smaller tokens="
            )

    def _steps(self, at: Tensor, confidence: Tensor) -> Iterator[RecordedStep]:
        """The windows' steps; `at` says which proposals they are, [rows, width]."""
        sure = confidence.unbind(dim=1)
        for index, own in enumerate(at.unbind(dim=1)):
            yield RecordedStep(
                index=index,
                tokens=self.tokens[own],
                confidence=sure[index],
                top=sure[index],  # a greedy draft takes its most likely token
                logits=None,
                before=sure[:index],
                recorded=(self.top, self.entropy),
                at=own,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep(DraftStep):
    """A step whose numbers were recorded."""

    recorded: tuple[Tensor, Tensor]
    """Largest probabilities [proposals, k] and entropies [proposals] of a whole file."""
    at: Tensor
    """Which proposal is the rows' own, [rows]."""

    def uncertainty(self, k: int) -> tuple[Tensor, Tensor]:
        """See `DraftStep.uncertainty`."""
        top, entropy = self.recorded
        if k > top.shape[1]:
            raise ParameterError(
                f"the rule looks at {k} probabilities of the draft, and the trace holds "
                f"{top.shape[1]}; record with top={k}"
            )
        return top[self.at, :k], entropy[self.at]


def _walk(windows: Windows, draft: Callable[[Ints, Ints], _Drafts]) -> Replay:
    """Run all prompts' rounds beside each other; `draft` is asked for rows and their prompts."""
    position = np.ones(windows.prompts, np.int64)
    rounds: list[tuple[Ints, ...]] = []
    while (alive := np.flatnonzero(position < windows.length)).size:
        start = position[alive]
        rows = windows.offset[alive] + start
        found = draft(rows, alive)
        accepted = np.minimum(found.drafted, windows.matches[rows])
        rounds.append((alive, start, found.drafted, accepted, found.fallback))
        position[alive] = start + accepted + 1
    table = np.concatenate([np.empty((5, 0), np.int64), *map(np.stack, rounds)], axis=1)
    prompt, start, drafted, accepted, fallback = table[:, table[0].argsort(kind="stable")]
    return Replay(
        prompt=prompt,
        start=start,
        drafted=drafted,
        accepted=accepted,
        fallback=fallback,
        prompts=windows.prompts,
        new_tokens=int(windows.length.sum()),
        modelled=windows.modelled,
    )


@lru_cache(maxsize=4)
def windows_of(traces: Traces) -> Windows:
    """Lay a file's traces out by where a window starts."""
    cap, top = traces.header.cap, traces.header.top
    lay = _chained if traces.header.chained else _unchained
    parts: list[Proposals] = []
    rows: list[_Row] = []
    offset, base = [], 0
    for trace in traces:
        offset.append(len(rows) - 1)
        found, proposals = lay(trace, base, cap)
        rows += found
        parts.append(proposals)
        base += len(proposals)
    proposals = Proposals.join(parts, top)
    width = max([cap, *[len(row.index) for row in rows]])
    index = np.zeros((len(rows), width), np.int64)
    for at, row in enumerate(rows):
        index[at, : len(row.index)] = row.index
    return Windows(
        prompts=len(traces),
        modelled=traces.header.chained,
        offset=np.array(offset, np.int64),
        length=np.array([len(trace.tokens) for trace in traces], np.int64),
        index=index,
        available=np.array([len(row.index) for row in rows], np.int64),
        closed=np.array([row.closed for row in rows], np.bool_),
        matches=np.array([row.matches for row in rows], np.int64),
        room=np.array([row.room for row in rows], np.int64),
        tokens=torch.from_numpy(proposals.tokens.astype(np.int64)),
        confidence=torch.from_numpy(proposals.confidence),
        top=torch.from_numpy(proposals.top),
        entropy=torch.from_numpy(proposals.entropy),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """A window: see `Windows`."""

    index: Ints
    closed: bool
    matches: int
    room: int


def _chained(trace: Trace, base: int, cap: int) -> tuple[list[_Row], Proposals]:
    """Windows along the chain as far as the target agrees, then along the branch."""
    count = len(trace.chain)
    agrees = trace.chain.tokens == np.array(trace.tokens[1 : count + 1])
    first, ends = base + count, {}  # of the branches among the proposals
    for position, branch in trace.branches.items():
        ends[position] = (first, first + len(branch))
        first += len(branch)
    rows: list[_Row] = []
    differs = count + 1  # the first position from here on where the target disagrees
    for start in range(len(trace.tokens) - 1, 0, -1):
        if start <= count and not agrees[start - 1]:
            differs = start
        if start > count:
            rows.append(_Row(np.empty(0, np.int64), True, 0, 0))
            continue
        along = np.arange(base + start - 1, base + min(differs, count))
        branch_ends = ends.get(differs, (0, 0))
        index = np.concatenate([along, np.arange(*branch_ends)])
        # A window that ends before the cap ended because the draft would.
        closed = differs > count or 1 + branch_ends[1] - branch_ends[0] < cap
        rows.append(_Row(index, closed, min(differs, count + 1) - start, _room(trace, start)))
    branches = [trace.branches[position] for position in ends]
    return rows[::-1], Proposals.join([trace.chain, *branches], trace.chain.top.shape[1])


def _unchained(trace: Trace, base: int, cap: int) -> tuple[list[_Row], Proposals]:
    """Windows as they were recorded, one a start."""
    rows = []
    starts = range(1, len(trace.tokens))
    for start in starts:
        tokens = trace.branches[start].tokens
        wanted = np.array(trace.tokens[start : start + len(tokens)])
        same = tokens[: len(wanted)] == wanted
        matches = len(same) if same.all() else int(same.argmin())
        index = np.arange(base, base + len(tokens))
        base += len(tokens)
        rows.append(_Row(index, len(tokens) < cap, matches, _room(trace, start)))
    return rows, Proposals.join([trace.branches[at] for at in starts], trace.chain.top.shape[1])


def _room(trace: Trace, start: int) -> int:
    """The most that a window may draft: the target adds a token of its own, and the draft's
    context and vocabulary end somewhere."""
    if start > trace.readable:
        return 0
    room = trace.limit - start - 1
    if trace.context is not None:
        room = min(room, trace.context - len(trace.prompt) - start + 1)
    return max(0, room)
