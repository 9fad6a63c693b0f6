"""Pictures of a diagnosis, as SVG files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .diagnosis import Diagnosis

__all__ = ["save_plots"]

SIZE = (6.0, 3.6)  # inches
BLUE, GREY, ORANGE = "#2b6cb0", "#a0aec0", "#dd6b20"


def save_plots(found: Diagnosis, folder: Path) -> list[Path]:
    """Draw what a diagnosis measured and predicts; the files.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    pictures: dict[str, Callable[[Any, Diagnosis], None]] = {
        "passes": _passes,
        "acceptance": _acceptance,
        "speedups": _speedups,
    }
    if found.agreement.bins:
        pictures["calibration"] = _calibration
    files = []
    for name, draw in pictures.items():
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes, found)
        files.append(folder / f"{name}.svg")
        figure.savefig(files[-1])
    return files


def _passes(axes: Any, found: Diagnosis) -> None:
    """T(k) at every context, and the draft's step."""
    for costs, colour in zip(found.profile.costs, (BLUE, ORANGE), strict=False):
        ms = [1000 * value for value in costs.seconds]
        label = f"target, {costs.context} tokens before"
        axes.plot(costs.widths, ms, marker="o", markersize=3, color=colour, label=label)
    step = 1000 * found.profile.costs[0].draft
    if step:
        axes.axhline(step, color=GREY, linestyle="--", label="one draft step")
    axes.set(xlabel="tokens in the pass", ylabel="ms", ylim=(0, None), title="Time of a pass")
    axes.legend(frameon=False)


def _acceptance(axes: Any, found: Diagnosis) -> None:
    """The share accepted of the tokens drafted first, second, …"""
    shares = [100 * share for share in found.agreement.by_position]
    axes.bar(range(1, len(shares) + 1), shares, color=BLUE)
    axes.set(
        xlabel="position in the window",
        ylabel="accepted, %",
        ylim=(0, 100),
        title="Acceptance by position",
    )


def _calibration(axes: Any, found: Diagnosis) -> None:
    """Agreement against confidence; the size of a point is its share of the tokens."""
    bins = found.agreement.bins
    most = max(part.count for part in bins)
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--")
    axes.scatter(
        [part.confidence for part in bins],
        [part.agreement for part in bins],
        s=[20 + 180 * part.count / most for part in bins],
        color=BLUE,
    )
    axes.set(
        xlabel="the draft's confidence",
        ylabel="agreement with the target",
        xlim=(0, 1.02),
        ylim=(-0.02, 1.04),
        title=f"Calibration (mean error {found.agreement.calibration_error:.2f})",
    )


def _speedups(axes: Any, found: Diagnosis) -> None:
    """The best setting of every policy, and the oracle."""
    shown = [found.oracle, *found.predictions][::-1]
    colours = [GREY if one is found.oracle else BLUE for one in shown]
    bars = axes.barh([one.family for one in shown], [one.speedup for one in shown], color=colours)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1, color=ORANGE, linestyle="--")
    axes.margins(x=0.1)
    axes.set(xlabel="times the target alone", title="Predicted speed")
