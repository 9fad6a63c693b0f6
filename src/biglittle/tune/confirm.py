"""Confirmation: what was promised, looked at on prompts that the search has not seen."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..bench.records import Header, Log
from ..bench.runner import Bench
from ..bench.summary import Interval, bootstrap, speedup
from ..bench.systems import Ours
from ..policy import parse_policy
from .lab import PLAIN, Lab, OutOfTime

__all__ = ["MOST", "Timed", "time_policies"]

MOST = 20
"""Examples that are timed."""
LEAST_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Timed:
    """A policy timed beside the target alone, one text at a time, in turn."""

    examples: int
    speedup: Interval
    """After the prompt was read, as the prediction has it."""
    whole: Interval
    """The reading of the prompt included."""
    over_lossless: Interval | None
    """Its speed over that of the best lossless policy; None where it is that policy."""


def time_policies(
    lab: Lab,
    policy: str,
    lossless: str,
    names: Sequence[str],
    folder: Path,
    header: Header,
    check: Callable[[], None],
    say: Callable[[int, int], None],
) -> Timed:
    """Time the target alone, the best lossless policy and another one, in turn.

    Results are kept in the folder as they come. When `check` says that the time is over, what was
    timed until then counts.

    Raises:
        OutOfTime: The time was over before anything was timed.
    """
    policies = list(dict.fromkeys((PLAIN, lossless, policy)))
    examples = {example.id: example for example in lab.task.examples}
    task = dataclasses.replace(
        lab.task, examples=tuple(examples[name] for name in names[:MOST]), metrics=()
    )
    name = hashlib.sha256(" ".join(policies).encode()).hexdigest()[:8]
    settings = {**header.settings, "systems": policies}
    log = Log(folder / f"timed-{name}.jsonl", dataclasses.replace(header, settings=settings))
    systems = [Ours(lab.pair, parse_policy(one)) for one in policies]
    bench = Bench(lab.pair, systems, [task], lab.params, log)
    try:
        if bench.left:
            check()
        for record in bench.run():
            say(len(log.records), len(bench.steps))
            if all((record.task, record.example, one) in log.records for one in policies):
                check()
    except OutOfTime:
        if not _complete(log, task.name, policies):
            raise
    return _timed(log, task.name, policy, lossless)


def _complete(log: Log, task: str, policies: Sequence[str]) -> list[str]:
    """Examples that were timed under all policies."""
    examples = dict.fromkeys(example for _, example, _ in log.records)
    return [
        example
        for example in examples
        if all((task, example, policy) in log.records for policy in policies)
    ]


def _timed(log: Log, task: str, policy: str, lossless: str) -> Timed:
    names = _complete(log, task, (PLAIN, lossless, policy))

    def times(system: str, *, reading: bool) -> tuple[list[float], list[float]]:
        """Seconds and tokens of every example; without `reading` the prompt, which takes the
        target equally long under every policy."""
        seconds, tokens = [], []
        for name in names:
            (plain,), (answer,) = (log.records[task, name, s].answers for s in (PLAIN, system))
            read = 0.0 if reading else plain.stats.first_token_seconds
            seconds.append(max(LEAST_SECONDS, answer.seconds - read))
            tokens.append(float(len(answer.tokens)))
        return seconds, tokens

    def over(base: str, *, reading: bool = False) -> Interval:
        return bootstrap(speedup, *times(base, reading=reading), *times(policy, reading=reading))

    return Timed(
        len(names),
        over(PLAIN),
        over(PLAIN, reading=True),
        None if policy == lossless else over(lossless),
    )
