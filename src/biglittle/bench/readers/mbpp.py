"""MBPP (Austin et al. 2021): programs from a description and three tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..tasks import CodeTests, Example, Task
from .files import Record, json_records
from .options import ReadOptions

__all__ = ["is_mbpp", "mbpp_task", "read_mbpp"]

STOP = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n```")
CHAT = (
    "You are an expert Python programmer, and here is your task: {description} Your code should "
    "pass these tests:\n\n{tests}\n\nAnswer with one code block."
)


def is_mbpp(record: Record) -> bool:
    """Whether a row has this format."""
    return "test_list" in record


def read_mbpp(path: Path, options: ReadOptions) -> tuple[Task, ...]:
    """One task, "mbpp"; of the full data set's format or the sanitized one's."""
    return (mbpp_task(json_records(path), options),)


def mbpp_task(records: Iterable[Record], options: ReadOptions) -> Task:
    """Rows as a task: requests to a chat model, or with `chat=False` completions.

    A chat model gets the paper's prompt without examples; a completion goes on from a docstring
    with the description and the tests.
    """
    chat = options.chat is not False
    examples = tuple(_example(record, chat) for record in records)
    return Task("mbpp", examples, ("pass@1",), () if chat else STOP)


def _example(record: Record, chat: bool) -> Example:
    description = record.text("text" if "text" in record else "prompt")
    shown = "\n".join(record.texts("test_list"))
    setup = record.optional_text("test_setup_code")
    if record.fields.get("test_imports"):  # of the sanitized data set
        setup = "\n".join(record.texts("test_imports"))
    tests = f"{setup}\n{shown}\n"
    number = record.where.rpartition(":")[2]
    name = record.label("task_id", number)
    if chat:
        turn = CHAT.replace("{description}", description).replace("{tests}", shown)
        return Example(name, (turn,), chat, tests=CodeTests("", tests))
    prompt = f'"""\n{description}\n{shown}\n"""\n'
    return Example(name, (prompt,), chat, tests=CodeTests(prompt, tests))
