"""Speculation beside plain batching, with more and more rows: never more than 5 % below?

    python -m benchmarks.batching                          # SmolLM2-135M on two cores: half an hour
    python -m benchmarks.batching --rows 1 --rows 4 --draft early-exit:layers=10
    python -m benchmarks.batching --target qwen2.5-coder-1.5b-instruct \\
        --draft qwen2.5-coder-0.5b-instruct --draft-quantize int4
    python -m benchmarks.batching --report                 # the table of what was measured so far

Every policy decodes the same requests in an engine of its own, so many rows at a time, with a
request waiting for every row that ends; all write the same number of tokens, whatever ends the
text. Their steps take turns, so that a slow moment of the machine meets all alike; who goes first
changes from turn to turn. Seconds are of the whole, the reading of the prompts included. Every
batch is saved when it is done, and a second call goes on where the first one stopped.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import biglittle
from benchmarks.results import append, configuration, quartiles, read, take_turns
from biglittle.cli.loading import quiet_libraries
from biglittle.decoding import Capacity, Engine, Row
from biglittle.diagnosis import builtin_prompts

PLAIN = "none"
POLICIES = ["cost-aware", "static:tokens=5"]
ROWS = [1, 4, 16, 64]
GOAL = 0.95
CHUNK = 256


def run(
    pair: biglittle.Pair, policies: list[str], rows: int, prompts: list[Any], new_tokens: int
) -> dict[str, dict[str, Any]]:
    """Seconds and passes of every policy on the same requests; their steps take turns."""
    started = {p: start(pair, p, rows, prompts, new_tokens) for p in (PLAIN, *policies)}
    seconds = take_turns({policy: engine for policy, (engine, _) in started.items()})
    plain = [row.new_tokens for row in started[PLAIN][1]]
    return {
        policy: {
            "seconds": sum(seconds[policy]),
            "steps": len(seconds[policy]),
            "tokens": sum(row.stats.new_tokens for row in found),
            "drafted": sum(row.stats.drafted for row in found),
            "accepted": sum(row.stats.accepted for row in found),
            "same": sum(row.new_tokens == own for row, own in zip(found, plain, strict=True)),
        }
        for policy, (_, found) in started.items()
    }


def start(
    pair: biglittle.Pair, policy: str, rows: int, prompts: list[Any], new_tokens: int
) -> tuple[Engine, list[Row]]:
    """An engine before its first step, and its rows."""
    engine = pair.engine(Capacity(rows=rows, chunk=CHUNK))
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": new_tokens}
    requests = pair.requests(prompts, policy=policy, ignore_eos=True, **options)
    return engine, [engine.admit(request) for request in requests]


def report(results: list[dict[str, Any]], console: Console) -> None:
    """Every policy's throughput over plain batching's, by rows."""
    table = Table(title="Throughput over plain batching's")
    columns = (
        "rows", "policy", "batches", "median", "quartiles", "tokens/s", "over one row's",
        "drafted a token", "accepted", "same text", "at least 0.95",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    single = [result for result in results if result["rows"] == 1]
    alone = _speed(single, PLAIN) if single else None
    for rows in sorted({result["rows"] for result in results}):
        own = [result for result in results if result["rows"] == rows]
        for policy in own[0]["runs"]:
            table.add_row(str(rows), policy, *_cells(own, policy, alone))
    console.print(table)


def _cells(results: list[dict[str, Any]], policy: str, alone: float | None) -> list[str]:
    runs = [result["runs"][policy] for result in results]
    plain = [result["runs"][PLAIN]["seconds"] for result in results]
    ratios = [base / one["seconds"] for one, base in zip(runs, plain, strict=True)]
    speed = _speed(results, policy)
    total = {key: sum(one[key] for one in runs) for key in ("tokens", "drafted", "accepted")}
    texts = sum(result["requests"] for result in results)
    return [
        str(len(runs)),
        f"{statistics.median(ratios):.2f}×",
        quartiles(ratios, "{:.2f}"),
        f"{speed:.1f}",
        "" if alone is None else f"{speed / alone:.2f}×",
        f"{total['drafted'] / total['tokens']:.2f}",
        f"{total['accepted'] / max(1, total['drafted']):.0%}",
        f"{sum(one['same'] for one in runs) / texts:.0%}",
        "yes" if statistics.median(ratios) >= GOAL else "no",
    ]


def _speed(results: list[dict[str, Any]], policy: str) -> float:
    """Tokens a second, the median of the batches."""
    runs = [result["runs"][policy] for result in results]
    return float(statistics.median(one["tokens"] / one["seconds"] for one in runs))


def measure(setting: dict[str, Any], rows: list[int], batches: int, waves: int, out: Path) -> None:
    """Run the batches that are not in the file yet."""
    done = {
        (result["rows"], result["batch"])
        for result in read(out)
        if setting.items() <= result.items()
    }
    todo = [(n, batch) for batch in range(batches) for n in rows if (n, batch) not in done]
    if not todo:
        return
    quiet_libraries()
    options = {"dtype": setting["dtype"], "draft_quantize": setting["draft_quantize"]}
    pair = biglittle.load(setting["target"], setting["draft"], **options)
    texts = [[{"role": "user", "content": one.text}] for one in builtin_prompts()]
    policies, new_tokens = setting["policies"], setting["new_tokens"]
    run(pair, policies, 2, texts[:2], 4)  # warms up
    for n, batch in track(todo, "batches"):
        first = batch * n * waves
        prompts = [texts[at % len(texts)] for at in range(first, first + n * waves)]
        runs = run(pair, policies, n, prompts, new_tokens)
        append(out, {**setting, "rows": n, "batch": batch, "requests": len(prompts), "runs": runs})


def main(
    target: Annotated[str, typer.Option(help="As for biglittle.load.")] = "smollm2-135m-instruct",
    draft: Annotated[str, typer.Option(help="As for biglittle.load.")] = "prompt-lookup",
    draft_quantize: Annotated[str | None, typer.Option(help="As for biglittle.load.")] = None,
    dtype: Annotated[str, typer.Option(help="As for biglittle.load.")] = "bfloat16",
    policies: Annotated[list[str] | None, typer.Option(help="Beside plain batching.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="At a time.")] = None,
    batches: Annotated[int, typer.Option(help="Of every number of rows.")] = 3,
    waves: Annotated[int, typer.Option(help="Requests of a row, one after another.")] = 1,
    new_tokens: Annotated[int, typer.Option(help="A request.")] = 64,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench-batching.jsonl"),
    only_report: Annotated[bool, typer.Option("--report", help="Time nothing.")] = False,
) -> None:
    """Speculation beside plain batching."""
    console = Console(width=150)
    setting: dict[str, Any] = {
        "target": target,
        "draft": draft,
        "draft_quantize": draft_quantize,
        "dtype": dtype,
        "policies": policies or POLICIES,
        "new_tokens": new_tokens,
        "chunk": CHUNK,
        "waves": waves,
    }
    console.print(json.dumps(configuration() | setting))
    if not only_report:
        with torch.inference_mode():
            measure(setting, rows or ROWS, batches, waves, out)
    results = [result for result in read(out) if setting.items() <= result.items()]
    if not results:
        raise SystemExit(f"{out} holds nothing of this setting")
    report(results, console)


if __name__ == "__main__":
    typer.run(main)
