"""Seconds of rounds: closed form, and the tokens that a real draft reads."""

from __future__ import annotations

import numpy as np
import pytest
from tests.diagnosis.conftest import NEW, PROMPTS, Recorded, costs, profile
from tests.models import build
from tests.reports.helpers import Recorder

from biglittle import Pair
from biglittle.diagnosis import Profile
from biglittle.diagnosis.profile import measure_profile
from biglittle.traces import replay


def test_plain_decoding_is_a_step_a_token(recorded: Recorded) -> None:
    _, traces = recorded("near")
    seconds = profile().seconds(traces, replay(traces, "none"))
    assert seconds.tolist() == [NEW - 1] * len(PROMPTS)  # the first token came with the prompt


def test_a_draft_that_is_always_right(recorded: Recorded) -> None:
    """Windows of 3: each round writes 4 tokens; 23 are 5 rounds and one more of 2 drafted."""
    _, traces = recorded("itself")
    found = Profile((costs(0.25, 0.5, catch_up=0.125, reading=4.0),))
    rounds = 5 * (3 * 0.25 + 2.5) + (2 * 0.25 + 2.0)
    caught_up = 5 * 0.125  # from the second round on, two tokens are new to the draft
    reading = np.array([len(prompt) for prompt in PROMPTS]) * 4.0 / 8
    seconds = found.seconds(traces, replay(traces, "static:tokens=3"))
    assert seconds.tolist() == pytest.approx((rounds + caught_up + reading).tolist())


@pytest.mark.parametrize("kind", ["near", "other", "itself"])
@pytest.mark.parametrize(
    "policy", ["static:tokens=1", "static:tokens=4", "dynamic:threshold=0.6", "fallback"]
)
def test_what_the_draft_reads_is_what_a_real_one_reads(
    recorded: Recorded, kind: str, policy: str
) -> None:
    """A second for every token that the draft reads after the prompt, and next to none for the
    target's passes."""
    pair, traces = recorded(kind)
    if kind == "itself":  # a module of its own, whose forwards are the draft's alone
        pair = Pair(build("llama"), build("llama"))
    counted = Profile((costs(1.0, 0.0, catch_up=1.0),))
    steps = replay(traces, policy)
    found = counted.seconds(traces, steps)
    passes = np.bincount(steps.prompt, minlength=len(PROMPTS))
    read = []
    for prompt in PROMPTS:
        with Recorder(pair.draft) as draft:
            pair.generate(prompt, policy=policy, max_new_tokens=NEW, temperature=0)
        read.append(sum(draft.widths[1:]))  # the first one is the prompt
    assert (found - passes).tolist() == pytest.approx(read)


def test_costs_between_two_contexts(recorded: Recorded) -> None:
    _, traces = recorded("near")
    low, high = costs(context=10), costs(context=20)
    double = Profile((low, Profile((high,)).with_costs(widths=(1,), seconds=(2.0,)).costs[0]))
    at = np.array([len(traces.traces[0].prompt) + start for start in range(1, NEW)])
    expected = np.where(at <= 10, 1.0, 1.0 + (at - 10) / 10).sum()  # and on beyond 20
    assert double.seconds(traces, replay(traces, "none"))[0] == pytest.approx(expected)


def test_a_flat_profile_verifies_for_one_step() -> None:
    assert profile(verify=0.7).flat().costs[0].verify(16) == 1.0


def test_measured_at_two_contexts() -> None:
    told: list[tuple[int, int]] = []
    found = measure_profile(
        Pair(build("llama"), build("llama", seed=1)),
        contexts=(20, 10),
        repeats=1,
        progress=lambda done, total: told.append((done, total)),
    )
    assert [costs.context for costs in found.costs] == [10, 20]
    assert all(costs.widths == tuple(range(1, 17)) for costs in found.costs)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_one_context_where_there_is_room_for_no_more() -> None:
    found = measure_profile(Pair(build("llama")), contexts=(500, 1000), repeats=1)
    assert [costs.context for costs in found.costs] == [128]  # of 256, half is for the rounds
