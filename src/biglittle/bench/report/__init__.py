"""A run's report: one HTML file that needs nothing else.

No script, no font and no picture from elsewhere; readable on a phone and on paper, in a light and
in a dark surrounding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from .. import words
from ..export import flat_row
from ..records import Record
from ..summary import ALL, Row, Summary, acceptance_by_position
from ..systems import PEER, PLAIN
from . import plots

__all__ = ["Lookaheads", "measured_lookaheads", "render", "write_report"]


@dataclass(frozen=True, slots=True)
class Lookaheads:
    """How far was looked ahead in every round of one example's first answer.

    Attributes:
        task: The example's task.
        example: Its id.
        rounds: Drafted tokens of every round, by what decided: a policy, or "oracle".
    """

    task: str
    example: str
    rounds: Mapping[str, Sequence[int]]


def measured_lookaheads(
    summary: Summary, task: str | None = None, example: str | None = None
) -> Lookaheads | None:
    """What our policies did on one example.

    Args:
        summary: The run.
        task: The example's; default: the first task.
        example: Its id; default: the one with the longest answer by plain decoding.

    Returns:
        None where no policy drafted on it.
    """
    task = task or next(iter(summary.tasks), None)
    plain = [r for r in summary.records if r.task == task and r.system == PLAIN]
    if example is None and plain:
        example = max(plain, key=lambda record: len(record.tokens[0])).example
    found = {
        record.system: [drafted for drafted, _ in record.answers[0].rounds]
        for record in summary.records
        if (record.task, record.example) == (task, example)
        and record.answers[0].stats.drafted
        and not record.system.startswith(PEER)
    }
    return Lookaheads(str(task), str(example), found) if found else None


def write_report(summary: Summary, path: Path, *, lookaheads: Lookaheads | None = None) -> None:
    """Write the report; see `render`."""
    path.write_text(render(summary, lookaheads=lookaheads), encoding="utf8")


def render(summary: Summary, *, lookaheads: Lookaheads | None = None) -> str:
    """The report's HTML.

    Args:
        summary: The run.
        lookaheads: The picture of one example's rounds; default: `measured_lookaheads`.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        files(__name__).joinpath("template.html").read_text(encoding="utf8")
    )
    overall = summary.tasks[0] if len(summary.tasks) == 1 else ALL
    others = [] if overall != ALL else summary.tasks
    return template.render(
        header=summary.header,
        words=words,
        verdict=words.verdict(summary),
        tables=[_table(summary, task) for task in [overall, *others]],
        pictures=_pictures(summary, overall, lookaheads or measured_lookaheads(summary)),
        differences=summary.differences,
    )


def _table(summary: Summary, task: str) -> dict[str, Any]:
    """What the template shows of a task."""
    rows = [row for row in summary.rows if row.task == task]
    metrics = dict.fromkeys(quality.metric for row in rows for quality in row.quality)
    signatures = {q.metric: q.signature for row in rows for q in row.quality}
    return {
        "task": "all tasks" if task == ALL else task,
        "examples": rows[0].examples if rows else 0,
        "rows": [(row, flat_row(summary, row), _by_metric(row)) for row in rows],
        "metrics": list(metrics),
        "signatures": signatures,
        "fallback": any(row.stats.fallbacks for row in rows),
        "layers": any(row.layers for row in rows),
    }


def _by_metric(row: Row) -> dict[str, Any]:
    return {quality.metric: quality for quality in row.quality}


@dataclass(frozen=True, slots=True)
class _Picture:
    """An SVG and what it shows."""

    title: str
    text: str
    svg: str


def _pictures(summary: Summary, task: str, lookaheads: Lookaheads | None) -> list[_Picture]:
    """All pictures that the run has something to show for."""
    rows = [row for row in summary.rows if row.task == task]
    found = []
    if lookaheads is not None:
        text = (
            f"Tokens that were drafted in every round of {lookaheads.task}, example "
            f"{lookaheads.example}. An oracle drafts exactly what the target will accept; what "
            "lies above it is drafted in vain, what lies below costs rounds."
        )
        svg = plots.lookahead_per_round(lookaheads.rounds)
        found.append(_Picture("Lookahead, round by round", text, svg))
    if drafting := [row.system for row in rows if row.stats.drafted]:
        text = "How often a drafted token stays, by its place among the tokens drafted with it."
        shares = {name: acceptance_by_position(_records(summary, name)) for name in drafting}
        found.append(_Picture("Acceptance by position", text, plots.acceptance(shares)))
    found += _quality_pictures(summary)
    text = "A token's time in the draft, in the target, and outside of both models."
    svg = plots.time_per_token({words.title(row.system): _milliseconds(row) for row in rows})
    return [*found, _Picture("Where the time goes", text, svg)]


def _quality_pictures(summary: Summary) -> list[_Picture]:
    """One a task and metric."""
    found = []
    for task in summary.tasks:
        rows = [row for row in summary.rows if row.task == task]
        for metric in dict.fromkeys(quality.metric for row in rows for quality in row.quality):
            points = {
                words.title(row.system): (row.ms_per_token, _by_metric(row)[metric].value)
                for row in rows
            }
            name = re.sub(r"\W+", "-", f"{task}-{metric}")
            text = f"{metric} of the task {task} over the time that a token takes."
            svg = plots.quality_against_latency(name, metric, points)
            found.append(_Picture(f"Quality against latency: {task}", text, svg))
    return found


def _records(summary: Summary, system: str) -> list[Record]:
    return [record for record in summary.records if record.system == system]


def _milliseconds(row: Row) -> tuple[float, float, float]:
    draft, target, outside = (part * row.ms_per_token for part in row.shares)
    return draft, target, outside
