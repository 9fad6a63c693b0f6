"""How a summary's numbers are written, in a terminal and in the report."""

from __future__ import annotations

from .summary import ALL, Exactness, Interval, Row, Summary
from .systems import PEER, PLAIN

__all__ = ["exactness", "interval", "ratio", "share", "title", "verdict"]


def title(system: str) -> str:
    """What readers know a system by."""
    return "plain" if system == PLAIN else system


def ratio(number: float | None) -> str:
    """`1.62×`."""
    return "" if number is None else f"{number:.2f}×"


def share(number: float | None) -> str:
    """`87 %`, and `0.4 %`."""
    if number is None:
        return ""
    return f"{100 * number:.{0 if number >= 0.1 or number == 0 else 1}f} %"


def interval(number: Interval, form: str = "{:.2f}") -> str:
    """`1.55 – 1.70`; nothing where there is no interval."""
    if number.low is None or number.high is None:
        return ""
    return f"{form.format(number.low)} – {form.format(number.high)}"


def exactness(found: Exactness | None) -> str:
    """`identical`, or in how many examples, and what the others are."""
    if found is None:
        return ""
    if found.identical == found.examples:
        return "identical"
    parts = [f"{found.identical} of {found.examples}"]
    if found.near_ties:
        parts.append(f"{found.near_ties} near-tie{'s' * (found.near_ties > 1)}")
    if found.faults:
        parts.append(f"{found.faults} FAULT{'S' * (found.faults > 1)}")
    return ", ".join(parts)


def verdict(summary: Summary) -> str:
    """The result in a sentence or two."""
    task = ALL if summary.row(ALL, PLAIN) is not None else next(iter(summary.tasks), ALL)
    rows = [row for row in summary.rows if row.task == task and row.system != PLAIN]
    ours = [row for row in rows if row.lossless and not row.system.startswith(PEER)]
    if not ours:
        return ""
    best = max(ours, key=lambda row: row.speedup.value)
    bounds = interval(best.speedup)
    bounds = f" (95 % interval {bounds})" if bounds else ""
    count = f"{best.examples} example{'s' * (best.examples > 1)}"
    if best.speedup.value <= 1:
        return (
            f"No lossless policy is faster than the target alone over {count}: the best, "
            f"{best.system}, has {ratio(best.speedup.value)} its speed{bounds}. "
            "Do not speculate here."
        )
    text = (
        f"{best.system} writes {ratio(best.speedup.value)} as fast as the target alone{bounds}, "
        f"over {count}."
    )
    if best.speedup.low is not None and best.speedup.low <= 1:
        text += " The interval includes 1: measure more examples before relying on it."
    return text + _same(best)


def _same(row: Row) -> str:
    if row.exactness is None:
        return ""
    if row.exactness.identical == row.exactness.examples:
        return " Its output is the same, token by token."
    return f" Outputs that are the same: {exactness(row.exactness)}."
