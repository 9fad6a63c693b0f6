"""Pairs whose models agree often, seldom and always."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import build

from biglittle import Pair

PROMPTS = [[1, 5, 9, 5, 9, 5], [1, 7], [1, 3, 4, 8, 3, 4, 3, 4]]


def disturbed(model: Any, amount: float) -> Any:
    """A copy of a model with noise on its weights."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    for weight in other.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data += amount * weight.std() * noise
    return other


def make_pair(kind: str) -> Pair:
    name = "t5" if kind == "t5" else "llama"
    target = build(name)
    drafts: dict[str, Callable[[], Any]] = {
        "itself": lambda: target,
        "near": lambda: disturbed(target, 0.05),
        "other": lambda: build(name, seed=5),
        "t5": lambda: disturbed(target, 0.05),
    }
    return Pair(target, drafts.get(kind, lambda: kind)())


KINDS = ("near", "other", "itself", "prompt-lookup", "early-exit:layers=1", "t5")


@pytest.fixture(scope="session", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return make_pair(request.param)


@pytest.fixture(scope="session")
def near() -> Pair:
    return make_pair("near")
