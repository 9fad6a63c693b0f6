"""HumanEval (Chen et al. 2021): functions to complete, with tests."""

from __future__ import annotations

from pathlib import Path

from ..tasks import CodeTests, Example, Task
from .files import Record, json_records
from .options import ReadOptions

__all__ = ["is_human_eval", "read_human_eval"]

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n@", "\n```")
"""What follows the function; the first five as in the paper (section 2.2)."""

CHAT = (
    "Complete this Python function. Answer with the whole function in one code block.\n\n"
    "```python\n{prompt}\n```"
)


def is_human_eval(record: Record) -> bool:
    """Whether a row has this format."""
    return "entry_point" in record and "test" in record


def read_human_eval(path: Path, options: ReadOptions) -> tuple[Task, ...]:
    """One task, "humaneval": completions, or with `chat=True` requests to a chat model."""
    chat = options.chat is True
    examples = tuple(_example(record, chat) for record in json_records(path))
    return (Task("humaneval", examples, ("pass@1",), () if chat else STOP),)


def _example(record: Record, chat: bool) -> Example:
    prompt, entry_point = record.text("prompt"), record.text("entry_point")
    turn = CHAT.replace("{prompt}", prompt.strip()) if chat else prompt
    tests = CodeTests(prompt, f"{record.text('test')}\ncheck({entry_point})\n", entry_point)
    return Example(record.text("task_id"), (turn,), chat, tests=tests)
