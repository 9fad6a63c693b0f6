"""The page of results, docs/results.md, from saved runs.

    python -m benchmarks.page --bench RUNS/torch --bench RUNS/llama \\
        --traces RUNS/traces --costs RUNS/costs.json

A bench is a folder that `biglittle bench` left; traces and costs are `benchmarks.lookahead`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.lookahead import lookaheads, read_costs, read_folder, tables
from biglittle.bench.report import plots
from biglittle.bench.summary import ALL
from biglittle.bench.systems import PLAIN

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEAD = """# Results

Made by `python -m benchmarks.page` from saved runs; each says by which command. Speed-ups are over
our own plain decoding on the same prompts, whole answers, the prompt's reading included, with 95 %
bootstrap intervals over prompts. "Same" is the share of answers that are token for token plain
decoding's: a pass over several tokens rounds otherwise than a pass over one, and a near-tie may
flip; every difference was looked at, and what rounding does not explain would be called a fault.
Of a run that was stopped early, the examples that every system answered count.
"""
LOOKAHEAD = """
## Lookahead against the oracle

Replayed from traces of {models} ({summary}), {tokens:,} tokens of {prompts} prompts, with the costs
of passes as they were measured here. "Best" is the best of all settings for that task, in
hindsight; "own costs" is what `biglittle diagnose` would print. The oracle drafts exactly what will
be accepted.
"""


def bench_section(folder: Path) -> list[str]:
    """A bench's table, a task a column."""
    data = json.loads((folder / "summary.json").read_text(encoding="utf8"))
    header, rows = data["header"], data["rows"]
    tasks = [name for name in dict.fromkeys(row["task"] for row in rows) if name != ALL]
    tasks += [ALL] if len(tasks) > 1 else []
    cells = {(row["task"], row["system"]): row for row in rows}
    systems = list(dict.fromkeys(row["system"] for row in rows))
    settings, machine = header["settings"], header["hardware"]
    title = f"{settings['target']} with {settings['draft']} ({settings['precision']})"
    lines = [f"\n## {title}\n", f"`{header['command']}`\n"]
    lines.append(", ".join(f"{key}: {value}" for key, value in machine.items()) + "\n")
    lines += markdown(
        ["", *tasks, "same"],
        [
            [
                f"`{system}`",
                *[_speed(cells.get((task, system))) for task in tasks],
                _same(cells, system),
            ]
            for system in systems
        ],
    )
    examples = [str(cells[task, PLAIN]["examples"]) for task in tasks]
    return [*lines, "", f"Prompts: {', '.join(map(' '.join, zip(tasks, examples, strict=True)))}."]


def _speed(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["system"] == PLAIN:
        return f"{row['ms_per_token']:.0f} ms a token"
    return speedup(row)


def speedup(row: Mapping[str, Any]) -> str:
    """The speed-up of a bench's row, with its interval where there is one."""
    return times(row["speedup"], row["speedup_low"], row["speedup_high"])


def times(value: float, low: float | None, high: float | None) -> str:
    """A ratio with its bounds, where there are any."""
    bounds = "" if low is None else f" ({low:.2f}–{high:.2f})"
    return f"{value:.2f}×{bounds}"


def _same(cells: dict[tuple[str, str], dict[str, Any]], system: str) -> str:
    found = [row for (task, name), row in cells.items() if name == system and task != ALL]
    known = [(row["identical"], row["examples"]) for row in found if row["identical"] is not None]
    if not known:
        return ""
    faults = sum(row["faults"] or 0 for row in found)
    share = sum(part * count for part, count in known) / sum(count for _, count in known)
    return f"{share:.0%}" + (f", {faults} faults" if faults else "")


def lookahead_section(traces: Path, costs: Path, pictures: Path) -> list[str]:
    """Shares of the oracle, the example, and its picture."""
    found = read_folder(traces)
    data = json.loads(costs.read_text(encoding="utf8"))
    prompts = sum(map(len, found.values()))
    tokens = sum(len(trace.tokens) for part in found.values() for trace in part)
    models = data["configuration"]["models"]
    lines = [
        LOOKAHEAD.format(models=models, summary=data["summary"], prompts=prompts, tokens=tokens)
    ]
    for title, header, rows in tables(found, read_costs(costs)):
        lines += [f"**{title}**\n", *markdown(header, rows), ""]
    picture = pictures / "lookahead.svg"
    picture.write_text(plots.lookahead_per_round(lookaheads(found["code"])), encoding="utf8")
    return [*lines, f"![Tokens drafted in every round of that example](images/{picture.name})"]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(row)} |" for row in (header, ruler, *rows)]


def main(
    bench: Annotated[list[Path] | None, typer.Option(help="A folder of a bench.")] = None,
    traces: Annotated[Path | None, typer.Option(help="A folder of traces.")] = None,
    costs: Annotated[Path | None, typer.Option(help="Measured costs.")] = None,
    note: Annotated[list[str] | None, typer.Option(help="A paragraph of your own.")] = None,
    out: Annotated[Path, typer.Option(help="The page.")] = DOCS / "results.md",
) -> None:
    """Write the page."""
    pictures = out.parent / "images"
    pictures.mkdir(exist_ok=True)
    lines = [HEAD, *[f"{text}\n" for text in note or []]]
    for folder in bench or []:
        lines += bench_section(folder)
    if traces is not None and costs is not None:
        lines += lookahead_section(traces, costs, pictures)
    out.write_text("\n".join(lines) + "\n", encoding="utf8")


if __name__ == "__main__":
    typer.run(main)
