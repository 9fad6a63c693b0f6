"""What every drafter promises, each on the same target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.fakes import request
from tests.models import VOCAB, build
from torch import Tensor

from biglittle import drafters
from biglittle.decoding import Engine, Row
from biglittle.drafters import (
    Draft,
    Drafter,
    EarlyExitDrafter,
    ModelDrafter,
    PredictedDrafter,
    PromptLookupDrafter,
)
from biglittle.engines.base import Prompt
from biglittle.engines.transformers import make_runner
from biglittle.lookahead import Decision, DraftStep

TARGET, LITTLE = build("llama"), build("llama", seed=1)
PROMPTS = [[3, 4, 5, 3, 4], [9, 9], [1, 2, 3, 1, 2, 3, 1], [8, 7, 8]]

Make = Callable[[Any], Drafter]

MAKERS: dict[type[Any], Make] = {
    ModelDrafter: lambda target: ModelDrafter(make_runner(LITTLE), VOCAB),
    EarlyExitDrafter: lambda target: EarlyExitDrafter(target, 1, VOCAB),
    PromptLookupDrafter: lambda target: PromptLookupDrafter(vocab=VOCAB),
    PredictedDrafter: lambda target: PredictedDrafter(
        ModelDrafter(make_runner(LITTLE), VOCAB), VOCAB
    ),
}


@pytest.fixture(params=MAKERS, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


def test_every_drafter_is_tested() -> None:
    public = {getattr(drafters, name) for name in drafters.__all__ if name.endswith("Drafter")}
    assert public - {Drafter} == set(MAKERS)


def go_on(step: DraftStep) -> Tensor:
    return torch.zeros(len(step.tokens), dtype=torch.int8)


def start(make: Make, prompts: Sequence[Sequence[int]], **options: Any) -> tuple[Any, list[Row]]:
    """A drafter with rows of these prompts."""
    target = make_runner(TARGET)
    drafter = make(target)
    rows = [Row(request(p, seed=n, **options), None) for n, p in enumerate(prompts)]
    for row in rows:
        target.admit(Prompt(tuple(row.tokens)))
        drafter.admit(row)
    target.truncate([len(p) - 1 for p in prompts])
    return drafter, rows


def test_a_drafter_has_limits_and_a_clock(make: Make) -> None:
    drafter, _ = start(make, PROMPTS)
    assert drafter.context is None or drafter.context > 0
    assert drafter.max_rows is None or drafter.max_rows > 0
    assert drafter.seconds >= 0


@pytest.mark.parametrize("sampling", [False, True])
def test_drafts_are_within_budgets_and_vocabulary(make: Make, sampling: bool) -> None:
    drafter, rows = start(make, PROMPTS, sampling=sampling)
    budgets = [4, 1, 0, 2]
    draft: Draft = drafter.propose(rows, budgets, go_on)
    for part, budget in zip(draft.rows, budgets, strict=True):
        assert len(part.ids) + part.dropped == len(part.confidence) <= budget
        assert all(0 <= token < VOCAB for token in part.ids)
        assert all(0 <= sure <= 1 for sure in part.confidence)
        assert not part.dropped
        assert not part.open
    assert draft.width == max(len(part.ids) for part in draft.rows)
    if draft.q is not None:
        assert sampling
        for part, q in zip(draft.rows, draft.q, strict=True):
            ids = torch.tensor(part.ids, dtype=torch.long)
            own = q[: len(ids)]
            assert torch.allclose(own.sum(-1), torch.ones(len(ids)), atol=1e-5)
            assert (own.gather(-1, ids[:, None]) > 0).all()


@pytest.mark.parametrize("sampling", [False, True])
def test_a_row_drafts_as_it_would_alone(make: Make, sampling: bool) -> None:
    drafter, rows = start(make, PROMPTS, sampling=sampling)
    together = drafter.propose(rows, [3] * len(rows), go_on)
    for n, prompt in enumerate(PROMPTS):
        alone, _ = start(make, [prompt])
        row = Row(request(prompt, seed=n, sampling=sampling), None)
        (part,) = alone.propose([row], [3], go_on).rows
        assert part.ids == together.rows[n].ids


@pytest.mark.parametrize("decision", [Decision.KEEP, Decision.DROP])
def test_the_lookahead_is_asked_after_every_token_and_obeyed(
    make: Make, decision: Decision
) -> None:
    asked: list[int] = []

    def at_second(step: DraftStep) -> Tensor:
        asked.append(step.index)
        assert step.tokens.shape == step.confidence.shape == step.top.shape == (len(PROMPTS),)
        assert step.logits is None or step.logits.shape == (len(PROMPTS), VOCAB)
        return torch.full((len(PROMPTS),), decision if step.index == 1 else 0, dtype=torch.int8)

    drafter, rows = start(make, PROMPTS)
    draft = drafter.propose(rows, [4] * len(PROMPTS), at_second)
    assert asked == [0, 1]
    for part in draft.rows:
        if part.predicted == 2:
            assert len(part.ids) == (2 if decision is Decision.KEEP else 1)
            assert part.dropped == (decision is Decision.DROP)
    assert any(part.predicted == 2 for part in draft.rows)


def test_nothing_is_drafted_past_an_eos(make: Make) -> None:
    drafter, rows = start(make, PROMPTS)
    second = drafter.propose(rows, [4] * len(PROMPTS), go_on).rows[2].ids[1]
    drafter, rows = start(make, PROMPTS, eos=[second])
    ids = drafter.propose(rows, [4] * len(PROMPTS), go_on).rows[2].ids
    assert ids.index(second) == len(ids) - 1 <= 1


def test_greedy_output_is_the_targets_with_rows_coming_and_going(make: Make) -> None:
    target = make_runner(TARGET)
    engine = Engine(target, make(target), vocab=VOCAB)
    lengths = [4, 9, 15, 6]
    rows = []
    for prompt, new in zip(PROMPTS, lengths, strict=True):
        rows.append(engine.admit(request(prompt, "static:tokens=3", new=new)))
        engine.step()
        engine.step()
    while engine.busy:
        engine.step()
    for prompt, new, row in zip(PROMPTS, lengths, rows, strict=True):
        ids = torch.tensor([prompt])
        plain = TARGET.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
        )
        assert row.new_tokens == plain[0, len(prompt) :].tolist()
