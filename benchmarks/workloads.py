"""Prompts for benchmarks: from the data folder where it lies beside the project."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from biglittle import catalogue

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SPEC_BENCH = {
    "chat": ("writing", "roleplay", "humanities", "stem"),
    "qa": ("qa",),
    "summarization": ("summarization",),
    "translation": ("translation",),
    "math": ("math_reasoning",),
    "rag": ("rag",),
}
TASKS = ("code", "chat", "summarization", "translation")
LONGEST = 1800  # characters; longer prompts measure prefill, which both sides share


def prompts(task: str, count: int, data: Path = DATA) -> list[Any]:
    """The first `count` prompts of a task: text for code completion, chat messages otherwise.

    Raises:
        FileNotFoundError: The data folder is not there.
    """
    found = [text for text in _texts(task, data) if len(text) <= LONGEST][:count]
    if task == "code":
        return found
    return [[{"role": "user", "content": text}] for text in found]


def token_ids(tokenizer: Any, prompt: Any) -> list[int]:
    """Token ids of a prompt, chat messages through the chat template."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt).input_ids)
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def entry(name: str) -> catalogue.CatalogueEntry:
    """A model of the catalogue."""
    found = catalogue.find(name)
    assert found is not None, name
    return found


def _texts(task: str, data: Path) -> Iterator[str]:
    if task == "code":
        for row in _rows(data / "human_eval" / "HumanEval-dev.jsonl"):
            yield row["prompt"]
        return
    for row in _rows(data / "spec_bench" / "question-dev.jsonl"):
        if row["category"] in SPEC_BENCH[task]:
            yield row["turns"][0]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf8") as lines:
        for line in lines:
            yield json.loads(line)
