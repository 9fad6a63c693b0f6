"""Two runs side by side: before and after a change, or one machine and another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ParameterError
from .export import FORMAT
from .summary import Interval, bootstrap, speedup

__all__ = ["Comparison", "SideBySide", "compare_runs"]

LIKE = ("settings", "hardware", "versions")
"""Parts of a header that should be the same."""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """One system on one task, in both runs, over the prompts that both have."""

    task: str
    system: str
    examples: int
    ms_per_token: tuple[float, float]
    ratio: Interval
    """How many times as fast the second run is."""
    speedups: tuple[float | None, float | None]
    """Over each run's own plain decoding, over all of its prompts."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two runs have in common, and what they have not."""

    rows: tuple[SideBySide, ...]
    warnings: tuple[str, ...]
    """What else differs between them, a line each."""


def compare_runs(first: Path, second: Path) -> Comparison:
    """Set two runs side by side.

    Args:
        first: The `summary.json` of a run.
        second: Another's.

    Raises:
        ParameterError: A file that cannot be read or is no summary, or runs without a system and a
            prompt in common.
    """
    one, two = _read(first), _read(second)
    timed = [_times(run) for run in (one, two)]
    promised = [
        {(row["task"], row["system"]): row["speedup"] for row in run["rows"]} for run in (one, two)
    ]
    rows = []
    for key, times in timed[0].items():
        both = [prompt for prompt in times if prompt in timed[1].get(key, {})]
        if not both:
            continue
        ours, theirs = ([found[key][prompt] for prompt in both] for found in timed)
        (s1, t1), (s2, t2) = (zip(*found, strict=True) for found in (ours, theirs))
        rows.append(
            SideBySide(
                *key,
                examples=len(both),
                ms_per_token=(1000 * sum(s1) / sum(t1), 1000 * sum(s2) / sum(t2)),
                ratio=bootstrap(speedup, s1, t1, s2, t2),
                speedups=(promised[0].get(key), promised[1].get(key)),
            )
        )
    if not rows:
        raise ParameterError(
            f"{first} and {second} have no system and prompt in common; run both on the same task"
        )
    return Comparison(tuple(rows), tuple(_warnings(one, two, timed)))


Times = dict[tuple[str, str], dict[str, tuple[float, float]]]
"""Seconds and tokens of every prompt, by task and system."""


def _times(run: Mapping[str, Any]) -> Times:
    found: Times = {}
    for item in run["examples"]:
        key = item["task"], item["system"]
        found.setdefault(key, {})[item["prompt"]] = item["seconds"], item["tokens"]
    return found


def _warnings(one: Mapping[str, Any], two: Mapping[str, Any], timed: list[Times]) -> Iterator[str]:
    for part in LIKE:
        ours, theirs = one["header"][part], two["header"][part]
        for key in dict.fromkeys([*ours, *theirs]):
            if key != "systems" and ours.get(key) != theirs.get(key):
                yield f"{part} differ: {key} is {ours.get(key)!r} and {theirs.get(key)!r}"
    for place, found, other in (("first", timed[0], timed[1]), ("second", timed[1], timed[0])):
        only = [f"{system} on {task}" for task, system in found if (task, system) not in other]
        if only:
            yield f"only in the {place} run: {', '.join(only)}"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf8"))
    except OSError as cause:
        raise ParameterError(f"cannot read {path}: {cause.strerror}") from cause
    except ValueError as cause:
        raise ParameterError(f"{path} is not JSON; give the summary.json of a bench") from cause
    found = data if isinstance(data, dict) else {}
    if found.get("format") != FORMAT["format"]:
        raise ParameterError(f"{path} is not the summary of a bench; give its summary.json")
    if found.get("version") != FORMAT["version"]:
        raise ParameterError(
            f"{path} is of version {found.get('version')} of the format, and this is "
            f"{FORMAT['version']}; make it anew with the same version of biglittle"
        )
    return found
