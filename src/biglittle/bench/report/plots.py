"""The report's pictures, as SVG that takes its text colour from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = ["acceptance", "lookahead_per_round", "quality_against_latency"]
__all__ += ["quality_against_speed", "time_per_token"]

INK = "#010203"  # stands for the page's text colour until the picture is written
GRID = "#8a8a8a"
# Readable on white and on black, and told apart by marker as well.
COLOURS = ["#3b8ed0", "#e07b39", "#2fa37a", "#c061ae", "#b39018", "#d1495b", "#7a7fdc", "#8c8c8c"]
MARKERS = "osD^vPX*"
PARTS = {"draft": "#e07b39", "target": "#3b8ed0", "outside": "#8c8c8c"}
SIZE = (6.0, 3.4)  # inches: small enough that text is readable on a phone
LEAST_POINTS = 2.0
"""How much of a metric, in its points, a picture shows at least."""
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "biglittle",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,  # names may hold a "$"
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.alpha": 0.35,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def _picture(name: str, draw: Callable[[Axes], None], height: float = SIZE[1]) -> str:
    """What `draw` draws, as an SVG element; `name` keeps its ids apart from other pictures'."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(SIZE[0], height), layout="constrained")
        draw(figure.add_subplot())
        written = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", svg, count=1)  # the page says how wide
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)


def _style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def _whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _legend_below(axes: Axes) -> None:
    axes.figure.legend(loc="outside lower left", ncols=2)


def lookahead_per_round(rounds: Mapping[str, Sequence[int]]) -> str:
    """How far was looked ahead in every round of one example.

    Args:
        rounds: Drafted tokens of every round, by the name of what decided, e.g. "oracle".
    """

    def draw(axes: Axes) -> None:
        for index, (name, counts) in enumerate(rounds.items()):
            label = f"{name}: {len(counts)} rounds, {sum(counts)} drafted tokens"
            places = range(1, len(counts) + 1)
            style = _style(index) | {"marker": "None", "linewidth": 1.6}
            axes.step(places, counts, where="mid", label=label, **style)
        axes.set(xlabel="round", ylabel="drafted tokens", ylim=(0, None))
        _whole_numbers(axes.xaxis)
        _whole_numbers(axes.yaxis)
        axes.figure.legend(loc="outside lower left", ncols=1)

    return _picture("lookahead", draw, SIZE[1] + 0.2 * len(rounds))


def acceptance(shares: Mapping[str, Sequence[float]]) -> str:
    """Accepted share of the tokens drafted at every position of the window.

    Args:
        shares: 0 … 1 for positions 1, 2, …, by system.
    """

    def draw(axes: Axes) -> None:
        for index, (name, values) in enumerate(shares.items()):
            places = range(1, len(values) + 1)
            axes.plot(places, values, label=name, markersize=4, **_style(index))
        axes.set(xlabel="position in the window", ylabel="accepted share", ylim=(0, 1.02))
        _whole_numbers(axes.xaxis)
        _legend_below(axes)

    return _picture("acceptance", draw, SIZE[1] + 0.1 * len(shares))


def quality_against_latency(
    name: str, metric: str, points: Mapping[str, tuple[float, float]]
) -> str:
    """Every system's quality over its time a token.

    Args:
        name: Of the task; keeps this picture apart from other tasks'.
        metric: What quality is measured by.
        points: Milliseconds a token and the metric, by system.
    """

    def draw(axes: Axes) -> None:
        for index, (system, (ms, value)) in enumerate(points.items()):
            style = _style(index) | {"linestyle": "None"}
            axes.plot([ms], [value], label=system, markersize=8, **style)
        axes.set(xlabel="ms a token (left is faster)", ylabel=metric)
        axes.margins(0.15)
        low, high = axes.get_ylim()
        missing = max(0.0, LEAST_POINTS - (high - low)) / 2  # or nothing would look like much
        axes.set_ylim(low - missing, high + missing)
        _legend_below(axes)

    return _picture(f"quality-{name}", draw, SIZE[1] + 0.1 * len(points))


def quality_against_speed(
    name: str, metric: str, curves: Mapping[str, Sequence[tuple[float, float]]], alone: float
) -> str:
    """What quality the settings of several systems keep at a speed.

    Args:
        name: Keeps this picture apart from others of a page.
        metric: What quality is measured by.
        curves: Speed-up and metric of every setting, by the name of a curve.
        alone: The target's own metric.
    """

    def draw(axes: Axes) -> None:
        axes.axhline(alone, color=GRID, linewidth=1, linestyle="--")
        for index, (label, points) in enumerate(curves.items()):
            speeds, values = zip(*sorted(points), strict=True)
            axes.plot(speeds, values, label=label, markersize=4, **_style(index))
        axes.set(xlabel="speed-up over the target alone", ylabel=metric)
        _legend_below(axes)

    return _picture(f"speed-{name}", draw, SIZE[1] + 0.1 * len(curves))


def time_per_token(parts: Mapping[str, tuple[float, float, float]]) -> str:
    """Where every system's time goes.

    Args:
        parts: Milliseconds a token in the draft, in the target and outside of both, by system.
    """

    def draw(axes: Axes) -> None:
        names = list(parts)
        left = [0.0] * len(names)
        for index, (part, colour) in enumerate(PARTS.items()):
            widths = [parts[name][index] for name in names]
            axes.barh(names, widths, left=left, color=colour, label=part, height=0.65)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("ms a token")
        axes.figure.legend(loc="outside lower left", ncols=3)

    return _picture("time", draw, 1.2 + 0.32 * len(parts))
