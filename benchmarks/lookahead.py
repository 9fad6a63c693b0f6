"""Every lookahead rule against the oracle, by exact replay, and the article's example.

    python -m benchmarks.lookahead record --folder RUNS/traces     # resumable; a trace file a task
    python -m benchmarks.lookahead costs --out RUNS/costs.json     # on a quiet machine
    python -m benchmarks.lookahead show --folder RUNS/traces --costs RUNS/costs.json

The traces are of the embedded pair on the data folder's tasks. Speed is predicted from the replayed
rounds and the measured costs of passes, as `biglittle diagnose` does it; a rule's share of the
oracle is its speed over that of a lookahead which drafts exactly what will be accepted.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import biglittle
from benchmarks.results import configuration
from benchmarks.workloads import SPEC_BENCH, prompts
from biglittle.cli.loading import quiet_libraries
from biglittle.costs import Costs
from biglittle.diagnosis import Profile
from biglittle.diagnosis.predict import settings
from biglittle.diagnosis.profile import measure_profile
from biglittle.traces import Replay, Traces, oracle, read_traces, record, replay, train_disco

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
TASKS = ("code", *SPEC_BENCH)
RULES = {
    "constant, 5": "static:tokens=5",
    "heuristic": "heuristic:tokens=20",
    "dynamic": "dynamic",
    "self-adjusting": "self-adjusting",
    "cost-aware": "cost-aware",
    "fallback": "fallback",
}
DISCO = "DISCO, trained on the other tasks"
BEST = {
    "constant": "constant, best",
    "dynamic": "dynamic, best",
    "cost-aware": "cost-aware, own costs",
}
"""Families whose best setting is looked for, task by task."""

app = typer.Typer(help=__doc__, rich_markup_mode=None)
Folder = Annotated[Path, typer.Option(help="A trace file a task.")]


def load(target: str, draft: str) -> biglittle.Pair:
    """The pair that was asked for."""
    quiet_libraries()
    return biglittle.load(target, draft)


@app.command("record")
def record_all(
    folder: Folder = Path("traces"),
    target: str = TARGET,
    draft: str = DRAFT,
    count: Annotated[int, typer.Option("--prompts", help="A task.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="A prompt, at most.")] = 128,
    tasks: Annotated[list[str] | None, typer.Option(help="Of " + ", ".join(TASKS))] = None,
) -> None:
    """Record the tasks' traces; what is there is not recorded again."""
    pair = load(target, draft)
    for task in track(tasks or TASKS, "tasks"):
        path = folder / f"{task}.jsonl"
        record(pair, prompts(task, count), path, max_new_tokens=new_tokens)


@app.command()
def costs(
    out: Annotated[Path, typer.Option(help="A file.")] = Path("costs.json"),
    target: str = TARGET,
    draft: str = DRAFT,
) -> None:
    """Time the pair's passes."""
    pair = load(target, draft)
    found = measure_profile(pair, repeats=5)
    models = f"{Path(pair.name).name} with {Path(pair.draft_name).name}"
    data = {
        "configuration": configuration() | {"models": models},
        "summary": pair.summary,
        "costs": [costs.as_dict() for costs in found.costs],
    }
    out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf8")


@app.command()
def show(folder: Folder = Path("traces"), costs: Path = Path("costs.json")) -> None:
    """The tables."""
    console = Console(width=150)
    data = json.loads(costs.read_text(encoding="utf8"))
    console.print(data["configuration"] | {"summary": data["summary"]})
    for title, header, rows in tables(read_folder(folder), read_costs(costs)):
        table = Table(*header, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def read_folder(folder: Path) -> dict[str, Traces]:
    """The traces by task."""
    found = {task: folder / f"{task}.jsonl" for task in TASKS}
    return {task: read_traces(path) for task, path in found.items() if path.is_file()}


def read_costs(path: Path) -> Profile:
    """Costs that were measured."""
    data = json.loads(path.read_text(encoding="utf8"))
    return Profile(tuple(map(Costs.from_dict, data["costs"])))


Rows = list[list[str]]


def tables(traces: Mapping[str, Traces], profile: Profile) -> list[tuple[str, list[str], Rows]]:
    """Titles, headers and rows."""
    tasks = list(traces)
    times = [compared(traces, task, profile) for task in tasks]
    plain = [seconds(found, profile, replay(found, "none")) for found in traces.values()]
    best = [seconds(found, profile, oracle(found)) for found in traces.values()]
    bounded = [{**found, "oracle": bound} for found, bound in zip(times, best, strict=True)]
    return [
        (
            "Predicted speed over plain decoding",
            ["lookahead", *tasks],
            relative(bounded, plain, "{:.2f}×"),
        ),
        ("Share of the oracle's speed", ["lookahead", *tasks], relative(times, best, "{:.0%}")),
        (
            "The oracle's lookahead: tokens it drafts a round",
            ["", *tasks],
            [
                ["mean", *[f"{oracle(found).drafted.mean():.1f}" for found in traces.values()]],
                ["quartiles", *map(_quartiles, traces.values())],
            ],
        ),
        ("One example: passes of target and draft", ["lookahead", "target", "draft"], example(
            traces["code"]
        )),
    ]  # fmt: skip


def _quartiles(found: Traces) -> str:
    low, middle, high = np.percentile(oracle(found).drafted, [25, 50, 75])
    return f"{low:.0f} · {middle:.0f} · {high:.0f}"


def seconds(found: Traces, profile: Profile, rounds: Replay) -> float:
    """Of all prompts, after their first tokens."""
    return float(profile.seconds(found, rounds).sum())


def compared(traces: Mapping[str, Traces], task: str, profile: Profile) -> dict[str, float]:
    """Seconds of every rule on one task."""
    found = traces[task]
    times = {name: seconds(found, profile, replay(found, rule)) for name, rule in RULES.items()}
    others = [trace for name, part in traces.items() if name != task for trace in part]
    if others:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "disco.safetensors"
            train_disco(Traces(found.header, tuple(others)), path)
            times[DISCO] = seconds(found, profile, replay(found, f"disco:path={path}"))
    families = settings(found.header.cap, profile.costs[0])
    for family, name in BEST.items():
        times[name] = min(seconds(found, profile, replay(found, one)) for one in families[family])
    return times


def relative(times: Sequence[Mapping[str, float]], to: Sequence[float], form: str) -> Rows:
    """A row a rule: how its speed compares, task by task."""
    return [
        [name, *[form.format(a / found[name]) for a, found in zip(to, times, strict=True)]]
        for name in times[0]
    ]


def longest(found: Traces) -> int:
    """The example with the longest answer, the first of several."""
    lengths = [len(trace.tokens) for trace in found]
    return lengths.index(max(lengths))


def example(found: Traces) -> Rows:
    """Passes of both models on one example, the article's beside them."""
    index = longest(found)
    rows = [
        ["the article's MBPP example, constant 5", "38", "192"],
        ["the article's MBPP example, oracle", "27", "129"],
    ]
    for name, rounds in (
        ("constant, 5", replay(found, "static:tokens=5")),
        ("oracle", oracle(found)),
    ):
        own = rounds.rounds(index)
        passes = 1 + len(own), sum(drafted for drafted, _, _ in own)
        rows.append([f"ours, {len(found.traces[index].tokens)} tokens, {name}", *map(str, passes)])
    return rows


def lookaheads(
    found: Traces, rules: Iterable[str] = ("static:tokens=5", "cost-aware")
) -> dict[str, list[int]]:
    """Tokens drafted in every round of the longest example, the oracle's first."""
    index = longest(found)
    known = {"oracle": oracle(found)} | {rule: replay(found, rule) for rule in rules}
    return {name: [drafted for drafted, _, _ in one.rounds(index)] for name, one in known.items()}


if __name__ == "__main__":
    app()
