"""Reads tasks from files and from the Hugging Face hub."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import ParameterError, nearest
from ..metrics import check
from ..tasks import Task
from .files import json_records, read_lines
from .hub import HUB, is_hub, read_hub
from .human_eval import is_human_eval, read_human_eval
from .mbpp import is_mbpp, read_mbpp
from .options import ReadOptions
from .parallel import read_parallel
from .prompts import read_jsonl, read_text
from .spec_bench import is_spec_bench, read_spec_bench

__all__ = ["FORMATS", "read_tasks"]

FORMATS: dict[str, Callable[[Path, ReadOptions], tuple[Task, ...]]] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "spec-bench": read_spec_bench,
    "parallel": read_parallel,
    "humaneval": read_human_eval,
    "mbpp": read_mbpp,
}
"""Formats of files, by the names that a caller gives."""

RECOGNIZED = {"humaneval": is_human_eval, "mbpp": is_mbpp, "spec-bench": is_spec_bench}


def read_tasks(
    spec: str | Path,
    *,
    format: str = "auto",
    reference: str | Path | None = None,
    template: str | None = None,
    chat: bool | None = None,
    metrics: Sequence[str] | None = None,
    limit: int | None = None,
) -> tuple[Task, ...]:
    """Read the tasks of a file, or of a data set of the hub.

    Everything is checked before it returns: that examples are what the format wants, that metrics
    have the references or tests that they need, and that their packages are installed.

    Args:
        spec: A file, which may be compressed (`.gz`); or one of wmt14, iwslt2017, xsum,
            cnn_dailymail, mbpp and alpaca, with a configuration after a colon (`wmt14:de-en`).
            A file of that name comes first.
        format: One of `FORMATS`; "auto" looks at the first line: JSON with the fields of
            HumanEval, MBPP or Spec-Bench, other JSON, or plain text.
        reference: A file of translations, line by line, which makes the file parallel text.
        template: For parallel text, translation and summarization: the prompt, with `{source}`
            where the text goes.
        chat: Whether prompts go through a chat template; False for models without one. Default:
            as the format is commonly used, which is completion for HumanEval, chat for the rest.
        metrics: In place of the format's own; an empty list for none.
        limit: At most so many examples a task, from its beginning.

    Returns:
        One task, or one a group of categories for Spec-Bench.

    Raises:
        ParameterError: Input that cannot be used; the message gives the file and the line.
        LoadError: A data set that cannot be had from the hub.
    """
    options = ReadOptions(
        chat=chat,
        reference=None if reference is None else Path(reference).expanduser(),
        template=template,
        limit=limit,
    )
    tasks = _read(spec, format, options)
    if template is not None and any(e.source is None for task in tasks for e in task.examples):
        raise ParameterError(
            f"{spec} takes no template: that is for parallel text, translation and summarization"
        )
    tasks = tuple(
        dataclasses.replace(
            task,
            examples=task.examples[:limit],
            metrics=task.metrics if metrics is None else tuple(metrics),
        )
        for task in tasks
    )
    for task in tasks:
        check(task)
    return tasks


def _read(spec: str | Path, format: str, options: ReadOptions) -> tuple[Task, ...]:
    if format != "auto" and format not in FORMATS:
        known = ", ".join(("auto", *FORMATS))
        raise ParameterError(f"format={format!r} is none of {known}{nearest(format, FORMATS)}")
    path = Path(spec).expanduser()
    if format == "auto" and not path.exists():
        if is_hub(str(spec)) and options.reference is None:
            return read_hub(str(spec), options)
        raise ParameterError(
            f"there is no file {str(spec)!r}, and no data set of that name; data sets are "
            f"{', '.join(HUB)}{nearest(str(spec), HUB)}"
        )
    if format == "auto":
        format = "parallel" if options.reference is not None else _recognized(path)
    if format != "parallel" and options.reference is not None:
        raise ParameterError(f"format={format!r} takes no reference file; it is for parallel text")
    return FORMATS[format](path, options)


def _recognized(path: Path) -> str:
    """The format of a file, by its name and first line."""
    json_name = path.name.removesuffix(".gz").endswith((".jsonl", ".json"))
    if not json_name and not _is_object(read_lines(path)):
        return "text"
    first = json_records(path)[0]
    return next((name for name, fits in RECOGNIZED.items() if fits(first)), "jsonl")


def _is_object(lines: Sequence[str]) -> bool:
    """Whether the first line that is not blank is a JSON object."""
    line = next(filter(str.strip, lines))
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
