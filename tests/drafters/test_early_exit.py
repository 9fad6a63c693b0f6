"""The target's first layers as the draft."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.fakes import request
from tests.models import VOCAB, build
from torch import Tensor, nn

from biglittle.decoding import Engine, Row
from biglittle.drafters import EarlyExitDrafter
from biglittle.engines.base import Prompt
from biglittle.engines.transformers import make_runner
from biglittle.lookahead import DraftStep


def go_on(step: DraftStep) -> Tensor:
    return torch.zeros(len(step.tokens), dtype=torch.int8)


def cut(model: Any, layers: int) -> Any:
    """A model of its own with the first layers only."""
    short = copy.deepcopy(model)
    short.model.layers = nn.ModuleList(list(short.model.layers)[:layers])
    short.config.num_hidden_layers = layers
    return short


@pytest.mark.parametrize("layers", [1, 2])
def test_it_drafts_what_the_first_layers_would_write(layers: int) -> None:
    model = build("llama")
    target = make_runner(model)
    drafter = EarlyExitDrafter(target, layers, VOCAB)
    rows = [Row(request(prompt), None) for prompt in ([3, 4, 5, 6], [7, 8])]
    for row in rows:
        target.admit(Prompt(tuple(row.tokens[:-1])))
        drafter.admit(row)
    draft = drafter.propose(rows, [4, 2], go_on)
    for row, part in zip(rows, draft.rows, strict=True):
        ids = torch.tensor([row.tokens])
        alone = cut(model, layers).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(part.ids), do_sample=False
        )
        assert part.ids == alone[0, ids.shape[1] :].tolist()
    assert target.lengths == [3, 1]  # the target itself has read nothing more


@pytest.mark.parametrize("layers", [1, 2])
def test_what_it_leaves_in_the_slots_never_shows(layers: int) -> None:
    model = build("llama", seed=1)
    target = make_runner(model)
    engine = Engine(target, EarlyExitDrafter(target, layers, VOCAB), vocab=VOCAB)
    prompts = [[3, 4, 5, 6], [7, 8], [9, 10, 11]]
    rows = [engine.admit(request(p, "static:tokens=4", new=16)) for p in prompts]
    while engine.busy:
        engine.step()
    for prompt, row in zip(prompts, rows, strict=True):
        ids = torch.tensor([prompt])
        plain = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False
        )
        assert row.new_tokens == plain[0, len(prompt) :].tolist()
        assert row.stats.drafted > 0


def test_there_is_no_second_copy() -> None:
    target = make_runner(build("llama"))
    drafter = EarlyExitDrafter(target, 2, VOCAB)
    assert drafter.runner.cache is target.cache  # type: ignore[attr-defined]
    shared = {id(p) for p in target.model.parameters()}
    assert {id(p) for p in drafter.runner.model.parameters()} <= shared  # type: ignore[attr-defined]
