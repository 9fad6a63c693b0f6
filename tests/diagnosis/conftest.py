"""Pairs and traces whose numbers are known beforehand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import build

from biglittle import Pair
from biglittle.costs import Costs
from biglittle.diagnosis import Profile
from biglittle.traces import Header, Proposals, Trace, Traces, record

PROMPTS = [[1, 5, 9, 5, 9, 5], [1, 7], [1, 3, 4, 8, 3, 4, 3, 4]]
NEW = 24


def costs(draft: float = 0.1, verify: float = 0.05, **more: Any) -> Costs:
    """A step of one second; every further token of a pass costs `verify`."""
    return Costs(draft, (1, 2), (1.0, 1.0 + verify), **{"context": 8, **more})


def profile(draft: float = 0.1, verify: float = 0.05) -> Profile:
    return Profile((costs(draft, verify),))


def written(tokens: list[int], drafted: list[int], sure: list[float]) -> Traces:
    """A trace of so many tokens after `PROMPTS[0]`, with these choices of the draft from the second
    one on; where it is wrong, it goes no further."""
    confidence = np.array(sure, np.float32)
    chain = Proposals(
        np.array(drafted, np.int32), confidence, confidence[:, None], np.zeros_like(confidence)
    )
    wrong = [
        at for at, pair in enumerate(zip(tokens[1:], drafted, strict=True), 1) if len({*pair}) > 1
    ]
    trace = Trace(
        prompt=tuple(PROMPTS[0]),
        key="key",
        tokens=tuple(tokens),
        limit=99,
        readable=len(tokens),
        context=None,
        chain=chain,
        branches=dict.fromkeys(wrong, chain[:0]),
    )
    models = {"target": "t", "draft": "d", "tokenizer": "", "summary": ""}
    return Traces(Header(models, chained=True, cap=20, top=1), (trace,))


def periodic() -> Traces:
    """A text that goes round in circles of seven tokens, and a draft that is always right."""
    tokens = [10 + at % 7 for at in range(40)]
    return written(tokens, tokens[1:], [0.9] * 39)


def make_pair(kind: str) -> Pair:
    """A target with itself, almost itself, or a stranger as its draft."""
    target = build("llama")
    near = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    for weight in near.parameters():
        weight.data += 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    drafts = {"itself": target, "near": near, "other": build("llama", seed=5)}
    return Pair(target, drafts.get(kind, kind))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Pair, Traces]]:
    """A pair of that kind, and traces of `PROMPTS`."""
    folder, known = tmp_path_factory.mktemp("traces"), dict[str, tuple[Pair, Traces]]()

    def get(kind: str) -> tuple[Pair, Traces]:
        if kind not in known:
            pair, path = make_pair(kind), Path(folder) / kind.replace(":", "-")
            known[kind] = pair, record(pair, PROMPTS, path, max_new_tokens=NEW)
        return known[kind]

    return get


Recorded = Callable[[str], tuple[Pair, Traces]]
