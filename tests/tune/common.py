"""A tiny pair whose little model is nearly the big one, a task, and costs that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers as tf
from tests.cli.conftest import make_tokenizer, save_model

import biglittle
from biglittle.bench.summary import Interval
from biglittle.bench.tasks import Example, Task
from biglittle.costs import Costs
from biglittle.diagnosis.predict import settings
from biglittle.tune import Change, Setting, Timed

WORDS = [
    "big",
    "little",
    "draft",
    "target",
    "fast",
    "slow",
    "old",
    "new",
    "one",
    "two",
    "red",
    "blue",
]
COSTS = Costs(0.1, (1, 2, 4, 8, 16), (1.0, 1.05, 1.1, 1.2, 1.4), context=64)
"""A little model that is ten times as fast, in seconds that are easy to reckon with."""
NEW = 12


@cache
def folders() -> dict[str, str]:
    """A target, a draft that is nearly the same, and one that is not."""
    root, tokenizer = Path(mkdtemp(prefix="biglittle-tune-")), make_tokenizer()
    target = save_model(root / "target", tokenizer, seed=0)
    model = tf.AutoModelForCausalLM.from_pretrained(target)
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.data += 0.04 * weight.std() * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(root / "near")
    tokenizer.save_pretrained(root / "near")
    other = save_model(root / "other", tokenizer, seed=5, layers=1)
    return {"target": target, "near": str(root / "near"), "other": other}


@cache
def pair(draft: str = "near") -> biglittle.Pair:
    """The pair in float32."""
    drafter = folders().get(draft, draft)
    return biglittle.load(folders()["target"], drafter, dtype="float32")


def task(count: int = 12, **changes: Any) -> Task:
    """Examples of one turn, with references."""
    examples = tuple(
        Example(
            str(index),
            (f"the {WORDS[index % len(WORDS)]} model writes {index}",),
            chat=index % 2 == 0,
            references=(f"the {index}",),
        )
        for index in range(count)
    )
    return Task(**{"name": "words", "examples": examples, **changes})


def with_costs(folder: Path, costs: Costs = COSTS) -> Path:
    """A run's folder in which passes were timed already."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "costs.json").write_text(json.dumps([costs.as_dict()]))
    return folder


def few_settings(*given: Any, **named: Any) -> dict[str, list[str]]:
    """In place of `settings`: four of every lookahead, so that replay takes no time."""
    return {name: some[1::3][:4] or some for name, some in settings(*given, **named).items()}


def timing(over_lossless: float = 1.2, over_plain: float = 2.0) -> Callable[..., Timed]:
    """In place of `time_policies`: what the clock would say."""

    def time_policies(lab: Any, policy: str, lossless: str, *_: Any) -> Timed:
        ratio = None if policy == lossless else Interval(over_lossless)
        return Timed(5, Interval(over_plain), Interval(over_plain), ratio)

    return time_policies


def change(low: float = -1.0, *, budget: str = "bleu: -2", value: float = 29.5) -> Change:
    """A change of half a point."""
    return Change(budget, 30.0, value, value - 30, low, 0.5, -2.0, 6, 3)


def setting(policy: str = "dynamic", ms: float = 5.0, changes: Sequence[Change] = ()) -> Setting:
    """A setting made by hand."""
    lossless = biglittle.parse_policy(policy).lossless
    return Setting(policy, lossless, 6, ms, 10 / ms, 0.8, 0.1, 0.05, tuple(changes))
