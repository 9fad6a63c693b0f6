"""A predicted text is drafted from, and changes no lossless output."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.fakes import ScriptedDrafter, ScriptedRunner, Table, check_caches, engine_of, request
from tests.models import build

from biglittle import Origin, Pair
from biglittle.drafters import ModelDrafter, PredictedDrafter, RowDraft
from biglittle.drafters.predicted import follow, one_hot


@pytest.mark.parametrize(
    ("prediction", "written", "place"),
    [
        ([5, 6, 7], [], 0),
        ([5, 6, 7], [5], 1),
        ([5, 6, 7], [9], None),
        ([5, 6, 7], [5, 6], 2),
        ([5, 6, 7], [5, 6, 7], None),  # it is over
        ([5, 6, 7], [9, 6], None),  # one token alike is too little
        ([5, 6, 7, 8, 5, 6, 9, 4], [1, 5, 6], 2),  # the nearest of two
        ([5, 6, 7, 8, 5, 6, 9, 4], [1, 8, 5, 6], 6),  # the longest of two
        ([], [1], None),
    ],
)
def test_follow(prediction: list[int], written: list[int], place: int | None) -> None:
    assert follow(prediction, written) == place


def scripted(text: list[int], drafter: Any) -> tuple[Any, ScriptedRunner]:
    table = Table(20, lost=0)
    table.write([1, 2], text)
    target = ScriptedRunner(table, 20)
    engine = engine_of(target, PredictedDrafter(drafter, 20))
    return engine, target


def test_what_is_predicted_is_read_in_few_passes() -> None:
    text = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    engine, target = scripted(text, None)
    asked = request([1, 2], "static:tokens=5")
    row = engine.admit(dataclasses.replace(asked, prediction=tuple(text)))
    while engine.busy:
        engine.step()
        check_caches(engine)
    assert row.new_tokens == text
    # The first token, then windows of five with one of the target's after each.
    assert target.forwards == [(6,), (5,)]
    assert row.stats.accepted == 9


def test_a_prediction_that_is_left_is_found_again() -> None:
    text = [5, 6, 7, 17, 18, 8, 9, 10, 11, 12, 13, 14]
    engine, _ = scripted(text, None)
    prediction = (5, 6, 7, 3, 8, 9, 10, 11, 12, 13, 14)
    row = engine.admit(
        dataclasses.replace(request([1, 2], "static:tokens=4"), prediction=prediction)
    )
    while engine.busy:
        engine.step()
        check_caches(engine)
    assert row.new_tokens == text
    assert row.origins[:4] == [
        Origin.TARGET,
        Origin.ACCEPTED,
        Origin.ACCEPTED,
        Origin.CORRECTED,
    ]
    assert row.origins.count(Origin.ACCEPTED) == 6


def test_beside_rows_of_another_drafter() -> None:
    text = list(range(5, 17))
    other = ScriptedDrafter(lambda tokens, budget: [(tokens[-1] + 1, 0.9)] * min(budget, 1))
    engine, _ = scripted(text, other)
    plain = request([1, 2], "static:tokens=5")
    rows = [engine.admit(plain), engine.admit(dataclasses.replace(plain, prediction=tuple(text)))]
    while engine.busy:
        engine.step()
    assert [row.new_tokens for row in rows] == [text, text]
    assert rows[0].stats.rounds > rows[1].stats.rounds


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_with_and_without_are_what_they_are_alone(temperature: float) -> None:
    pair = Pair(build("llama", 0), build("llama", 1), policy="static:tokens=4")

    def run(asked: list[Any]) -> list[Any]:
        engine = pair.engine()
        engine.drafter = PredictedDrafter(engine.drafter, pair.vocab)
        rows = [engine.admit(one) for one in asked]
        while engine.busy:
            engine.step()
        return [row.result() for row in rows]

    prompts = [[3, 4, 5], [8, 9], [20, 21, 22, 23]]
    asked = pair.requests(prompts, max_new_tokens=24, temperature=temperature, seed=5)
    truth = [pair.generate(p, policy="none", max_new_tokens=24).token_ids for p in prompts]
    predictions = [truth[0], (), (*truth[2][:7], 1, *truth[2][8:])]
    asked = [
        dataclasses.replace(one, prediction=prediction)
        for one, prediction in zip(asked, predictions, strict=True)
    ]
    together = run(asked)
    assert [r.token_ids for r in together] == [run([one])[0].token_ids for one in asked]
    if not temperature:
        assert [r.token_ids for r in together] == truth
        assert together[0].stats.acceptance_rate == 1.0
        assert together[0].stats.rounds == 5
        assert together[2].stats.acceptance_rate > 0.5


def test_copied_tokens_count_as_drawn_with_certainty() -> None:
    q = torch.full((2, 1, 3), 1 / 3)
    parts = [RowDraft([2], [0.3]), RowDraft([4, 1], [1.0, 1.0])]
    found = one_hot(q, parts, [1], 2, 5)
    assert found[0].tolist() == [pytest.approx([1 / 3] * 3 + [0, 0]), [0] * 5]
    assert found[1].tolist() == [[0, 0, 0, 0, 1], [0, 1, 0, 0, 0]]


def test_the_model_drafter_is_reached() -> None:
    pair = Pair(build("llama", 0), build("llama", 1))
    wrapped = PredictedDrafter(pair.engine().drafter, pair.vocab)
    assert isinstance(wrapped.other, ModelDrafter)
    assert wrapped.context == wrapped.other.context
