"""A summary as plain data: JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .summary import Interval, Row, Summary
from .systems import PLAIN

__all__ = ["FORMAT", "as_dict", "flat_row", "write_csv", "write_json"]

FORMAT = {"format": "biglittle bench summary", "version": 1}


def as_dict(summary: Summary) -> dict[str, Any]:
    """Everything but the texts, for JSON."""
    return {
        **FORMAT,
        "header": asdict(summary.header),
        "rows": [flat_row(summary, row) for row in summary.rows],
        "examples": [
            {
                "task": record.task,
                "example": record.example,
                "system": record.system,
                "prompt": record.prompt,
                "seconds": sum(answer.seconds for answer in record.answers),
                "tokens": sum(map(len, record.tokens)),
            }
            for record in summary.records
        ],
        "differences": [
            {**asdict(difference), "logits": [*map(_finite, difference.logits)]}
            for difference in summary.differences
        ],
    }


def flat_row(summary: Summary, row: Row) -> dict[str, Any]:
    """A row's numbers by name. Shares and rates are 0 … 1; None is what does not apply."""
    stats, exact, costs = row.stats, row.exactness, row.operations
    plain = summary.row(row.task, PLAIN)
    base = plain.operations if plain is not None else None
    draft, target, outside = row.shares
    flat: dict[str, Any] = {
        "task": row.task,
        "system": row.system,
        "lossless": row.lossless,
        "examples": row.examples,
        "new_tokens": stats.new_tokens,
        "seconds": row.seconds,
        **_interval("speedup", row.speedup),
        "ms_per_token": row.ms_per_token,
        "ms_per_later_token": row.ms_per_later_token,
        "acceptance": stats.acceptance_rate if stats.drafted else None,
        "accepted_per_round": stats.accepted_per_round if stats.drafted else None,
        "tokens_per_pass": row.tokens_per_pass,
        "rounds": stats.rounds,
        "target_passes": stats.target_passes,
        "draft_passes": stats.draft_passes,
        "layers": row.layers,
        "fallback": stats.fallback_rate if stats.predicted else None,
        "rollback": stats.rollback_rate if stats.predicted else None,
        "draft_share": draft,
        "target_share": target,
        "outside_share": outside,
        "identical": exact.share if exact else None,
        "near_ties": exact.near_ties if exact else None,
        "faults": exact.faults if exact else None,
        "flops_per_token": costs.flops if costs else None,
        "bytes_per_token": costs.bytes if costs else None,
        "intensity": costs.intensity if costs else None,
        "flops_ratio": costs.flops / base.flops if costs and base else None,
        "bytes_ratio": costs.bytes / base.bytes if costs and base else None,
        "intensity_ratio": costs.intensity / base.intensity if costs and base else None,
    }
    for quality in row.quality:
        flat[quality.metric] = quality.value
        flat |= _interval(f"{quality.metric}_difference", quality.difference)
        flat[f"{quality.metric}_signature"] = quality.signature
    return flat


def _interval(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _finite(number: float) -> float | None:
    """JSON has no infinity."""
    return number if math.isfinite(number) else None


def write_json(summary: Summary, path: Path) -> None:
    """The summary as a JSON file."""
    text = json.dumps(as_dict(summary), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf8")


def write_csv(summary: Summary, path: Path) -> None:
    """The rows as a CSV file; tasks with other metrics have empty cells."""
    rows: list[Mapping[str, Any]] = [flat_row(summary, row) for row in summary.rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
