"""What settings are tried on, and how their speed is predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tune.common import COSTS, NEW, pair, task

from biglittle import ContextError, ParameterError
from biglittle.bench.records import Header
from biglittle.bench.tasks import Example, Task
from biglittle.diagnosis import Profile as PassCosts
from biglittle.diagnosis.predict import Comparison
from biglittle.params import make_params
from biglittle.traces import record
from biglittle.tune import parse_budget
from biglittle.tune.lab import Clock, Lab, OutOfTime, split
from biglittle.tune.quality import Judge
from biglittle.tune.runs import Runs
from biglittle.tune.search import _open

HEADER = Header({}, {}, {}, {}, "by hand")


def make_lab(folder: Path, of: Task | None = None) -> Lab:
    of = of or task()
    params = make_params(None, {"temperature": 0.0, "max_new_tokens": NEW, "trace": True})
    judge = Judge(of, [parse_budget("agreement: -2%")], run_code=False)
    lab = Lab(pair(), of, params, Runs(folder / "runs.jsonl", HEADER), judge)
    lab.costs = PassCosts((COSTS,))
    return lab


def test_halves_depend_on_data_and_seed() -> None:
    found = split(task(13), 0, halves=True)
    assert (len(found.search), len(found.held_out)) == (6, 7)
    assert {*found.search, *found.held_out} == {str(index) for index in range(13)}
    assert split(task(13), 0, halves=True) == found
    assert split(task(13), 1, halves=True) != found
    assert split(task(13, name="others"), 0, halves=True) != found
    assert split(task(3), 0, halves=False).search == ("0", "1", "2")
    with pytest.raises(ParameterError, match="has 9 examples, and a budget needs at least 10"):
        split(task(9), 0, halves=True)


@pytest.mark.parametrize("policy", ["static:tokens=3", "dynamic", "fallback", "none"])
def test_rows_side_by_side_cost_what_replay_predicts(tmp_path: Path, policy: str) -> None:
    lab = make_lab(tmp_path)
    names = [example.id for example in lab.task.examples]
    found = lab.setting(policy, names)
    traces = record(pair(), lab.prompts(names), tmp_path / "traces", max_new_tokens=NEW)
    comparison = Comparison(traces, PassCosts((COSTS,)), {"one": [policy]})
    (expected,) = comparison.best()
    tokens = sum(len(trace.tokens) for trace in traces)
    seconds = comparison.seconds(comparison.found[0])
    assert found.ms_per_token == pytest.approx(1000 * seconds / tokens)
    assert found.speedup == pytest.approx(expected.speedup)
    assert found.acceptance_rate == pytest.approx(expected.acceptance_rate)
    assert found.inside
    assert found.changes[0].change == 0


def test_bild_pays_for_its_first_token(tmp_path: Path) -> None:
    """The little model writes it, so the big one has to look."""
    lab = make_lab(tmp_path)
    found = lab.setting("bild:fallback=2,rollback=3", ["0", "1"])  # falls back every time
    # A pass for every token, the first included, and a draft step for all but the last.
    assert found.ms_per_token == pytest.approx(1000 * (NEW + (NEW - 1) * COSTS.draft) / NEW)
    assert found.fallback_rate == 1
    assert not found.lossless


def test_nothing_is_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_lab(tmp_path).setting("static", ["0", "1", "2"])
    monkeypatch.setattr(pair(), "run", lambda requests: pytest.fail("it was run again"))
    assert make_lab(tmp_path).setting("static", ["0", "1", "2"]) == first


def test_a_line_that_was_not_finished(tmp_path: Path) -> None:
    first = make_lab(tmp_path).setting("static", ["0", "1"])
    file = tmp_path / "runs.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert make_lab(tmp_path).setting("static", ["0", "1"]) == first
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no JSON\n", "is not the file of a tuning run, or is damaged"),
        ("[]\n", "is not the file of a tuning run, or is damaged"),
        ('{"format": "biglittle bench", "version": 1}\n', "is not the file of a tuning run"),
    ],
)
def test_another_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "runs.jsonl").write_text(text)
    with pytest.raises(ParameterError, match=words):
        make_lab(tmp_path)


def test_another_run(tmp_path: Path) -> None:
    Runs(tmp_path / "runs.jsonl", Header({"seed": 0}, {}, {}, {}, "")).add("none", {})
    with pytest.raises(ParameterError, match="seed=0, and this one has 1"):
        Runs(tmp_path / "runs.jsonl", Header({"seed": 1}, {}, {}, {}, ""))


def test_an_example_that_does_not_fit(tmp_path: Path) -> None:
    long = Task("words", (Example("long", ("word " * 400,), chat=False),))
    with pytest.raises(ContextError, match="words, example long: "):
        make_lab(tmp_path, long)
    assert not list(tmp_path.iterdir())  # what replaces it may go there


def test_time() -> None:
    Clock(None).check()
    Clock(1000).check()
    with pytest.raises(OutOfTime):
        Clock(0).check()


def test_what_a_killed_search_left_beside_its_journal(tmp_path: Path) -> None:
    left = [tmp_path / "optuna.log.lock", tmp_path / "optuna.log.lock1a2b.rename"]
    for path in left:
        path.touch()
    _open(tmp_path / "optuna.log", "agreement: 0")
    assert [path.name for path in tmp_path.iterdir()] == ["optuna.log"]
