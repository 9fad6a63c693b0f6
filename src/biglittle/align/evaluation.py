"""How well a draft serves its target, before and after: acceptance, speed, quality alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..bench.metrics import score
from ..bench.runner import next_prompt
from ..bench.tasks import Example, Task
from ..diagnosis.agreement import measure_agreement
from ..diagnosis.predict import Comparison, settings
from ..diagnosis.profile import Profile, measure_profile
from ..params import make_params
from ..traces import record, replay
from .data import Sample
from .rows import ROWS, run_rows

if TYPE_CHECKING:
    from ..decoding import Request
    from ..pair import Pair

__all__ = ["Evaluation", "evaluate"]

TOKENS = 4096  # of held-out answers, along which windows are recorded
CAP = 10  # tokens of a window
WINDOW = "static:tokens=5"

Progress = Callable[[str, int, int], None]
"""What is being done, how many steps of it are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A draft on held-out prompts."""

    agreement: float
    """The share of the target's tokens, after the first, that the draft would have proposed."""
    acceptance: float
    """Accepted of the tokens that are drafted in windows of 5."""
    tokens_per_pass: float
    """Written for a pass of the target, with such windows."""
    policy: str
    """The fastest lossless one, by prediction."""
    speedup: float
    """Predicted with it, over the target alone: one text at a time, after its first token."""
    quality: dict[str, float]
    """Of the draft's own answers, by task and metric, 0 … 100; empty without references."""


def evaluate(
    pair: Pair,
    samples: Sequence[Sample],
    traces: Path,
    *,
    tasks: Sequence[Task] = (),
    profile: Profile | None = None,
    known: bool = True,
    max_new_tokens: int = 256,
    rows: int = ROWS,
    progress: Progress | None = None,
) -> tuple[Evaluation, Profile]:
    """Judge a pair by answers of its target that are there already; the passes' costs, too.

    Args:
        pair: With a draft.
        samples: What the target answered, greedily. Windows are recorded along the first ones, of
            4,096 tokens in all.
        traces: Where they are kept; a killed run goes on.
        tasks: Held-out examples, for the quality of the draft's own answers.
        profile: What passes cost, if that is known.
        known: Whether the samples are what the target writes; else only their prompts count.
        max_new_tokens: Most tokens of an answer.
        rows: Answers of the draft that are written beside each other.
        progress: Told what is done.
    """
    say = progress or _silent
    ends = accumulate(len(sample.output) for sample in samples)
    chosen = [sample for sample, end in zip(samples, ends, strict=True) if end <= TOKENS]
    chosen = chosen or list(samples[:1])
    prompts = [prompt_of(sample) for sample in chosen]
    recorded = record(
        pair,
        prompts,
        traces,
        cap=CAP,
        outputs=[sample.output for sample in chosen] if known else None,
        progress=lambda done, total: say("seeing what the draft proposes", done, total),
        max_new_tokens=max_new_tokens,
    )
    if profile is None:
        profile = measure_profile(
            pair,
            prompt=prompts[0],
            progress=lambda done, total: say("timing passes", done, total),
        )
    families = settings(CAP, profile.costs[0], modelled=recorded.header.chained)
    best = Comparison(recorded, profile, families).best()[0]
    windows = replay(recorded, WINDOW)
    found = Evaluation(
        agreement=measure_agreement(recorded).rate,
        acceptance=windows.acceptance_rate,
        tokens_per_pass=1 + float(windows.accepted.sum()) / max(1, len(windows.start)),
        policy=best.policy,
        speedup=best.speedup,
        quality=_quality(pair, tasks, max_new_tokens, rows, say),
    )
    return found, profile


def prompt_of(sample: Sample) -> Any:
    """What `Pair.generate` takes for a sample."""
    if sample.source is None:
        return list(sample.prompt)
    source = torch.tensor([sample.source])
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "decoder_input_ids": torch.tensor([sample.prompt]),
    }


def _quality(
    pair: Pair, tasks: Sequence[Task], max_new_tokens: int, rows: int, say: Progress
) -> dict[str, float]:
    """The metrics of what the draft, or a target with an exit, answers alone; code is not run."""
    from ..pair import Pair as Alone

    judged = [(task, [m for m in task.metrics if m != "pass@1"]) for task in tasks]
    judged = [(task, metrics) for task, metrics in judged if metrics]
    if not judged:
        return {}
    alone = Alone(pair.target if pair.draft is None else pair.draft, tokenizer=pair.tokenizer)
    found = {}
    for task, metrics in judged:
        outputs = _answers(alone, task, max_new_tokens, rows, say)
        for metric in metrics:
            found[f"{task.name} {metric}"] = score(metric, task, outputs).value
    return found


def _answers(
    pair: Pair, task: Task, max_new_tokens: int, rows: int, say: Progress
) -> dict[str, str]:
    """First answers by the example's id."""
    params = make_params(
        None, {"temperature": 0.0, "max_new_tokens": max_new_tokens, "stop": task.stop}
    )

    def request(example: Example) -> Request:
        first = replace(example, turns=example.turns[:1])
        return pair.requests(next_prompt(pair, first), params=params)[0]

    found: dict[str, str] = {}
    for example, row in run_rows(pair, deque(task.examples), request, rows):
        found[example.id] = row.result().text
        say(f"alone: {task.name}", len(found), len(task.examples))
    return found


def _silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""
