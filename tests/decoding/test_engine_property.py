"""Requests that come, decode and go in any order: each row is as it would be alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import Markov, ScriptedRunner, check_caches, finish, request, run

from biglittle import FinishReason, Result
from biglittle.decoding import Capacity, Engine, Request, Row
from biglittle.decoding.sampling import Pipeline
from biglittle.drafters import ModelDrafter, model
from biglittle.lookahead import CostAware

VOCAB = 11


def chain(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64)


BIG = Markov(chain(0))
LITTLE = Markov(0.6 * chain(0) + 0.4 * chain(1))

POLICIES = [
    "none",
    "cost-aware:read=0",
    "static:tokens=1",
    "static:tokens=4",
    "dynamic",
    "heuristic:start=2",
    "fallback:threshold=0.5",
    "bild:fallback=0.4,rollback=1",
    "bild:fallback=0,rollback=1,after_rollback=target,first=target",
    "bild:fallback=0.2,verify_end=false,shortcut=rest",
]
PIPELINES = [
    Pipeline(),
    Pipeline(sampling=True),
    Pipeline(sampling=True, pointwise=(tf.TemperatureLogitsWarper(0.6), tf.TopKLogitsWarper(4))),
    Pipeline(prefix=(tf.RepetitionPenaltyLogitsProcessor(1.4),)),
    Pipeline(sampling=True, custom=(lambda ids, scores: scores,)),
]


def make_request(number: int) -> Request:
    """Any number names a request."""
    number, policy = divmod(number, len(POLICIES))
    number, pipeline = divmod(number, len(PIPELINES))
    number, new = divmod(number, 9)
    prompt = [(number * k + pipeline) % VOCAB for k in range(1, 2 + number % 5)]
    return request(
        prompt,
        POLICIES[policy],
        pipeline=PIPELINES[pipeline],
        new=1 + new,
        eos=[0] if number % 3 else [],
        seed=number,
    )


def make_engine(rows: int | None, capacity: Capacity | None = None) -> Engine:
    little = ModelDrafter(ScriptedRunner(LITTLE, VOCAB, context=16), VOCAB)
    target = ScriptedRunner(BIG, VOCAB, rows=rows)
    return Engine(target, little, vocab=VOCAB, capacity=capacity)


def essence(result: Result) -> Any:
    trace = [(r.drafted, r.accepted, r.fallback) for r in result.rounds or ()]
    return result.token_ids, result.origins, result.finish_reason, trace


@cache
def alone(number: int) -> Any:
    return essence(run(make_engine(None), [make_request(number)])[0])


EVENT = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, 4000)),
    st.tuples(st.just("step"), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
)


EVENTS = st.lists(EVENT, min_size=3, max_size=25)
KEPT = st.sampled_from([0, 12, 1000])


def happen(engine: Engine, events: list[tuple[str, int]]) -> list[tuple[int, Row]]:
    """Let requests come and go; the rows, and their requests' numbers."""
    rows: list[tuple[int, Row]] = []
    for event, number in events:
        if event == "admit":
            rows.append((number, engine.admit(make_request(number))))
        elif event == "step":
            engine.step()
        elif rows:
            engine.cancel(rows[number % len(rows)][1])
        check_caches(engine)
    finish(engine)
    return rows


@settings(max_examples=60)
@given(limit=st.sampled_from([None, 1, 2, 3]), kept=KEPT, events=EVENTS)
def test_rows_are_as_alone_whatever_happens_beside_them(
    limit: int | None, kept: int, events: list[tuple[str, int]]
) -> None:
    capacity = Capacity(kv_tokens=35 if kept else None, prefix_tokens=kept)
    for number, row in happen(make_engine(limit, capacity), events):
        result = row.result()
        tokens, origins, *_ = alone(number)
        written = len(result.token_ids)
        assert result.token_ids == tokens[:written]
        if isinstance(row.lookahead, CostAware) and not row.bound:
            continue  # it goes by the number of rows
        if result.finish_reason is FinishReason.CANCELLED:
            assert result.origins == origins[:written]
        else:
            assert essence(result) == alone(number)


@settings(max_examples=60)
@given(chunk=st.integers(1, 4), rows=st.sampled_from([None, 1, 3]), kept=KEPT, events=EVENTS)
def test_prompts_in_chunks_change_no_output(
    chunk: int, rows: int | None, kept: int, events: list[tuple[str, int]]
) -> None:
    """Nor what is sampled from a seed, nor what a lossy policy writes."""
    capacity = Capacity(chunk=chunk, rows=rows, kv_tokens=50, prefix_tokens=kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "APART", 1)
        for number, row in happen(make_engine(None, capacity), events):
            assert row.finished
            tokens = alone(number)[0]
            complete = row.finish_reason is not FinishReason.CANCELLED
            assert tuple(row.new_tokens) == tokens[: None if complete else len(row.new_tokens)]
