"""A tiny pair, and runs made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.cli.conftest import make_tokenizer, save_model

import biglittle
from biglittle.bench.records import Header, Record, Recorded
from biglittle.bench.systems import Answer
from biglittle.bench.tasks import Example, Task
from biglittle.results import Stats


@cache
def folders() -> dict[str, str]:
    """A target, another model, and a folder without a chat template."""
    root, tokenizer = Path(mkdtemp(prefix="biglittle-bench-")), make_tokenizer()
    bare = make_tokenizer(template=None)
    return {
        "target": save_model(root / "target", tokenizer, seed=0),
        "draft": save_model(root / "draft", tokenizer, seed=1, layers=1),
        "bare": save_model(root / "bare", bare, seed=0),
    }


@cache
def pair(draft: str = "draft", target: str = "target", **options: Any) -> biglittle.Pair:
    """The pair in float32; with "target" as draft, one that is always right."""
    drafter = folders().get(draft, draft)
    return biglittle.load(folders()[target], drafter, dtype="float32", **options)


def task(name: str = "words", count: int = 3, **changes: Any) -> Task:
    """Examples of one turn."""
    examples = tuple(
        Example(str(index), (f"{name}: the big model, {index}",), chat=index % 2 == 0)
        for index in range(count)
    )
    return replace(Task(name, examples), **changes)


def header(systems: Mapping[str, bool] | None = None, **settings: Any) -> Header:
    """A header of a greedy run."""
    return Header(
        settings={
            "target": "big",
            "draft": "little",
            "precision": "float32 on cpu",
            "systems": dict(systems or {"none": True, "dynamic": True}),
            "temperature": 0.0,
            **settings,
        },
        data={"words": "1234"},
        versions={"biglittle": "0", "torch": "1"},
        hardware={"processor": "abacus", "cores": 2},
        command="biglittle bench --out here",
    )


def answer(
    seconds: float,
    tokens: Sequence[int] = (1, 2, 3, 4),
    *,
    rounds: Sequence[tuple[int, int]] = (),
    text: str = "an answer",
    **stats: Any,
) -> Answer:
    """An answer whose cost is as the rounds say."""
    made = Stats(
        rounds=len(rounds),
        target_passes=1 + len(rounds),
        draft_passes=sum(drafted for drafted, _ in rounds),
        prompt_tokens=10,
        new_tokens=len(tokens),
        predicted=sum(drafted for drafted, _ in rounds),
        drafted=sum(drafted for drafted, _ in rounds),
        accepted=sum(accepted for _, accepted in rounds),
        total_seconds=seconds,
        first_token_seconds=seconds / 2,
    )
    return Answer(text, tuple(tokens), seconds, replace(made, **stats), tuple(rounds))


def record(task: str, example: str, system: str, *answers: Answer) -> Record:
    """A record; what was asked follows from task and example."""
    return Record(task, example, system, answers, prompt=f"{task}/{example}")


def recorded(*records: Record, **settings: Any) -> Recorded:
    """A run of these."""
    systems = dict.fromkeys(["none", *(r.system for r in records)], True)
    systems |= {name: False for name in systems if name.startswith("bild")}
    return Recorded(header(systems, **settings), records, ())
