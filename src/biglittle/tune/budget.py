"""Budgets: how much quality speed may cost, in the task's own unit."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..bench.metrics import METRICS, check
from ..bench.tasks import Task
from ..errors import ParameterError, nearest

__all__ = ["AGREEMENT", "Budget", "BudgetLike", "check_budgets", "parse_budget"]

AGREEMENT = "agreement"
"""The metric that needs no references: likeness to the target's own output."""
NAMES = (AGREEMENT, *METRICS)
FORM = re.compile(r"\s*([^:\s]+)\s*:\s*([+-]?[\d.]+(?:e[+-]?\d+)?)\s*(%?)\s*", re.IGNORECASE)
EXAMPLES = "'bleu: -0.5' (points) or 'rougeL: -1%' (of the target's own)"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a metric may lose against the target alone."""

    metric: str
    """"agreement", or a metric of `biglittle.bench.metrics`."""
    allowed: float
    """The change that is still inside: 0 for none, or negative."""
    relative: bool = False
    """Whether in per cent of the target's own value; else in the metric's points."""

    def __post_init__(self) -> None:
        if self.metric not in NAMES:
            raise ParameterError(
                f"budget: metric {self.metric!r} is none of {', '.join(NAMES)}"
                f"{nearest(self.metric, NAMES)}"
            )
        if not math.isfinite(self.allowed) or self.allowed <= -100:
            raise ParameterError(
                f"budget {str(self)!r} would allow anything: metrics go from 0 to 100"
            )
        if self.allowed > 0:
            raise ParameterError(
                f"budget {str(self)!r} asks for a gain: a budget is a loss, such as "
                f"'{self.metric}: -{self.allowed:g}{self.unit}', or 0 for none"
            )

    def __str__(self) -> str:
        """The string that `parse_budget` reads back."""
        return f"{self.metric}: {self.allowed:g}{self.unit}"

    @property
    def unit(self) -> str:
        """What follows a number of it: "%" or nothing."""
        return "%" if self.relative else ""


BudgetLike = str | Budget


def parse_budget(budget: BudgetLike) -> Budget:
    """A `Budget` from its string (or itself): "bleu: -0.5", "rougeL: -1%", "exact_match: 0".

    Raises:
        ParameterError: Another form, an unknown metric, a gain, or no limit at all.
    """
    if isinstance(budget, Budget):
        return budget
    found = FORM.fullmatch(budget.replace("−", "-"))
    if found is None:
        raise ParameterError(f"budget {budget!r} cannot be read; write {EXAMPLES}")
    metric, number, per_cent = found.groups()
    try:
        allowed = float(number)
    except ValueError:
        raise ParameterError(f"budget {budget!r}: {number} is no number") from None
    return Budget(metric, allowed + 0.0, bool(per_cent))  # + 0.0: no negative zero


def check_budgets(budgets: Sequence[Budget], task: Task, *, run_code: bool) -> None:
    """Raise `ParameterError` for budgets that the task cannot be judged by: a metric twice,
    without the references or tests or the package that it needs, or pass@1 without `run_code`."""
    metrics = [budget.metric for budget in budgets]
    if twice := [metric for metric in metrics if metrics.count(metric) > 1]:
        raise ParameterError(f"two budgets are for {twice[0]!r}; give the stricter one")
    if "pass@1" in metrics and not run_code:
        raise ParameterError(
            "a budget for pass@1 means running programs that the models write: ask for it with "
            "run_code=True (--run-code), or give a budget for agreement"
        )
    wanted = tuple(metric for metric in metrics if metric != AGREEMENT)
    try:
        check(dataclasses.replace(task, metrics=wanted))
    except ParameterError as error:
        if "references" not in str(error):
            raise
        raise ParameterError(
            f"{error}; without references, quality is agreement with the target: 'agreement: -2%'"
        ) from None
