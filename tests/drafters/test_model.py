"""The draft model: what it reads, what it draws, and what it says that it drew from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers as tf
from tests.fakes import Markov, ScriptedRunner, request
from torch import Tensor

from biglittle.decoding import Row
from biglittle.decoding.sampling import Pipeline
from biglittle.drafters import Draft, ModelDrafter, model
from biglittle.lookahead import Decision, DraftStep

VOCAB = 13
LOGITS = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0)).double()


def drafter(context: int | None = None) -> tuple[ModelDrafter, ScriptedRunner]:
    runner = ScriptedRunner(Markov(LOGITS), VOCAB, context=context)
    return ModelDrafter(runner, VOCAB), runner


def go_on(step: DraftStep) -> Tensor:
    return torch.zeros(len(step.tokens), dtype=torch.int8)


def propose(rows: Sequence[Row], budgets: Sequence[int], decide: Any = go_on) -> Draft:
    proposer, _ = drafter()
    for row in rows:
        proposer.admit(row)
    return proposer.propose(rows, budgets, decide)


def greedy(last: int, count: int) -> list[int]:
    tokens = []
    for _ in range(count):
        last = int(LOGITS[last].argmax())
        tokens.append(last)
    return tokens


def test_greedy_rows_of_any_length_and_budget() -> None:
    rows = [Row(request(prompt), None) for prompt in ([1, 2, 3], [4], [5, 6], [7, 8])]
    draft = propose(rows, [3, 1, 0, 5])
    assert [row.ids for row in draft.rows] == [greedy(3, 3), greedy(4, 1), [], greedy(8, 5)]
    assert [row.passes for row in draft.rows] == [3, 1, 0, 5]
    assert draft.q is None
    for row, part in zip(rows, draft.rows, strict=True):
        before = [row.tokens[-1], *part.ids[:-1]]
        tops = LOGITS[before].softmax(-1).amax(-1).tolist() if part.ids else []
        assert part.confidence == pytest.approx(tops, abs=1e-6)


def test_a_draft_stops_after_an_eos() -> None:
    second = greedy(3, 2)[1]
    (part,) = propose([Row(request([3], eos=[second]), None)], [5]).rows
    assert part.ids == greedy(3, 2)


def test_the_lookahead_decides_row_by_row() -> None:
    def decide(step: DraftStep) -> Tensor:
        decisions = torch.zeros(3, dtype=torch.int8)
        decisions[1] = int(Decision.KEEP) if step.index == 1 else 0
        decisions[2] = int(Decision.DROP) if step.index == 2 else 0
        return decisions

    rows = [Row(request([n]), None) for n in (1, 2, 3)]
    free, kept, dropped = propose(rows, [4, 4, 4], decide).rows
    assert (free.ids, free.dropped, free.predicted) == (greedy(1, 4), False, 4)
    assert (kept.ids, kept.dropped, kept.predicted) == (greedy(2, 2), False, 2)
    assert (dropped.ids, dropped.dropped, dropped.predicted) == (greedy(3, 2), True, 3)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_q_is_what_the_tokens_were_drawn_from(temperature: float) -> None:
    warp = (tf.TemperatureLogitsWarper(temperature),)
    pipelines = [Pipeline(True, pointwise=warp), Pipeline(), Pipeline(True, pointwise=warp)]
    rows = [Row(request([n + 1], pipeline=p, seed=n), None) for n, p in enumerate(pipelines)]
    draft = propose(rows, [3, 3, 2])
    assert draft.q is not None
    assert draft.q.shape == (3, 3, VOCAB)
    assert draft.rows[1].ids == greedy(2, 3)
    for index in (0, 2):
        ids = draft.rows[index].ids
        before = [rows[index].tokens[-1], *ids[:-1]]
        expected = (LOGITS[before] / temperature).softmax(-1)
        q = draft.q[index, : len(ids)].double()
        assert torch.allclose(q, expected, atol=1e-6)
        sure = [float(q[k, token]) for k, token in enumerate(ids)]
        assert draft.rows[index].confidence == pytest.approx(sure)


def test_rows_draw_from_their_own_generators() -> None:
    alone = propose([Row(request([1], sampling=True, seed=5), None)], [4]).rows[0].ids
    beside = [Row(request([2], sampling=True, seed=s), None) for s in (1, 2)]
    rows = [beside[0], Row(request([1], sampling=True, seed=5), None), beside[1]]
    assert propose(rows, [1, 4, 3]).rows[1].ids == alone


def test_processors_that_read_the_prefix_read_the_drafted_one() -> None:
    ban = Pipeline(prefix=(tf.NoRepeatNGramLogitsProcessor(1),))
    (part,) = propose([Row(request([1, 2], pipeline=ban), None)], [6]).rows
    assert len({1, 2, *part.ids}) == 8


def test_the_users_processors_are_not_asked() -> None:
    def never(ids: Tensor, scores: Tensor) -> Tensor:
        raise AssertionError("only the target's positions are theirs")

    (part,) = propose([Row(request([1], pipeline=Pipeline(custom=(never,))), None)], [2]).rows
    assert part.ids == greedy(1, 2)


@pytest.mark.parametrize("chunk", [2, 3, 512])
def test_it_catches_up_with_what_the_target_wrote(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "CHUNK", chunk)
    proposer, runner = drafter()
    rows = [Row(request([1, 2, 3]), None), Row(request([4]), None)]
    for row in rows:
        proposer.admit(row)
    rows[0].tokens += [5, 6, 7, 8, 9]
    draft = proposer.propose(rows, [2, 2], go_on)
    assert [part.ids for part in draft.rows] == [greedy(9, 2), greedy(4, 2)]
    assert runner.cached(0) == [*rows[0].tokens, draft.rows[0].ids[0]]
    assert runner.cached(1) == [*rows[1].tokens, draft.rows[1].ids[0]]
    assert max(max(counts) for counts in runner.forwards) <= max(chunk, 2)


def test_budgets_end_with_the_context() -> None:
    proposer, _ = drafter(context=6)
    rows = [Row(request([1] * length), None) for length in (4, 6, 7, 9)]
    for row in rows:
        proposer.admit(row)
    draft = proposer.propose(rows, [5] * 4, go_on)
    assert [len(part.ids) for part in draft.rows] == [3, 1, 0, 0]


def test_rows_keep_their_numbers_when_one_leaves() -> None:
    proposer, runner = drafter()
    rows = [Row(request([n, n]), None) for n in (1, 2, 3)]
    for row in rows:
        proposer.admit(row)
    proposer.release(0)
    rows = [rows[2], rows[1]]
    assert [part.ids for part in proposer.propose(rows, [2, 2], go_on).rows] == [
        greedy(3, 2),
        greedy(2, 2),
    ]
    proposer.truncate([2, 2])
    assert runner.lengths == [2, 2]


def test_a_twin_s_beginning_is_not_read_again() -> None:
    proposer, runner = drafter()
    rows = [Row(request(prompt), None) for prompt in ([1, 2, 3], [1, 2, 3, 5], [1, 2, 6, 7])]
    proposer.admit(rows[0])
    proposer.propose(rows[:1], [1], go_on)  # so that all of the prompt is read
    proposer.admit(rows[1], twin=(0, 3))
    proposer.admit(rows[2], twin=(0, 2))
    assert runner.admitted == 1
    assert runner.lengths == [3, 3, 2]
    rows[0].tokens.append(4)
    draft = proposer.propose(rows, [2] * 3, go_on)
    assert [part.ids for part in draft.rows] == [greedy(n, 2) for n in (4, 5, 7)]
    assert [runner.cached(n) for n in (1, 2)] == [
        [*row.tokens, part.ids[0]] for row, part in zip(rows[1:], draft.rows[1:], strict=True)
    ]


def test_a_long_prompt_is_read_over_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "APART", 1)
    proposer, runner = drafter()
    rows = [Row(request(prompt), None) for prompt in ([1, 2, 3, 4, 5, 6], [7, 8], [1] * 9)]
    for row in rows:
        proposer.admit(row, most=1)
    assert runner.reads == [1, 1, 1]
    drafts = []
    for _ in range(4):
        drafts.append(proposer.propose(rows, [2, 2, 2], go_on, most=3))
        proposer.truncate([len(row.tokens) - 1 for row in rows])
    assert runner.reads[3:] == [3, 3, 3]  # one token apart is read with the pending one
    ready = [[n for n, part in enumerate(draft.rows) if part.ids] for draft in drafts]
    assert ready == [[1], [0, 1], [0, 1], [0, 1, 2]]
    assert [part.ids for part in drafts[-1].rows] == [greedy(n, 2) for n in (6, 8, 1)]
