"""The project's own prompts, for when the user has none at hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["BuiltInPrompt", "builtin_prompts"]


@dataclass(frozen=True, slots=True)
class BuiltInPrompt:
    """A prompt and the kind of work that it asks for."""

    task: str
    """chat, code, summarization, translation or extraction."""
    text: str


@cache
def builtin_prompts() -> tuple[BuiltInPrompt, ...]:
    """Six prompts of each task; tasks take turns, so that the first few are of all tasks."""
    lines = (files(__package__) / "prompts.jsonl").read_text(encoding="utf8").splitlines()
    rows = [json.loads(line) for line in lines]
    return tuple(BuiltInPrompt(row["task"], row["prompt"]) for row in rows)
