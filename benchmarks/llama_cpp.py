"""The llama.cpp engine: ours beside llama.cpp's own loop, and speculation beside plain decoding.

    python -m benchmarks.llama_cpp --folder GGUFS               # everything
    python -m benchmarks.llama_cpp --folder GGUFS --targets q4_0 --tasks code
    python -m benchmarks.llama_cpp --report

The models are the embedded pair, converted into the folder when they are not there yet. Systems:
"loop" is llama.cpp through its binding's decode function, token by token, with an argmax and
nothing else; "plain" is our decoding by the target alone; the others draft with the little model
in q4_0. The target "torch" is the big model in bfloat16 in the transformers engine.

Runs of a prompt follow each other, in an order that turns from prompt to prompt. Milliseconds a
token after the first one (reading the prompt is left out: it is the same for all systems).
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

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
from benchmarks.workloads import prompts, token_ids
from biglittle.engines.llama_cpp.binding import library
from biglittle.engines.llama_cpp.context import BATCH
from biglittle.engines.llama_cpp.convert import convert

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
TARGETS = ("bf16", "q8_0", "q4_0", "torch")
TASKS = ("code", "chat")
OURS = {
    "plain": "none",
    "constant": "static:tokens=5",
    "dynamic": "dynamic",
    "dynamic-0.7": "dynamic:threshold=0.7,tokens=8",
    "cost-aware": "cost-aware",
}
SYSTEMS = ("loop", *OURS)


def gguf(name: str, quantize: str, folder: Path) -> Path:
    """A model of the catalogue as a GGUF file of that type."""
    file = folder / f"{name}-{quantize}.gguf"
    if not file.is_file():
        convert(name, file, quantize)
    return file


class Bench:
    """One target, and every system over it."""

    def __init__(self, target: str, folder: Path, new_tokens: int) -> None:
        self.new_tokens = new_tokens
        in_torch = target == "torch"
        big: Any = TARGET if in_torch else gguf(TARGET, target, folder)
        dtype = "bfloat16" if in_torch else "auto"
        self.pair = biglittle.load(big, gguf(DRAFT, "q4_0", folder), dtype=dtype)
        self.systems = OURS if in_torch else SYSTEMS

    def ids(self, prompt: Any) -> list[int]:
        """Token ids of a prompt."""
        return token_ids(self.pair.tokenizer, prompt)

    def run(self, system: str, ids: list[int]) -> dict[str, Any]:
        """One prompt through one system."""
        if system == "loop":
            return self._loop(ids)
        result = self.pair.generate(
            ids, policy=OURS[system], temperature=0, max_new_tokens=self.new_tokens
        )
        stats = result.stats
        decoding = stats.total_seconds - stats.first_token_seconds
        return {
            "tokens": list(result.token_ids),
            "ms": 1000 * decoding / max(1, stats.new_tokens - 1),
            "total_ms": 1000 * stats.total_seconds / stats.new_tokens,
            "outside": stats.outside_seconds / stats.total_seconds,
            "outside_round_ms": 1000 * stats.outside_seconds / max(1, stats.rounds),
            "acceptance": stats.acceptance_rate,
            "target_passes": stats.target_passes,
            "draft_passes": stats.draft_passes,
        }

    def _loop(self, ids: list[int]) -> dict[str, Any]:
        """llama.cpp's own greedy decoding, with nothing but an argmax in Python."""
        binding, model = library(), self.pair.target
        context = model.borrow()  # a context as ours is, for its settings
        pointer = context._pointer
        ends = set(self.pair.tokenizer.end_ids)
        feed, written = list(ids), list[int]()
        started = time.perf_counter()
        first = started
        while len(written) < self.new_tokens and not (written and written[-1] in ends):
            for start in range(0, len(feed), BATCH):
                part = feed[start : start + BATCH]
                tokens = (ctypes.c_int32 * len(part))(*part)
                code = binding.llama_decode(pointer, binding.llama_batch_get_one(tokens, len(part)))
                assert code == 0, code
            logits = binding.llama_get_logits_ith(pointer, -1)
            feed = [int(np.argmax(np.ctypeslib.as_array(logits, (model.vocab,))))]
            written += feed
            if len(written) == 1:
                first = time.perf_counter()
        now = time.perf_counter()
        binding.llama_memory_clear(binding.llama_get_memory(pointer), True)
        model.give_back(context)
        return {
            "tokens": written,
            "ms": 1000 * (now - first) / max(1, len(written) - 1),
            "total_ms": 1000 * (now - started) / len(written),
        }


def plan(
    target: str, tasks: list[str], count: int, done: set[tuple[str, str, int, str]]
) -> Iterator[tuple[str, int, str, Any]]:
    """What is to be run: task, prompt, system."""
    systems = list(OURS if target == "torch" else SYSTEMS)
    for task in tasks:
        for index, prompt in enumerate(prompts(task, count)):
            turn = index % len(systems)
            for system in systems[turn:] + systems[:turn]:
                if (target, task, index, system) not in done:
                    yield task, index, system, prompt


def report(rows: list[dict[str, Any]], console: Console) -> None:
    """A table a target and task."""
    for target, task in dict.fromkeys((row["target"], row["task"]) for row in rows):
        results = by_system(rows, SYSTEMS, target=target, task=task)
        count = len(results["plain"])
        table = Table(title=f"target {target}, draft q4_0, {task}: median over {count} prompts")
        columns = (
            "system", "ms/token", "quartiles", "vs plain", "vs loop", "with the prompt", "outside",
            "outside ms/round", "acceptance", "passes big/little", "same tokens",
        )  # fmt: skip
        for column in columns:
            table.add_column(column, justify="left" if column == "system" else "right")
        for system, found in results.items():
            if found:
                table.add_row(*_cells(system, found, results))
        console.print(table)


def _cells(system: str, found: Rows, results: dict[str, Rows]) -> list[str]:
    plain, loop = results["plain"], results["loop"]
    own, peer = ratios(plain, found), ratios(loop, found)
    whole = ratios(plain, found, "total_ms")
    ms = [row["ms"] for row in found.values()]
    same = [agreement(row["tokens"], plain[i]["tokens"]) for i, row in found.items() if i in plain]

    def mean(key: str, form: str) -> str:
        values = [float(row[key]) for row in found.values() if key in row]
        return form.format(statistics.mean(values)) if values else ""

    return [
        system,
        f"{statistics.median(ms):.0f}",
        quartiles(ms, "{:.0f}"),
        f"{statistics.median(own):.2f}×" if own else "",
        f"{statistics.median(peer):.3f}×" if peer else "",
        f"{statistics.median(whole):.2f}×" if whole else "",
        mean("outside", "{:.1%}"),
        mean("outside_round_ms", "{:.2f}"),
        mean("acceptance", "{:.2f}"),
        mean("target_passes", "{:.0f}") + "/" + mean("draft_passes", "{:.0f}"),
        f"{statistics.mean(same):.0%}" if same else "",
    ]


def main(
    folder: Annotated[Path, typer.Option(help="Where the GGUF files are, or will be.")] = Path(
        "gguf"
    ),
    targets: Annotated[list[str] | None, typer.Option(help="Of " + ", ".join(TARGETS))] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="Of " + ", ".join(TASKS))] = None,
    count: Annotated[int, typer.Option("--prompts", help="Prompts a task.")] = 4,
    new_tokens: Annotated[int, typer.Option(help="New tokens a prompt, at most.")] = 96,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench-llama-cpp.jsonl"),
    only_report: Annotated[bool, typer.Option("--report", help="Measure nothing.")] = False,
) -> None:
    """The llama.cpp engine, beside llama.cpp's own loop."""
    console = Console(width=170)
    targets, tasks = targets or list(TARGETS), tasks or list(TASKS)
    check_names(target=(targets, TARGETS), task=(tasks, TASKS))
    console.print(configuration() | {"new_tokens": new_tokens})
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets if not only_report else []:
        done = {(row["target"], row["task"], row["prompt"], row["system"]) for row in read(out)}
        todo = list(plan(target, tasks, count, done))
        if not todo:
            continue
        bench = Bench(target, folder, new_tokens)
        for system in bench.systems:
            bench.run(system, bench.ids("Warm up the machine."))
        for step, (task, index, system, prompt) in enumerate(todo):
            row = bench.run(system, bench.ids(prompt))
            append(out, row | {"target": target, "task": task, "prompt": index, "system": system})
            what = f"{target} {task} {index} {system}"
            console.print(f"[dim]{step + 1}/{len(todo)} {what}: {row['ms']:.0f} ms[/]")
    report(read(out), console)


if __name__ == "__main__":
    typer.run(main)
