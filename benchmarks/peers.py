"""Speculative decoding of others beside ours, on the same GGUF files and prompts.

    pip install xllamacpp openvino-genai
    python -m benchmarks.peers --folder GGUFS --target q4_0 --tasks code

Others: llama.cpp's server (in the build of xllamacpp) and OpenVINO GenAI, each with and without
the little model as draft. Builds differ in the instructions that they use, so that speeds of
plain decoding differ, too; the table has the ratio to a system's own plain decoding as well.
Systems run one after another on all prompts, in this process; tokens are compared with ours.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any
from urllib.request import urlopen

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import biglittle
from benchmarks.llama_cpp import DRAFT, TARGET, TARGETS, TASKS, gguf
from benchmarks.results import (
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

Run = Callable[[list[int]], tuple[list[int], float]]
"""Token ids of a prompt → new tokens, and milliseconds a token with the prompt's reading."""

THREADS = os.cpu_count() or 1


def ours(policy: str) -> Callable[[Path, Path, int], Run]:
    """biglittle, under a policy."""

    def start(big: Path, little: Path, new_tokens: int) -> Run:
        pair = biglittle.load(big, little)

        def run(ids: list[int]) -> tuple[list[int], float]:
            result = pair.generate(ids, policy=policy, temperature=0, max_new_tokens=new_tokens)
            return list(result.token_ids), 1000 * result.stats.total_seconds / len(result.token_ids)

        return run

    return start


def server(drafted: int) -> Callable[[Path, Path, int], Run]:
    """llama.cpp's server; `drafted` tokens at most a round, 0 for none."""

    def start(big: Path, little: Path, new_tokens: int) -> Run:
        xllamacpp: Any = import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel = str(big), 4096, 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
        if drafted:
            kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
            params.speculative.types = [kind]
            draft = params.speculative.draft
            draft.mparams.path, draft.n_max, draft.p_min = str(little), drafted, 0.7
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = THREADS
        held = xllamacpp.Server(params)

        def run(ids: list[int]) -> tuple[list[int], float]:
            asked = {"prompt": ids, "n_predict": new_tokens, "temperature": 0.0}
            asked |= {"cache_prompt": False, "return_tokens": True}
            body = json.dumps(asked).encode()
            started = time.perf_counter()
            with urlopen(f"{held.listening_address}/completion", body) as answer:
                tokens = list(json.load(answer)["tokens"])
            return tokens, 1000 * (time.perf_counter() - started) / len(tokens)

        return run

    return start


def openvino(drafted: int) -> Callable[[Path, Path, int], Run]:
    """OpenVINO GenAI; `drafted` tokens at most a round, 0 for none."""

    def start(big: Path, little: Path, new_tokens: int) -> Run:
        ov: Any = import_module("openvino")
        openvino_genai: Any = import_module("openvino_genai")
        options: dict[str, Any] = {}
        if drafted:
            draft = _openvino_folder(little, openvino_genai)  # it takes no GGUF file as a draft
            options["draft_model"] = openvino_genai.draft_model(str(draft), "CPU")
        pipeline = openvino_genai.LLMPipeline(str(big), "CPU", **options)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = new_tokens, False
        if drafted:
            config.num_assistant_tokens = drafted

        def run(ids: list[int]) -> tuple[list[int], float]:
            inputs = openvino_genai.TokenizedInputs(
                ov.Tensor(np.array([ids], np.int64)), ov.Tensor(np.ones((1, len(ids)), np.int64))
            )
            started = time.perf_counter()
            tokens = list(pipeline.generate(inputs, config).tokens[0])
            return tokens, 1000 * (time.perf_counter() - started) / len(tokens)

        return run

    return start


def _openvino_folder(file: Path, openvino_genai: Any) -> Path:
    """A GGUF file as a folder in OpenVINO's own format, made once beside it."""
    folder = file.with_suffix("")
    if not (folder / "openvino_model.xml").is_file():
        folder.mkdir(exist_ok=True)
        link = folder / "model.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(file.resolve())
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    return folder


SYSTEMS: dict[str, Callable[[Path, Path, int], Run]] = {
    "biglittle plain": ours("none"),
    "biglittle dynamic": ours("dynamic:threshold=0.7,tokens=8"),
    "llama-server plain": server(0),
    "llama-server draft": server(8),
    "openvino plain": openvino(0),
    "openvino draft": openvino(5),
}


def report(rows: list[dict[str, Any]], console: Console) -> None:
    """A table a target and task."""
    for target, task in dict.fromkeys((row["target"], row["task"]) for row in rows):
        results = by_system(rows, SYSTEMS, target=target, task=task)
        count = max(map(len, results.values()))
        table = Table(title=f"target {target}, draft q4_0, {task}: median over {count} prompts")
        for column in ("system", "ms/token", "quartiles", "vs own plain", "same tokens"):
            table.add_column(column, justify="left" if column == "system" else "right")
        for system, found in results.items():
            if not found:
                continue
            own = ratios(results[f"{system.split()[0]} plain"], found)
            ms = [row["ms"] for row in found.values()]
            plain = results["biglittle plain"]
            same = [
                agreement(r["tokens"], plain[i]["tokens"]) for i, r in found.items() if i in plain
            ]
            table.add_row(
                system,
                f"{statistics.median(ms):.0f}",
                quartiles(ms, "{:.0f}"),
                f"{statistics.median(own):.2f}×" if own else "",
                f"{statistics.mean(same):.0%}" if same else "",
            )
        console.print(table)


def main(
    folder: Annotated[Path, typer.Option(help="Where the GGUF files are, or will be.")] = Path(
        "gguf"
    ),
    target: Annotated[str, typer.Option(help="Type of the big model.")] = "q4_0",
    tasks: Annotated[list[str] | None, typer.Option(help="Of " + ", ".join(TASKS))] = None,
    systems: Annotated[list[str] | None, typer.Option(help="Of those in the table.")] = None,
    count: Annotated[int, typer.Option("--prompts", help="Prompts a task.")] = 3,
    new_tokens: Annotated[int, typer.Option(help="New tokens a prompt, at most.")] = 96,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench-peers.jsonl"),
    only_report: Annotated[bool, typer.Option("--report", help="Measure nothing.")] = False,
) -> None:
    """Speculative decoding of others beside ours."""
    console = Console(width=150)
    tasks, systems = tasks or list(TASKS), systems or list(SYSTEMS)
    kinds = [kind for kind in TARGETS if kind != "torch"]
    check_names(target=([target], kinds), task=(tasks, TASKS), system=(systems, SYSTEMS))
    console.print(configuration() | {"new_tokens": new_tokens, "threads": THREADS})
    if not only_report:
        folder.mkdir(parents=True, exist_ok=True)
        big, little = gguf(TARGET, target, folder), gguf(DRAFT, "q4_0", folder)
        tokenizer = biglittle.LlamaModel(little).tokenizer
        done = {(row["target"], row["task"], row["prompt"], row["system"]) for row in read(out)}
        for system in systems:
            todo = [
                (task, index, token_ids(tokenizer, prompt))
                for task in tasks
                for index, prompt in enumerate(prompts(task, count))
                if (target, task, index, system) not in done
            ]
            if not todo:
                continue
            run = SYSTEMS[system](big, little, new_tokens)
            run(token_ids(tokenizer, "Warm up the machine."))
            for task, index, ids in todo:
                tokens, ms = run(ids)
                row = {"tokens": tokens, "ms": ms, "target": target, "task": task}
                append(out, row | {"prompt": index, "system": system})
                console.print(f"[dim]{target} {task} {index} {system}: {ms:.0f} ms[/]")
    report(read(out), console)


if __name__ == "__main__":
    typer.run(main)
