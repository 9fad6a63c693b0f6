"""Our decoding beside transformers' own, interleaved in one process.

    python -m benchmarks.core                     # everything; about an hour on two cores
    python -m benchmarks.core --pairs smollm2-bf16 --prompts 2
    python -m benchmarks.core --tasks code --systems "biglittle plain" --systems "biglittle int4"
    python -m benchmarks.core --report            # the tables of what was measured so far
    python -m benchmarks.core --memory            # peak memory of both sides

Every run is one prompt through one system. Runs of a prompt follow each other, in an order that
turns from prompt to prompt, so that a slow moment of the machine meets all systems alike. Speeds
are milliseconds a new token, prefill included; ratios are taken prompt by prompt, and "decoding"
is our ratio to our plain decoding after the first token, the prefill left out. Results are
appended to a file as they come, and a second call goes on where the first one stopped.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

import biglittle
from benchmarks.results import (
    Rows,
    agreement,
    append,
    by_system,
    check_names,
    configuration,
    quartiles,
    ratios,
    read,
)
from benchmarks.workloads import DATA, TASKS, entry, prompts, token_ids
from biglittle import catalogue

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PAIRS: dict[str, tuple[str, str, torch.dtype]] = {
    "qwen-bf16": ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct", torch.bfloat16),
    "smollm2-bf16": ("smollm2-135m-instruct", "smollm2-135m-instruct", torch.bfloat16),
    "smollm2-fp32": ("smollm2-135m-instruct", "smollm2-135m-instruct", torch.float32),
}
OURS = {
    "plain": "none",
    "constant": "static:tokens=5",
    "heuristic": "heuristic",
    "dynamic": "dynamic",
    "bild": "bild:fallback=0.6,rollback=3",
    "int4": "dynamic:threshold=0.6",  # with a draft in four bits, where it is a model of its own
}
THEIRS = {
    "plain": None,
    "constant": ("constant", 5, 0.0),
    "heuristic": ("heuristic", 5, 0.0),
    "dynamic": ("constant", 20, 0.4),
}
SIDES = ("biglittle", "transformers")
SYSTEMS = [*(f"biglittle {name}" for name in OURS), *(f"transformers {name}" for name in THEIRS)]


class Bench:
    """One pair, and every system over it."""

    def __init__(self, name: str, new_tokens: int, sides: tuple[str, ...] = SIDES) -> None:
        target, draft, self.dtype = PAIRS[name]
        dtype = self.dtype
        big = catalogue.fetch(entry(target))
        self.little = little = catalogue.fetch(entry(draft)) if draft != target else None
        self.tokenizer = AutoTokenizer.from_pretrained(big)
        self.new_tokens = new_tokens
        if "biglittle" in sides:
            ours = biglittle.load(big, little, dtype=dtype)
            # Without a draft of its own, the target drafts for itself with the same weights.
            draft_model = ours.draft or ours.target
            self.pair = biglittle.Pair(ours.target, draft_model, self.tokenizer)
        if "transformers" in sides:  # models of its own, as transformers loads them
            load = AutoModelForCausalLM.from_pretrained
            self.target = load(big, dtype=dtype).eval()
            self.draft = load(little, dtype=dtype).eval() if little else self.target

    @cached_property
    def int4(self) -> biglittle.Pair:
        """The same target, its draft in four bits."""
        options: dict[str, Any] = {"tokenizer": self.tokenizer, "dtype": self.dtype}
        return biglittle.load(self.pair.target, self.little, draft_quantize="int4", **options)

    def ids(self, prompt: Any) -> list[int]:
        """Token ids of a prompt."""
        return token_ids(self.tokenizer, prompt)

    def run(self, system: str, ids: list[int]) -> dict[str, Any]:
        """One prompt through one system."""
        side, name = system.split()
        run = self._ours if side == "biglittle" else self._theirs
        started = time.perf_counter()
        tokens, extra = run(name, ids)
        seconds = time.perf_counter() - started
        return {"tokens": tokens, "ms": 1000 * seconds / len(tokens), **extra}

    def _ours(self, name: str, ids: list[int]) -> tuple[list[int], dict[str, Any]]:
        pair = self.int4 if name == "int4" else self.pair
        result = pair.generate(
            ids, policy=OURS[name], temperature=0, max_new_tokens=self.new_tokens
        )
        stats = result.stats
        decoding = stats.total_seconds - stats.first_token_seconds
        return list(result.token_ids), {
            "decode_ms": 1000 * decoding / max(1, stats.new_tokens - 1),
            "outside": stats.outside_seconds / stats.total_seconds,
            "target_passes": stats.target_passes,
            "draft_passes": stats.draft_passes,
            "acceptance": stats.acceptance_rate,
        }

    def _theirs(self, name: str, ids: list[int]) -> tuple[list[int], dict[str, Any]]:
        options: dict[str, Any] = {}
        if (setting := THEIRS[name]) is not None:
            config = self.draft.generation_config
            config.num_assistant_tokens_schedule = setting[0]
            config.num_assistant_tokens = setting[1]
            config.assistant_confidence_threshold = setting[2]
            options["assistant_model"] = self.draft
        inputs = torch.tensor([ids])
        output: torch.Tensor = self.target.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=self.new_tokens,
            do_sample=False,
            **options,
        )
        tokens: list[int] = output[0, len(ids) :].tolist()
        return tokens, {}


def measure(
    names: list[str],
    tasks: list[str],
    systems: list[str],
    count: int,
    new_tokens: int,
    out: Path,
    console: Console,
) -> None:
    """Run what is not in the file yet."""
    done = {(row["pair"], row["task"], row["prompt"], row["system"]) for row in read(out)}
    for name in names:
        todo = list(_plan(name, tasks, systems, count, done))
        if not todo:
            continue
        bench = Bench(name, new_tokens)
        for system in ("biglittle int4", "transformers dynamic"):
            if bench.little is not None or system != "biglittle int4":
                bench.run(system, bench.ids("Warm up the machine."))
        for step, (task, index, system, prompt) in enumerate(todo):
            row = bench.run(system, bench.ids(prompt))
            row |= {"pair": name, "task": task, "prompt": index, "system": system}
            append(out, row)
            console.print(
                f"[dim]{step + 1}/{len(todo)} {name} {task} {index} {system}: {row['ms']:.0f} ms[/]"
            )


def _plan(
    name: str,
    tasks: list[str],
    systems: list[str],
    count: int,
    done: set[tuple[str, str, int, str]],
) -> Iterator[tuple[str, int, str, Any]]:
    target, draft, _ = PAIRS[name]
    systems = [s for s in systems if target != draft or s != "biglittle int4"]
    for task_index, task in enumerate(tasks):
        for index, prompt in enumerate(prompts(task, count)):
            turn = (index + task_index) % len(systems)
            for system in systems[turn:] + systems[:turn]:
                if (name, task, index, system) not in done:
                    yield task, index, system, prompt


def report(rows: list[dict[str, Any]], console: Console) -> None:
    """A table a pair and task, then what the goals ask about."""
    for pair, task in dict.fromkeys((row["pair"], row["task"]) for row in rows):
        console.print(_table(pair, task, by_system(rows, SYSTEMS, pair=pair, task=task)))


def _table(pair: str, task: str, results: dict[str, Rows]) -> Table:
    table = Table(title=f"{pair}, {task}: median over {len(results[SYSTEMS[0]])} prompts")
    columns = (
        "system", "ms/token", "quartiles", "vs own plain", "decoding", "vs transformers", "range",
        "outside", "acceptance", "passes big/little", "same tokens",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "system" else "right")
    for system, found in results.items():
        if found:
            table.add_row(*_cells(system, found, results))
    return table


def _cells(system: str, found: Rows, results: dict[str, Rows]) -> list[str]:
    side, name = system.split()
    own = ratios(results[f"{side} plain"], found)
    decoding = ratios(results[f"{side} plain"], found, "decode_ms")
    peer = ratios(results.get(f"transformers {name}", {}), found) if side != "transformers" else []
    reference = results["transformers plain"]
    same = [
        agreement(row["tokens"], reference[index]["tokens"])
        for index, row in found.items()
        if index in reference
    ]
    ours = side == "biglittle"
    ms = [row["ms"] for row in found.values()]

    def mean(key: str) -> float:
        return statistics.mean(float(row[key]) for row in found.values())

    return [
        system,
        f"{statistics.median(ms):.0f}",
        quartiles(ms, "{:.0f}"),
        f"{statistics.median(own):.2f}×" if own else "",
        f"{statistics.median(decoding):.2f}×" if decoding else "",
        f"{statistics.median(peer):.2f}×" if peer else "",
        quartiles(peer, "{:.2f}") if peer else "",
        f"{mean('outside'):.1%}" if ours else "",
        f"{mean('acceptance'):.2f}" if ours and name != "plain" else "",
        f"{mean('target_passes'):.0f}/{mean('draft_passes'):.0f}" if ours else "",
        f"{statistics.mean(same):.0%}" if same else "",
    ]


def memory(name: str, new_tokens: int, console: Console) -> None:
    """Peak memory of a process of each side that does the same work."""
    peaks = {}
    for side in ("transformers", "biglittle"):
        command = [sys.executable, "-m", "benchmarks.core", "--peak-of", side, "--pairs", name]
        command += ["--new-tokens", str(new_tokens)]
        output = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[side] = int(output.stdout.strip().splitlines()[-1])
    ratio = peaks["biglittle"] / peaks["transformers"] - 1
    megabytes = {side: f"{peak / 1024:.0f} MiB" for side, peak in peaks.items()}
    console.print(f"peak memory, {name}, dynamic: {megabytes} ({ratio:+.1%})")


def peak(side: str, name: str, new_tokens: int) -> int:
    """Peak resident memory of this process after one prompt, KiB."""
    bench = Bench(name, new_tokens, (side,))
    bench.run(f"{side} dynamic", bench.ids(prompts("summarization", 1)[0]))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _exclusive(action: Callable[[], None]) -> None:
    try:
        action()
    except FileNotFoundError as missing:
        raise SystemExit(f"no benchmark data: {missing.filename}") from None


def main(
    pairs: Annotated[list[str] | None, typer.Option(help="Pairs to run.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Tasks to run.")] = None,
    systems: Annotated[list[str] | None, typer.Option(help="Systems to run.")] = None,
    count: Annotated[int, typer.Option("--prompts", help="Prompts a task.")] = 3,
    new_tokens: Annotated[int, typer.Option(help="New tokens a prompt, at most.")] = 96,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench-core.jsonl"),
    only_report: Annotated[bool, typer.Option("--report", help="Measure nothing.")] = False,
    peaks: Annotated[bool, typer.Option("--memory", help="Peak memory only.")] = False,
    peak_of: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Our decoding beside transformers' own."""
    console = Console(width=170)
    names, tasks, systems = pairs or list(PAIRS), tasks or list(TASKS), systems or SYSTEMS
    check_names(pair=(names, PAIRS), task=(tasks, TASKS), system=(systems, SYSTEMS))
    if peak_of is not None:
        print(peak(peak_of, names[0], new_tokens))
        return
    console.print(
        configuration() | {"new_tokens": new_tokens, "data": DATA.name, "pid": os.getpid()}
    )
    if peaks:
        for name in names:
            memory(name, new_tokens, console)
        return
    if not only_report:
        _exclusive(lambda: measure(names, tasks, systems, count, new_tokens, out, console))
    report(read(out), console)


if __name__ == "__main__":
    typer.run(main)
