"""The best lossless policy, by replay: the text is the target's whatever the lookahead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from ..decoding import Row
from ..diagnosis.predict import Comparison, Prediction, settings
from ..results import Origin
from ..traces import Trace, Traces, read_traces, record
from .lab import PLAIN, Clock, Lab, OutOfTime

__all__ = ["RECORDED", "Lossless", "tune_lossless"]

RECORDED = 20
"""Examples, at most: enough to tell lookaheads apart, which differ by passes, not luck."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lossless:
    """What replay found."""

    policy: str
    """The fastest; "none" where speculation does not pay."""
    predictions: tuple[Prediction, ...]
    """The best setting of every lookahead, fastest first."""
    cost_aware: str
    """The cost-aware lookahead with what was measured."""


def tune_lossless(
    lab: Lab, names: Sequence[str], path: Path, clock: Clock, say: Callable[[int, int], None]
) -> Lossless:
    """Record traces of the first examples, and replay hundreds of settings on them.

    When the time is over, on what was recorded until then; one example at least.

    Args:
        lab: With its costs measured.
        names: Examples.
        path: The trace file.
        clock: The time there is.
        say: Told examples done, and all of them.
    """
    assert lab.costs is not None
    chosen = list(names[:RECORDED])

    def watch(done: int, total: int) -> None:
        say(done, total)
        if done:
            clock.check(0.3)

    try:
        limit = lab.params.max_new_tokens
        traces = record(lab.pair, lab.prompts(chosen), path, progress=watch, max_new_tokens=limit)
    except OutOfTime:
        traces = read_traces(path)
        chosen = chosen[: len(traces)]
    traces = Traces(
        traces.header,
        tuple(_ended(lab, name, trace) for name, trace in zip(chosen, traces, strict=True)),
    )
    families = settings(traces.header.cap, lab.costs.costs[0], modelled=traces.header.chained)
    found = Comparison(traces, lab.costs, families).best()
    best = found[0]
    return Lossless(
        best.policy if best.speedup > 1 else PLAIN, tuple(found), families["cost-aware"][0]
    )


def _ended(lab: Lab, name: str, trace: Trace) -> Trace:
    """A trace up to where the task's stop strings end the answer: recording knows none."""
    row = Row(lab.requests[name], lab.pair.tokenizer)
    length = len(trace.tokens)
    for count, token in enumerate(trace.tokens, start=1):
        if row.push(token, Origin.TARGET):
            length = count
            break
    return dataclasses.replace(
        trace,
        tokens=trace.tokens[:length],
        readable=min(trace.readable, length),
        chain=trace.chain[: max(0, length - 1)],
        branches={at: part for at, part in trace.branches.items() if at < length},
    )
