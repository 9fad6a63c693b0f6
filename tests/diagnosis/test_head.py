"""The draft's head: what is predicted of a smaller one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.diagnosis.conftest import costs, written

from biglittle.diagnosis import Head, Profile
from biglittle.diagnosis.head import cut_traces, study_head
from biglittle.diagnosis.predict import Comparison, settings
from biglittle.traces import Traces, oracle, replay

TOKENS = [10 + at % 7 for at in range(40)]
HALF = 0.5  # of a draft step


def compared(tokens: list[int], drafted: list[int], head: float) -> Comparison:
    """A draft whose step costs 0.4 steps of the target, `head` of them in its head."""
    traces = written(tokens, drafted, [0.9] * len(drafted))
    profile = Profile((costs(0.4, 0.05, head=head * 0.4),))
    return Comparison(traces, profile, settings(20, profile.costs[0]))


def test_a_smaller_head_that_knows_all_that_is_written() -> None:
    own = compared(TOKENS, TOKENS[1:], HALF)
    found = study_head(own, "constant", 64, ())
    # Cut to 32 of 64 it costs half as much; to 4, 8 or 16, it does not know all of the text.
    before, after = (12 * draft + 1 + 0.05 * 12 for draft in (0.4, 0.3))
    assert found is not None
    assert found.share == pytest.approx(HALF)
    assert [cut.tokens for cut in found.cuts] == [4, 8, 16, 32]
    assert [cut.covered for cut in found.cuts] == pytest.approx([0, 0, 35 / 40, 1])
    assert found.best == found.cuts[-1]
    assert found.best.speedup == pytest.approx(39 / (3 * after))
    assert found.best.gain == pytest.approx(before / after)


def test_a_head_that_would_not_know_the_text() -> None:
    high = [token + 40 for token in TOKENS]
    found = study_head(compared(high, high[1:], HALF), "constant", 64, ())
    assert found is not None
    assert found.best is None
    assert max(cut.gain for cut in found.cuts) < 1


def test_tokens_that_end_a_text_stay() -> None:
    own = compared(TOKENS, TOKENS[1:], HALF)
    small = cut_traces(own.traces, 4, TOKENS)
    assert (small.traces[0].chain.tokens == own.traces.traces[0].chain.tokens).all()


def test_a_head_that_costs_next_to_nothing_or_cannot_be_cut() -> None:
    cheap = study_head(compared(TOKENS, TOKENS[1:], 0.001), "constant", 64, ())
    assert cheap is not None
    assert cheap.best is None
    assert study_head(compared(TOKENS, TOKENS[1:], HALF), "constant", 0, ()) == Head(HALF, ())
    assert study_head(compared(TOKENS, TOKENS[1:], 0.0), "constant", 64, ()) is None


def test_where_the_draft_loses_a_token_it_is_wrong_and_goes_on() -> None:
    tokens, drafted = [5, 9, 3, 4, 2], [9, 3, 8, 2]  # wrong at position 3
    traces = written(tokens, drafted, [0.9, 0.8, 0.7, 0.6])
    cut = cut_traces(traces, 9, ())  # 9 is lost, 8 is not
    assert replay(traces, "static:tokens=2").rounds(0) == [(2, 2, False), (1, 1, False)]
    assert oracle(cut).accepted.tolist() == [0, 1, 1]
    assert replay(cut, "static:tokens=3").rounds(0)[0] == (3, 0, False)
    assert replay(cut, "dynamic:threshold=0.75").rounds(0)[0] == (3, 0, False)
    before, after = (found.traces[0] for found in (traces, cut))
    assert np.array_equal(after.chain.confidence, before.chain.confidence)
    assert set(after.branches) == {1, 3}
    assert dataclasses.replace(after, chain=before.chain, branches=before.branches).key == "key"
    assert isinstance(cut, Traces)
