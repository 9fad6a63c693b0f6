"""What `biglittle align` found, as a table for a recipe's page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.page import markdown

__all__ = ["before_and_after", "read_alignment"]


def read_alignment(folder: Path) -> dict[str, Any]:
    """`align.json` of a run's folder."""
    return dict(json.loads((folder / "align.json").read_text(encoding="utf8")))


def before_and_after(found: Mapping[str, Any]) -> list[str]:
    """The measures of `align.json`, on answers that were held out."""
    training, both = found["training"], (found["before"], found["after"])
    rows = [
        ["agreement", *(f"{100 * training[name]:.1f} %" for name in ("before", "after"))],
        ["accepted, of 5 drafted", *(f"{100 * one['acceptance']:.0f} %" for one in both)],
        ["tokens a pass of the target", *(f"{one['tokens_per_pass']:.2f}" for one in both)],
        ["predicted speed-up", *(f"{one['speedup']:.2f}×" for one in both)],
    ]
    return markdown(["", "before", "after"], rows)
