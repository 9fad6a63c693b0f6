"""The oracle's lookahead beside the measured ones, for one example.

An oracle drafts exactly as many tokens as the target will accept. What it would do follows from a
trace of the target's greedy output and the draft's proposals along it (`biglittle.traces`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..traces import Replay, oracle, record, replay
from .report import Lookaheads
from .runner import Bench, next_prompt
from .systems import PLAIN

__all__ = ["with_oracle"]

STATIC = "static"
"""The constant lookahead, which the article sets the oracle beside."""


def with_oracle(run: Bench, measured: Lookaheads, path: Path) -> Lookaheads:
    """The oracle's rounds, and static lookahead's if that did not run, before the measured ones.

    Args:
        run: A greedy run of a pair with a draft.
        measured: What its policies did on an example.
        path: Of the trace file, which is made.
    """
    task = next(task for task in run.tasks if task.name == measured.task)
    example = next(example for example in task.examples if example.id == measured.example)
    limit = run.params.max_new_tokens
    path.unlink(missing_ok=True)  # of a run with other settings, perhaps; it is quickly made
    traces = record(run.pair, [next_prompt(run.pair, example)], path, max_new_tokens=limit)
    # The trace knows no stop strings; rounds after the one that ended the answer do not count.
    length = len(run.log.records[measured.task, measured.example, PLAIN].tokens[0])

    def drafted(found: Replay) -> list[int]:
        return [int(count) for count in found.drafted[found.start < length]]

    known = {"oracle": drafted(oracle(traces))}
    if STATIC not in measured.rounds:
        known[STATIC] = drafted(replay(traces, STATIC))
    return replace(measured, rounds={**known, **measured.rounds})
