"""The questions of Spec-Bench (Xia et al. 2024) and of MT-bench, whose format they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..tasks import Example, Task
from .files import Record, json_records
from .options import ReadOptions

__all__ = ["is_spec_bench", "read_spec_bench"]

MT_BENCH = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
TASKS = {**dict.fromkeys(MT_BENCH, "chat"), "math_reasoning": "math"}
METRICS = {"translation": ("bleu",), "summarization": ("rougeL",), "math": ("exact_match",)}


def is_spec_bench(record: Record) -> bool:
    """Whether a row has this format."""
    return "category" in record and "turns" in record


def read_spec_bench(path: Path, options: ReadOptions) -> tuple[Task, ...]:
    """One task for each group of categories, in the order of the file.

    MT-bench's eight categories are "chat", `math_reasoning` is "math"; every other category is a
    task of its own name. Without a chat template, an example is its first turn.
    """
    chat = options.chat is not False
    groups: dict[str, list[Example]] = {}
    for record in json_records(path):
        category = record.text("category")
        groups.setdefault(TASKS.get(category, category), []).append(_example(record, chat))
    return tuple(
        Task(name, tuple(examples), _metrics(name, examples)) for name, examples in groups.items()
    )


def _metrics(name: str, examples: list[Example]) -> tuple[str, ...]:
    complete = all(example.references for example in examples)
    return METRICS.get(name, ()) if complete else ()


def _example(record: Record, chat: bool) -> Example:
    turns = record.texts("turns")
    number = record.where.rpartition(":")[2]
    return Example(
        record.label("question_id", number),
        turns if chat else turns[:1],
        chat,
        _references(record),
    )


def _references(record: Record) -> tuple[str, ...]:
    """Those of the first turn: the first item, a text or a list of texts."""
    given: Any = record.fields.get("reference") or [[]]
    expected = "a list with a text, or a list of texts, for each turn"
    if not isinstance(given, list):
        raise record.refusal("reference", given, expected)
    first = given[0] if isinstance(given[0], list) else [given[0]]
    if not all(isinstance(text, str) for text in first):
        raise record.refusal("reference", given, expected)
    return tuple(text for text in first if text)
