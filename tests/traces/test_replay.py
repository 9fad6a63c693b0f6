"""Replay says of every round what a real run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.traces.conftest import PROMPTS

from biglittle import Pair, ParameterError, PolicyError, Result, Stats
from biglittle.traces import Traces, oracle, record, replay

NEW = 24
POLICIES = (
    "none",
    "static:tokens=1",
    "static:tokens=3",
    "static:tokens=8",
    "dynamic",
    "dynamic:threshold=0.1,tokens=6",
    "dynamic:threshold=0.9",
    "heuristic:tokens=9",
    "heuristic:start=2,threshold=0.3,tokens=9",
    "fallback:threshold=0.2,tokens=7",
    "fallback:threshold=0.7",
    "self-adjusting:threshold=0.1",
    "cost-aware",
    "cost-aware:draft=0.05,verify=1.1/1.2/1.3/1.4",
    "cost-aware:read=0.5",
)


@pytest.fixture(scope="module")
def traces(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    path = tmp_path_factory.mktemp("traces") / "t.jsonl"
    return record(pair, PROMPTS, path, max_new_tokens=NEW)


def run(pair: Pair, policy: str, **options: Any) -> list[Result]:
    """Real runs, prompt by prompt."""
    options = {"max_new_tokens": NEW, "temperature": 0, "trace": True, **options}
    return [pair.generate(prompt, policy=policy, **options) for prompt in PROMPTS]


def rounds(results: list[Result]) -> list[list[tuple[int, int, bool]]]:
    """What every round did."""
    return [[(r.drafted, r.accepted, r.fallback) for r in x.rounds or ()] for x in results]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_round_is_that_of_a_real_run(pair: Pair, traces: Traces, policy: str) -> None:
    found, real = replay(traces, policy), run(pair, policy)
    assert [found.rounds(i) for i in range(len(PROMPTS))] == rounds(real)
    stats = Stats.total(result.stats for result in real)
    assert found.target_passes == stats.target_passes
    assert found.draft_passes == stats.draft_passes
    assert found.new_tokens == stats.new_tokens
    assert found.acceptance_rate == pytest.approx(stats.acceptance_rate)


def test_pairs_differ_in_how_far_they_agree(near: Pair, tmp_path: Path) -> None:
    """The test above sees windows that are accepted whole, in part and not at all."""
    found = replay(record(near, PROMPTS, tmp_path / "t", max_new_tokens=NEW), "static:tokens=3")
    drafted = found.drafted == 3
    assert {0, 1, 2, 3} <= set(found.accepted[drafted].tolist())


@pytest.mark.parametrize(
    "policy", ["static:tokens=4", "dynamic:threshold=0.3", "heuristic:tokens=9"]
)
def test_ends_of_text(near: Pair, tmp_path: Path, policy: str) -> None:
    """EOS in the target's text, and proposed by the draft where the target goes on."""
    tokens = [near.generate(p, policy="none", max_new_tokens=NEW).token_ids for p in PROMPTS]
    for eos in {token for row in tokens for token in row[3:12:4]}:
        ends: dict[str, Any] = {"eos_token_ids": [eos]}
        found = replay(
            record(near, PROMPTS, tmp_path / str(eos), max_new_tokens=NEW, **ends), policy
        )
        assert [found.rounds(i) for i in range(len(PROMPTS))] == rounds(run(near, policy, **ends))


def test_processors_that_read_the_prefix(near: Pair, tmp_path: Path) -> None:
    options: dict[str, Any] = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3}
    traces = record(near, PROMPTS, tmp_path / "t", max_new_tokens=NEW, **options)
    for policy in ("static:tokens=4", "dynamic"):
        found = replay(traces, policy)
        assert [found.rounds(i) for i in range(len(PROMPTS))] == rounds(
            run(near, policy, **options)
        )


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_short_answers(near: Pair, tmp_path: Path, limit: int) -> None:
    found = replay(record(near, PROMPTS, tmp_path / "t", max_new_tokens=limit), "static:tokens=4")
    expected = rounds(run(near, "static:tokens=4", max_new_tokens=limit))
    assert [found.rounds(i) for i in range(len(PROMPTS))] == expected


def test_the_oracle_wastes_nothing_and_needs_the_fewest_passes(pair: Pair, traces: Traces) -> None:
    best = oracle(traces)
    assert (best.drafted == best.accepted).all()
    assert best.new_tokens == sum(len(trace.tokens) for trace in traces)
    for policy in POLICIES:
        assert best.target_passes <= replay(traces, policy).target_passes


def test_a_lossy_policy_is_refused(traces: Traces) -> None:
    with pytest.raises(PolicyError, match="lossy: only a real run"):
        replay(traces, "bild")


def test_a_window_beyond_what_was_recorded_is_refused(near: Pair, tmp_path: Path) -> None:
    traces = record(near, PROMPTS, tmp_path / "t", max_new_tokens=NEW, cap=4)
    assert replay(traces, "static:tokens=4").target_passes
    with pytest.raises(ParameterError, match="record with a larger cap"):
        replay(traces, "static:tokens=20")
