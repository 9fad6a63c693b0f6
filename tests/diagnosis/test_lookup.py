"""Prompt lookup from another drafter's traces is prompt lookup as recorded."""

from __future__ import annotations

import pytest
from tests.diagnosis.conftest import NEW, PROMPTS, Recorded

from biglittle.diagnosis.lookup import lookup_traces
from biglittle.traces import replay


@pytest.mark.parametrize("ngram", [1, 3])
@pytest.mark.parametrize("policy", ["static:tokens=2", "static:tokens=12", "heuristic:tokens=20"])
def test_the_same_rounds_as_recorded(recorded: Recorded, ngram: int, policy: str) -> None:
    pair, traces = recorded("near")
    requests = pair.requests(PROMPTS, policy="none", temperature=0, max_new_tokens=NEW)
    copied = lookup_traces(traces, requests, pair, ngram)
    _, own = recorded(f"prompt-lookup:ngram={ngram}")
    found, real = replay(copied, policy), replay(own, policy)
    assert found.drafted.sum() > 0
    for index in range(len(PROMPTS)):
        assert found.rounds(index) == real.rounds(index)
    assert copied.header.models["draft"] == f"prompt-lookup:ngram={ngram}"
