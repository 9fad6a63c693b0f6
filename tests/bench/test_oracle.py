"""The oracle's rounds of one example."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.common import header, pair, task

from biglittle.bench.oracle import with_oracle
from biglittle.bench.records import Log
from biglittle.bench.report import Lookaheads, measured_lookaheads
from biglittle.bench.runner import Bench
from biglittle.bench.summary import summarize
from biglittle.bench.systems import Ours
from biglittle.params import make_params
from biglittle.policy import parse_policy


def measured(path: Path, draft: str, *policies: str, stop: str = "") -> tuple[Bench, Lookaheads]:
    systems = [Ours(pair(draft), parse_policy(policy)) for policy in ("none", *policies)]
    params = make_params(None, {"temperature": 0.0, "max_new_tokens": 16})
    log = Log(path / "results.jsonl", header({system.name: True for system in systems}))
    tasks = [task(count=1, stop=(stop,) if stop else ())]
    run = Bench(pair(draft), systems, tasks, params, log)
    list(run.run())
    found = measured_lookaheads(summarize(log.recorded, tasks))
    assert found is not None
    return run, found


def test_an_oracle_drafts_exactly_what_is_accepted(tmp_path: Path) -> None:
    run, found = measured(tmp_path, "target", "dynamic", "static:tokens=5")
    told = with_oracle(run, found, tmp_path / "oracle.jsonl")
    assert list(told.rounds) == ["oracle", "dynamic", "static"]
    # The target drafts for itself: all are accepted, after the first token, and one comes after.
    assert told.rounds["oracle"] == [14]
    assert told.rounds["static"] == found.rounds["static"] == [5, 5, 2]


def test_a_draft_that_is_never_right_is_not_asked(tmp_path: Path) -> None:
    run, found = measured(tmp_path, "draft", "dynamic")
    told = with_oracle(run, found, tmp_path / "oracle.jsonl")
    plain = run.log.records[found.task, found.example, "none"]
    assert set(told.rounds["oracle"]) == {0}
    assert len(told.rounds["oracle"]) == len(plain.tokens[0]) - 1


def test_static_is_replayed_where_it_did_not_run(tmp_path: Path) -> None:
    run, found = measured(tmp_path, "target", "dynamic")
    told = with_oracle(run, found, tmp_path / "oracle.jsonl")
    assert list(told.rounds) == ["oracle", "static", "dynamic"]
    assert told.rounds["static"] == [5, 5, 2]


@pytest.mark.parametrize("end", [3, 6])
def test_rounds_end_with_the_answer(tmp_path: Path, end: int) -> None:
    whole, found = measured(tmp_path / "whole", "target", "dynamic")
    text = whole.log.records[found.task, found.example, "none"].answers[0].text
    run, cut = measured(tmp_path / "cut", "target", "dynamic", stop=text[end : end + 2])
    told = with_oracle(run, cut, tmp_path / "oracle.jsonl")
    length = len(run.log.records[cut.task, cut.example, "none"].tokens[0])
    assert length < 16
    assert told.rounds["static"] == [5, 5, 2][: -(-(length - 1) // 6)]
