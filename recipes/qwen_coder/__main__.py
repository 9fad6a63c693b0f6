"""The page of the aligned pair, docs/aligned_pair.md, from the saved runs.

    python -m recipes.qwen_coder

What makes the runs are the commands of README.md; what they left here is beside this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmarks.page import markdown, speedup, times

from biglittle.bench.summary import ALL
from biglittle.bench.systems import PLAIN
from biglittle.errors import BiglittleError
from biglittle.tune import Profile

from ..alignment import before_and_after, read_alignment

GAINS = ("speed-up", "accepted", "tokens a pass")
HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
HEAD = """# A pair, aligned

Qwen2.5-Coder 0.5B, aligned to Qwen2.5-Coder 1.5B for translation by an adapter.
[recipes/qwen_coder](https://github.com/biglittle/biglittle/tree/main/recipes/qwen_coder)
lists the commands; `python -m recipes.qwen_coder` writes this page from what they left.
"""
ALIGNED = """
## The alignment

{samples:,} translations of the big model were trained on, {held_out} others held out. The adapter
has {size:.1f} MB. Command: `{command}`
"""
SPEED = """
## Speed, before and after

Whole answers, the prompt's reading included, on prompts that were not trained on. Speed-ups are
over the target alone on the same prompts, with 95 % intervals over prompts. {target} with {draft}
before, and aligned after, {precision}, the draft
in {quantize}; {machine}.
"""
PROFILES = """
## Profiles

What `biglittle tune` promises, by examples that it searched, and what it finds on others that the
search has not seen. Speed-ups are over the target alone after the prompt; changes of quality are
beside the target alone, in the budget's points, with 95 % intervals.
"""


def main(
    run: Annotated[Path, typer.Option(help="Where the commands left their results.")] = HERE,
) -> None:
    """Write the page."""
    write_page(run)


def write_page(run: Path, out: Path = DOCS / "aligned_pair.md") -> None:
    """Write the page from everything that is there."""
    lines = [HEAD, *alignment(run / "aligned")]
    lines += speeds(run / "bench")
    if tuned := sorted((run / "tuned").glob("*.json")):
        lines += ["", *profiles(tuned)]
    out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf8")


def alignment(folder: Path) -> list[str]:
    """Before and after, on answers that were held out."""
    found = read_alignment(folder)
    size = (folder / "adapter_model.safetensors").stat().st_size / 1e6
    command = found["made"]["command"]
    said = ALIGNED.format(**found["training"], size=size, command=command)
    return [said, *before_and_after(found)]


def speeds(bench: Path) -> list[str]:
    """What the policies gain with the draft before and after, a table of all prompts."""
    rows: list[list[str]] = []
    for folder in sorted(bench.iterdir()):
        before, after = (read_summary(folder / stage) for stage in ("before", "after"))
        for system, one in before["systems"].items():
            other = after["systems"][system]
            row = [folder.name, str(min(one["examples"], other["examples"])), f"`{system}`"]
            rows.append(row + [cell for side in (one, other) for cell in gain(side)])
    settings, machine = after["settings"], after["hardware"]
    said = SPEED.format(
        target=settings["target"],
        draft=before["settings"]["draft"],
        precision=settings["precision"],
        quantize=settings["draft_quantize"],
        machine=", ".join(f"{key}: {value}" for key, value in machine.items()),
    )
    header = ["prompts", "of them", "policy"]
    header += [f"{stage}: {what}" for stage in ("before", "after") for what in GAINS]
    return [said, *markdown(header, rows)]


def read_summary(folder: Path) -> dict[str, Any]:
    """A bench's settings, machine, and a row of every policy that drafts."""
    data = json.loads((folder / "summary.json").read_text(encoding="utf8"))
    rows = [row for row in data["rows"] if row["task"] != ALL and row["system"] != PLAIN]
    return {**data["header"], "systems": {row["system"]: row for row in rows}}


def gain(row: Mapping[str, Any]) -> list[str]:
    """A policy's speed-up, what of its drafts was accepted, and tokens a pass of the target."""
    return [
        speedup(row),
        f"{100 * row['acceptance']:.0f} %",
        f"{row['tokens_per_pass']:.2f}",
    ]


def profiles(paths: Iterable[Path]) -> list[str]:
    """Promise and finding of every profile."""
    rows = []
    for path in paths:
        profile = Profile.load(path).as_dict()
        promised, found, timed = (profile[name] for name in ("promised", "found", "timed"))
        rows.append(
            [
                ", ".join(profile["budgets"]),
                f"`{profile['policy']}`",
                "yes" if profile["lossless"] else "no",
                outcome(promised),
                outcome(found),
                "" if timed is None else times(**timed["speedup"]),
            ]
        )
    header = ["budget", "policy", "lossless", "promised", "found", "timed"]
    return [PROFILES, *markdown(header, rows)]


def outcome(setting: Mapping[str, Any] | None) -> str:
    """Speed and change of quality of a setting."""
    if setting is None:
        return ""
    changes = [
        f"{one['change']:+.1f} ({one['low']:+.1f} … {one['high']:+.1f})"
        for one in setting["changes"]
    ]
    return ", ".join([f"{setting['speedup']:.2f}×", *changes])


if __name__ == "__main__":
    try:
        typer.run(main)
    except BiglittleError as error:
        sys.exit(f"recipe: {error}")
