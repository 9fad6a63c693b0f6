"""The picture of a tuning run: quality against time, and which settings nothing else beats."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .lab import Setting
from .quality import Change

if TYPE_CHECKING:
    from .profile import Profile

__all__ = ["draw", "front"]

SIZE = (6.4, 4.6)  # inches; of each budget's part
BLUE, GREY, ORANGE, GREEN, RED = "#2b6cb0", "#a0aec0", "#dd6b20", "#2f855a", "#c53030"


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (time, quality) such that none other is both faster and better; fastest first."""
    found: list[tuple[float, float]] = []
    for time, quality in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or quality > found[-1][1]:
            found.append((time, quality))
    return found


def draw(profile: Profile, plain: Setting, path: Path) -> None:
    """Draw every setting's quality over its predicted time a token, a part for every budget.

    Nothing is drawn without a budget: lossless policies are all of one quality.

    Args:
        profile: What was found.
        plain: The target alone, on the examples that were searched.
        path: Of an SVG file.
    """
    if not profile.budgets:
        return
    from matplotlib.figure import Figure

    count = len(profile.budgets)
    figure = Figure(figsize=(SIZE[0], SIZE[1] * count), layout="constrained")
    for at, axes in enumerate(figure.subplots(count, squeeze=False)[:, 0]):
        _part(axes, profile, plain, at)
    part = path.with_name(path.name + ".part")
    figure.savefig(part, format="svg")
    part.replace(path)


def _part(axes: Any, profile: Profile, plain: Setting, at: int) -> None:
    """One budget's points, front and limit."""
    metric = profile.budgets[at].partition(":")[0]
    whole = [one for one in profile.settings if one.examples == plain.examples]
    few = [one for one in profile.settings if one.examples < plain.examples]
    lossless = dataclasses.replace(profile.best_lossless, outcome="")
    _scatter(axes, few, at, color=GREY, s=12, label="given up on the first examples")
    _scatter(axes, whole, at, color=BLUE, s=24, label="lossy settings, and their 95 % bounds")
    for setting in whole:
        change = setting.changes[at]
        time, value = _point(setting, at)
        axes.vlines(time, _level(change, change.low), value, color=BLUE, alpha=0.3, linewidth=1)
    points = [_point(one, at) for one in [*whole, lossless, plain]]
    axes.step(*zip(*front(points), strict=True), where="post", color=BLUE, alpha=0.5, label="front")
    _scatter(axes, [plain], at, color="black", marker="s", s=40, label="the target alone")
    _scatter(
        axes, [lossless], at, color=GREEN, marker="D", s=40, label=f"lossless: {lossless.policy}"
    )
    if not profile.lossless:
        label = f"the answer: {profile.policy}"
        _scatter(axes, [profile.promised], at, color=RED, marker="*", s=140, label=label)
    limit = _level(plain.changes[at], plain.changes[at].allowed)
    axes.axhline(limit, color=ORANGE, linestyle="--", label=f"budget {profile.budgets[at]}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(
        xlabel="predicted ms a token, after the prompt (left is faster)",
        ylabel=metric,
        title=f"{profile.task}: {metric} on {plain.examples} examples",
    )
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "ncols": 2}
    axes.legend(frameon=False, fontsize="x-small", **below)


def _level(change: Change, lost: float) -> float:
    """What is left of the metric after a loss in the budget's unit."""
    return change.plain * (1 + lost / 100) if change.unit else change.plain + lost


def _point(setting: Setting, at: int) -> tuple[float, float]:
    return setting.ms_per_token, setting.changes[at].value


def _scatter(axes: Any, settings: Sequence[Setting], at: int, **style: Any) -> None:
    if settings:
        axes.scatter(*zip(*(_point(one, at) for one in settings), strict=True), **style)
