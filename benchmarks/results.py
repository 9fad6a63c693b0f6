"""What the benchmarks share: what numbers depend on, where they are kept, how they are compared."""

from __future__ import annotations

import itertools
import json
import platform
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

import biglittle
from biglittle.decoding import Engine

Rows = dict[int, dict[str, Any]]
"""Results of one system, by prompt."""


def configuration() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "biglittle": biglittle.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def read(out: Path) -> list[dict[str, Any]]:
    """The rows of the results file."""
    if not out.exists():
        return []
    return [json.loads(line) for line in out.read_text(encoding="utf8").splitlines()]


def append(out: Path, row: dict[str, Any]) -> None:
    """Add a row to the results file."""
    with out.open("a", encoding="utf8") as file:
        file.write(json.dumps(row) + "\n")


def check_names(**kinds: tuple[list[str], Iterable[str]]) -> None:
    """Leave with a message for a name that is given and not known: kind=(given, known)."""
    for kind, (given, known) in kinds.items():
        if unknown := [name for name in given if name not in known]:
            raise SystemExit(f"unknown {kind} {unknown[0]!r}; known: {', '.join(known)}")


def by_system(rows: list[dict[str, Any]], systems: Iterable[str], **where: Any) -> dict[str, Rows]:
    """Every system's results, of the rows with these values."""
    chosen = [row for row in rows if all(row[key] == value for key, value in where.items())]
    return {
        system: {row["prompt"]: row for row in chosen if row["system"] == system}
        for system in systems
    }


def ratios(reference: Rows, found: Rows, key: str = "ms") -> list[float]:
    """How many times faster, prompt by prompt, where both sides were measured."""
    return [reference[i][key] / row[key] for i, row in found.items() if key in reference.get(i, {})]


def agreement(tokens: list[int], reference: list[int]) -> float:
    """Share of the reference's tokens before the first difference."""
    same = next(
        (i for i, (a, b) in enumerate(zip(tokens, reference, strict=False)) if a != b),
        min(len(tokens), len(reference)),
    )
    return same / max(len(tokens), len(reference))


def quartiles(values: list[float], form: str) -> str:
    """The middle half of the values, as text."""
    if len(values) < 2:
        return ""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{form.format(low)}–{form.format(high)}"


def take_turns(engines: Mapping[str, Engine]) -> dict[str, list[float]]:
    """Run engines to their end, a step of each in turn in every order, so that a slow moment of the
    machine meets all alike; the seconds of every step."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    turns = itertools.cycle(list(itertools.permutations(engines)))
    while any(engine.busy for engine in engines.values()):
        for name in next(turns):
            if engines[name].busy:
                before = time.perf_counter()
                engines[name].step()
                seconds[name].append(time.perf_counter() - before)
    return seconds
