"""Quality beside the target alone: metrics as sums over examples, and their paired bootstrap.

A corpus metric such as BLEU is no mean of its sentences' scores. So every metric is kept as
sufficient statistics of each example: what they add up to, over any draw of examples, gives the
metric of that draw exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..bench.metrics import score
from ..bench.tasks import Example, Task
from .budget import AGREEMENT, Budget
from .runs import Output

__all__ = ["CONFIDENCE", "Change", "Judge", "similarity"]

CONFIDENCE = 0.95
"""One-sided."""
DRAWS = 2000
ROUNDING = 1e-9
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Change:
    """A metric of a policy's outputs beside that of the target alone, on the same examples."""

    budget: str
    plain: float
    """The metric of the target alone, 0 … 100."""
    value: float
    """Of the policy."""
    change: float
    """In the budget's unit: points, or per cent of `plain`."""
    low: float
    """The change is above this with 95 % confidence (paired bootstrap over examples)."""
    high: float
    """The change is below this with 95 % confidence."""
    allowed: float
    """What the budget allows."""
    examples: int
    changed: int
    """Examples of which the metric is not as before."""

    @property
    def unit(self) -> str:
        """What follows a change: "%" or nothing."""
        return "%" if self.budget.endswith("%") else ""

    @property
    def inside(self) -> bool:
        """Whether it is shown to be inside the budget."""
        return self.low >= self.allowed - ROUNDING

    @property
    def outside(self) -> bool:
        """Whether it is shown to be outside."""
        return self.high < self.allowed - ROUNDING


@dataclass(frozen=True, slots=True)
class _Metric:
    """How a metric is computed."""

    stats: Callable[[Example, Output], Sequence[float]]
    """The sufficient statistics of one answer."""
    value: Callable[[Floats], float]
    """The metric from their sum."""


class Judge:
    """Compares outputs with the target's own by the metrics of budgets.

    Args:
        task: What was asked.
        budgets: By whose metrics.
        run_code: Whether programs may be run, for pass@1.
    """

    def __init__(self, task: Task, budgets: Sequence[Budget], *, run_code: bool) -> None:
        self._task = task
        self._examples = {example.id: example for example in task.examples}
        self._budgets = budgets
        self._run_code = run_code
        self._known: dict[tuple[str, str, str], Sequence[float]] = {}

    def compare(
        self, outputs: Mapping[str, Output], plain: Mapping[str, Output]
    ) -> tuple[Change, ...]:
        """A change for every budget, over the examples of `outputs`, by their ids."""
        return tuple(self._change(budget, outputs, plain) for budget in self._budgets)

    def _change(
        self, budget: Budget, outputs: Mapping[str, Output], plain: Mapping[str, Output]
    ) -> Change:
        metric = self._metric(budget.metric, plain)
        ours, theirs = (
            np.array([self._stats(budget.metric, metric, name, made[name]) for name in outputs])
            for made in (outputs, plain)
        )  # [examples, statistics]
        value, before = metric.value(ours.sum(0)), metric.value(theirs.sum(0))
        weights = _weights(len(outputs))

        def change(now: float, then: float) -> float:
            if not budget.relative:
                return now - then
            return 100 * (now / then - 1) if then else 0.0

        drawn = [
            change(metric.value(a), metric.value(b))
            for a, b in zip(weights @ ours, weights @ theirs, strict=True)
        ]
        low, high = np.quantile(drawn, [1 - CONFIDENCE, CONFIDENCE])
        return Change(
            str(budget),
            before,
            value,
            change(value, before),
            float(low),
            float(high),
            budget.allowed,
            len(outputs),
            int((ours != theirs).any(1).sum()),
        )

    def _stats(self, name: str, metric: _Metric, example: str, made: Output) -> Sequence[float]:
        if name == AGREEMENT:  # its own quick sums
            return metric.stats(self._examples[example], made)
        key = (name, example, made.text)
        if key not in self._known:
            self._known[key] = metric.stats(self._examples[example], made)
        return self._known[key]

    def _metric(self, name: str, plain: Mapping[str, Output]) -> _Metric:
        if name == AGREEMENT:
            return _Metric(
                lambda example, made: (similarity(made.tokens, plain[example.id].tokens), 1.0),
                _mean,
            )
        if name in CORPUS:
            metric = CORPUS[name]()
            return _Metric(
                lambda example, made: _corpus_statistics(metric, example, made),
                lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score),
            )
        return _Metric(lambda example, made: (self._score(name, example, made), 1.0), _mean)

    def _score(self, name: str, example: Example, made: Output) -> float:
        task = dataclasses.replace(self._task, examples=(example,))
        found = score(name, task, {example.id: made.text}, run_code=self._run_code)
        return found.per_example[0]


def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU()


def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


CORPUS: Mapping[str, Callable[[], Any]] = {"bleu": _bleu, "chrf": _chrf}
"""Metrics of whole corpora: sacrebleu's own, with its own sums, as its own bootstrap has it."""


def _corpus_statistics(metric: Any, example: Example, made: Output) -> list[float]:
    streams = [[reference] for reference in example.references]
    found: list[float] = metric._extract_corpus_statistics([made.text], streams)[0]
    return found


def _mean(sums: Floats) -> float:
    return float(sums[0] / sums[1])


def _weights(examples: int) -> Floats:
    """How often every draw has each example, [draws, examples]; the same for every comparison."""
    generator = np.random.default_rng(0)
    return generator.multinomial(examples, [1 / examples] * examples, DRAWS).astype(np.float64)


def similarity(tokens: Sequence[int], others: Sequence[int]) -> float:
    """How alike two outputs are, 0 … 100: 100 · (1 − edit distance / length of the longer one).

    The distance is Levenshtein's, on tokens: a word too many costs one token, not all that follow.
    """
    longer = max(len(tokens), len(others))
    return 100 * (1 - _distance(tokens, others) / longer) if longer else 100.0


def _distance(a: Sequence[int], b: Sequence[int]) -> int:
    places = np.arange(len(b) + 1)
    row, other = places, np.array(b, np.int64)
    for at, token in enumerate(a, start=1):
        best = np.empty_like(row)
        best[0] = at
        best[1:] = np.minimum(row[:-1] + (other != token), row[1:] + 1)  # replace, or leave out
        row = np.minimum.accumulate(best - places) + places  # put in
    return int(row[-1])


def beyond(examples: int) -> float:
    """The share of examples that may still change where none of so many did, with 95 % confidence:
    the rule of three, exactly."""
    return 1 - math.exp(math.log(1 - CONFIDENCE) / examples)
