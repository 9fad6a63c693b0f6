"""What a run's records say: a row for every system, per task and in all.

Speed-ups are of times per token: plain decoding's seconds over its tokens, divided by the
system's, each summed over the examples that both answered. Intervals are paired percentile
bootstraps over examples (Efron & Tibshirani 1993; `scipy.stats.bootstrap`), with a fixed seed: an
example is drawn with both systems' measurements of it. They say how much the result hangs on the
choice of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..results import Stats
from .metrics import Score, score
from .operations import Operations, Shapes, operations
from .records import Difference, Header, Record, Recorded
from .systems import PLAIN
from .tasks import Task

__all__ = ["ALL", "Exactness", "Interval", "Quality", "Row", "Summary", "acceptance_by_position"]
__all__ += ["bootstrap", "speedup", "summarize"]

ALL = "all"
"""The rows over all tasks."""
RESAMPLES = 9999
CONFIDENCE = 0.95
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A number with its 95 % confidence interval; no interval from fewer than two examples."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """A metric, and the difference to plain decoding's."""

    metric: str
    value: float
    difference: Interval
    """Of the mean over examples (sentence by sentence for corpus metrics)."""
    signature: str
    """How it was computed."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """Of a lossless system: is its output plain decoding's?"""

    identical: int
    examples: int
    near_ties: int
    """First differences that rounding explains."""
    faults: int
    """First differences that it does not."""

    @property
    def share(self) -> float:
        """Identical outputs, 0 … 1."""
        return self.identical / self.examples if self.examples else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one task, or on all."""

    task: str
    system: str
    lossless: bool
    examples: int
    answers: int
    """One a turn of an example."""
    stats: Stats
    """Summed over the answers."""
    seconds: float
    """Wall-clock time of all answers."""
    speedup: Interval
    """Over plain decoding."""
    operations: Operations | None
    """A generated token's; None where the models' shapes are not known, and where tokens leave
    early: what their layers' keys and values cost is not counted."""
    exactness: Exactness | None
    """None for lossy systems, and when sampling."""
    quality: tuple[Quality, ...]
    layers: float | None = None
    """Layers that a token took, in the mean; None where all tokens take all."""

    @property
    def ms_per_token(self) -> float:
        """Milliseconds a generated token, reading the prompt included."""
        return _ms(self.seconds, self.stats.new_tokens)

    @property
    def ms_per_later_token(self) -> float:
        """The same without the first token of every answer, and without reading the prompt."""
        seconds = self.seconds - self.stats.first_token_seconds
        return _ms(seconds, self.stats.new_tokens - self.answers)

    @property
    def tokens_per_pass(self) -> float:
        """Generated tokens a pass of the target."""
        return self.stats.new_tokens / self.stats.target_passes if self.stats.target_passes else 0.0

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the time: in the draft, in the target, outside of both."""
        draft, target = self.stats.draft_seconds, self.stats.target_seconds
        rest = max(0.0, self.seconds - draft - target)
        return draft / self.seconds, target / self.seconds, rest / self.seconds


def _ms(seconds: float, tokens: int) -> float:
    return 1000 * seconds / tokens if tokens else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """A run, and what it says."""

    header: Header
    rows: tuple[Row, ...]
    records: tuple[Record, ...]
    differences: tuple[Difference, ...]

    @property
    def systems(self) -> list[str]:
        """Names, plain decoding first."""
        return list(dict.fromkeys(row.system for row in self.rows))

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, without `ALL`."""
        return [name for name in dict.fromkeys(row.task for row in self.rows) if name != ALL]

    def row(self, task: str, system: str) -> Row | None:
        """One row; None where nothing was measured."""
        return next((r for r in self.rows if (r.task, r.system) == (task, system)), None)


def bootstrap(statistic: Callable[..., Any], *samples: Iterable[float]) -> Interval:
    """A statistic of paired samples, with its interval.

    Args:
        statistic: Of arrays [..., examples], over the last axis (`axis=-1`).
        *samples: A number an example each, in the same order.
    """
    from scipy import stats  # type: ignore[import-untyped]

    data = [np.asarray(list(sample), dtype=np.float64) for sample in samples]
    value = float(statistic(*data, axis=-1))
    if data[0].size < 2:
        return Interval(value)
    found = stats.bootstrap(
        data,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1000,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))


def speedup(
    plain_seconds: Numbers,
    plain_tokens: Numbers,
    seconds: Numbers,
    tokens: Numbers,
    axis: int = -1,
) -> Any:
    """Plain decoding's time a token over another's: [..., examples] → [...]."""
    plain = plain_seconds.sum(axis) / plain_tokens.sum(axis)
    return plain / (seconds.sum(axis) / tokens.sum(axis))


def summarize(
    recorded: Recorded,
    tasks: Sequence[Task],
    *,
    shapes: Shapes | None = None,
    run_code: bool = False,
) -> Summary:
    """What a run's records say.

    Args:
        recorded: The run. Of an unfinished one, the examples that every system answered count.
        tasks: Its tasks, for their metrics.
        shapes: Of the models, for operations.
        run_code: Whether written programs may be run, for pass@1; else it is left out.
    """
    rows: list[Row] = []
    for task in tasks:
        found = _by_system(recorded, task.name)
        judge = _Judge(task, found[PLAIN], run_code)
        rows += _rows(recorded, task.name, found, shapes, judge.quality)
    if len(tasks) > 1:
        rows += _rows(recorded, ALL, _by_system(recorded), shapes, lambda found: ())
    return Summary(recorded.header, tuple(rows), recorded.records, recorded.differences)


Found = Mapping[tuple[str, str], Record]
"""One system's records, by task and example."""


def _by_system(recorded: Recorded, task: str | None = None) -> dict[str, Found]:
    """Every system's records of a task (or of all), of the examples that all systems answered."""
    found: dict[str, dict[tuple[str, str], Record]] = {
        system: {} for system in recorded.header.settings["systems"]
    }
    for record in recorded.records:
        if task in (None, record.task):
            found[record.system][record.task, record.example] = record
    common = [key for key in found[PLAIN] if all(key in one for one in found.values())]
    return {system: {key: one[key] for key in common} for system, one in found.items()}


def _rows(
    recorded: Recorded,
    task: str,
    systems: Mapping[str, Found],
    shapes: Shapes | None,
    quality: Callable[[Found], tuple[Quality, ...]],
) -> list[Row]:
    """One row for every system; none where nothing was measured."""
    if not systems[PLAIN]:
        return []
    promises: Mapping[str, bool] = recorded.header.settings["systems"]
    greedy = not recorded.header.settings["temperature"]
    rows = []
    for system, found in systems.items():
        answers = [answer for record in found.values() for answer in record.answers]
        exits = [layers for answer in answers for layers in answer.exits]
        lossless = promises[system]
        row = Row(
            task=task,
            system=system,
            lossless=lossless,
            examples=len(found),
            answers=len(answers),
            stats=Stats.total(answer.stats for answer in answers),
            seconds=sum(answer.seconds for answer in answers),
            speedup=bootstrap(speedup, *_times(systems[PLAIN]), *_times(found)),
            operations=None if shapes is None or exits else _operations(found.values(), shapes),
            exactness=None,
            quality=quality(found),
            layers=sum(exits) / len(exits) if exits else None,
        )
        if greedy and lossless:
            exact = _exactness(found, systems[PLAIN], recorded.differences)
            row = replace(row, exactness=exact)
        rows.append(row)
    return rows


def _times(found: Found) -> tuple[list[float], list[float]]:
    """Seconds and tokens of every example."""
    seconds = [sum(answer.seconds for answer in record.answers) for record in found.values()]
    tokens = [float(sum(map(len, record.tokens))) for record in found.values()]
    return seconds, tokens


def _operations(records: Iterable[Record], shapes: Shapes) -> Operations:
    """A generated token's operations."""
    total, tokens = Operations(), 0
    for record in records:
        for answer in record.answers:
            stats = answer.stats
            total += operations(
                shapes,
                prompt=stats.prompt_tokens,
                rounds=answer.rounds,
                target_passes=stats.target_passes,
                draft_passes=stats.draft_passes,
                source=record.source,
            )
            tokens += stats.new_tokens
    return total * (1 / tokens)


def _exactness(found: Found, plain: Found, differences: Iterable[Difference]) -> Exactness:
    """How often outputs are the same, and what is known of the others."""
    same = sum(record.tokens == plain[key].tokens for key, record in found.items())
    keys = {record.key for record in found.values()}
    known = [difference.near_tie for difference in differences if difference.key in keys]
    return Exactness(same, len(found), sum(known), len(known) - sum(known))


class _Judge:
    """Scores a task's answers, the same answers once.

    Args:
        task: What was asked.
        plain: Plain decoding's answers.
        run_code: Whether pass@1 may be computed.
    """

    def __init__(self, task: Task, plain: Found, run_code: bool) -> None:
        self._task, self._plain, self._run_code = task, _texts(plain), run_code
        self._metrics = [m for m in task.metrics if run_code or m not in NEED_CODE]
        self._known: dict[tuple[str, tuple[str, ...]], Score] = {}

    def quality(self, found: Found) -> tuple[Quality, ...]:
        """All metrics of one system's first answers."""
        return tuple(self._one(metric, _texts(found)) for metric in self._metrics)

    def _one(self, metric: str, texts: Mapping[str, str]) -> Quality:
        own, plain = self._score(metric, texts), self._score(metric, self._plain)
        gain = bootstrap(np.mean, np.subtract(own.per_example, plain.per_example))
        return Quality(metric, own.value, gain, own.signature)

    def _score(self, metric: str, texts: Mapping[str, str]) -> Score:
        key = metric, tuple(texts.values())
        if key not in self._known:
            self._known[key] = score(metric, self._task, texts, run_code=self._run_code)
        return self._known[key]


NEED_CODE = ("pass@1",)
"""Metrics that run what was written."""


def _texts(found: Found) -> dict[str, str]:
    """Every example's first answer."""
    return {record.example: record.answers[0].text for record in found.values()}


def acceptance_by_position(records: Iterable[Record]) -> list[float]:
    """Of the tokens drafted at every position of the window, from 1: the share that stayed."""
    rounds = [part for record in records for answer in record.answers for part in answer.rounds]
    widest = max((drafted for drafted, _ in rounds), default=0)
    return [
        sum(accepted >= position for _, accepted in rounds)
        / sum(drafted >= position for drafted, _ in rounds)
        for position in range(1, widest + 1)
    ]
