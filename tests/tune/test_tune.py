"""Tuning as a whole, on a tiny pair; what the clock would say is made up."""

from __future__ import annotations

import copy
import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tune.common import COSTS, NEW, few_settings, folders, pair, task, timing, with_costs

import biglittle
from biglittle import ParameterError
from biglittle.bench.tasks import Example
from biglittle.files import GrowingFile
from biglittle.tune import Profile, lossless, search, space, tune, tuning
from biglittle.tune.lab import ROWS
from biglittle.tune.lossless import RECORDED
from biglittle.tune.runs import Runs, only_one

ANYTHING = "agreement: -99%"
MOST = 16


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few settings, bold ones, and a clock that likes them."""
    monkeypatch.setattr(search, "MOST", MOST)
    monkeypatch.setattr(space, "FIRST", 3.0)
    monkeypatch.setattr(tuning, "time_policies", timing())
    monkeypatch.setattr(lossless, "settings", few_settings)


def tuned(out: Path, *budgets: str, **options: Any) -> Profile:
    """The tiny pair, where passes were timed already."""
    given = {"max_new_tokens": NEW, **options}
    return tune(given.pop("pair", pair()), task(), budgets, out=with_costs(out), **given)


def retrained() -> biglittle.Pair:
    """The pair under the same names, after the draft was trained on."""
    draft = copy.deepcopy(pair().draft)
    with torch.no_grad():
        next(draft.parameters()).mul_(1.01)
    return biglittle.Pair(pair().target, draft, pair().tokenizer)


def numbers(found: Profile) -> dict[str, Any]:
    """What does not depend on where and how it came about."""
    return {k: v for k, v in found.as_dict().items() if k not in ("command",)}


def test_without_a_budget_the_answer_is_lossless(tmp_path: Path) -> None:
    found = tuned(tmp_path)
    assert found.lossless
    assert found.promised == found.best_lossless
    assert found.promised.examples == 12
    assert found.promised.speedup > 1
    assert found.settings == ()
    assert found.verdict.startswith(f"{found.policy} is lossless: ")
    assert {file.name for file in tmp_path.iterdir()} >= {"profile.json", "traces.jsonl"}
    assert not (tmp_path / "pareto.svg").exists()
    assert biglittle.load(profile=tmp_path / "profile.json").policy.lossless


def test_a_lossy_winner(tmp_path: Path) -> None:
    found = tuned(tmp_path, ANYTHING, "bleu: -99")
    assert not found.lossless
    assert "LOSSY" in found.verdict
    assert "+bild" in found.policy or found.policy.startswith("bild")
    fastest = min((one for one in found.settings if one.inside), key=lambda one: one.ms_per_token)
    assert found.policy == fastest.policy
    assert found.promised.speedup > found.best_lossless.speedup
    assert (found.promised.examples, found.promised.outcome) == (6, "inside")
    assert found.found is not None
    assert found.found.examples == 6
    assert [change.budget for change in found.found.changes] == [ANYTHING, "bleu: -99"]
    assert found.found != found.promised  # on other examples
    assert found.timed is not None
    assert Profile.load(tmp_path / "profile.json") == found
    picture = (tmp_path / "pareto.svg").read_text()
    assert picture.startswith("<?xml")
    again = biglittle.load(profile=found)
    assert str(again.policy) == found.policy


def test_no_loss_at_all(tmp_path: Path) -> None:
    found = tuned(tmp_path, "agreement: 0")
    assert found.lossless
    assert found.found is None
    assert all(one.outcome != "inside" or one.changes[0].low == 0 for one in found.settings)


def test_what_the_clock_does_not_bear_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "time_policies", timing(over_lossless=0.9))
    found = tuned(tmp_path, ANYTHING)
    assert found.lossless
    assert found.policy == found.best_lossless.policy
    assert 1 <= len(found.rejected) <= tuning.REJECTIONS
    assert found.rejected[0].reason == f"timed, it has 0.90 times the speed of {found.policy}"
    assert found.notes[0].startswith(f"{found.rejected[0].policy} was given up: timed")
    monkeypatch.setattr(tuning, "time_policies", timing(0.9, over_plain=0.8))
    alone = tuned(tmp_path / "other", ANYTHING)
    assert alone.policy == "none"
    assert "do not speculate" in alone.verdict


def test_what_other_examples_do_not_bear_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that believes too easily."""
    found = tuned(tmp_path / "first", "agreement: -20%")
    assert found.lossless
    climb = search.Search._climb
    monkeypatch.setattr(search.Search, "_climb", lambda *given: (climb(*given)[0], search.INSIDE))
    found = tuned(tmp_path / "second", "agreement: -20%")
    assert found.lossless
    assert len(found.rejected) == tuning.REJECTIONS
    assert "on 6 other examples, which is not shown to be inside" in found.rejected[0].reason


class Killed(BaseException):
    """What nobody catches."""


def killing(after: int) -> Callable[[str, int, int], None]:
    calls = 0

    def progress(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Killed

    return progress


@pytest.mark.slow
def test_killed_and_gone_on_with_is_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = numbers(tuned(tmp_path / "whole", ANYTHING))
    for after in (2, 9, 12, 11):  # while recording, and among the settings
        with pytest.raises(Killed):
            tuned(tmp_path / "parts", ANYTHING, progress=killing(after))
        for name in ("runs.jsonl", "optuna.log"):
            file = tmp_path / "parts" / name
            if file.exists():
                with file.open("a") as end:
                    end.write('{"unfinished": ')
    assert numbers(tuned(tmp_path / "parts", ANYTHING)) == whole
    # And in the middle of a setting.
    add, count = Runs.add, 0

    def dying(self: Runs, *given: Any) -> None:
        nonlocal count
        count += 1
        if count % 12 == 0:
            raise Killed
        add(self, *given)

    monkeypatch.setattr(Runs, "add", dying)
    for _ in range(20):
        try:
            found = tuned(tmp_path / "more", ANYTHING)
            break
        except Killed:
            pass
    assert numbers(found) == whole


def test_more_time_is_never_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = float("inf")
    for most in (0, 6, 9, MOST):
        monkeypatch.setattr(search, "MOST", most)
        found = tuned(tmp_path, ANYTHING)
        assert found.promised.ms_per_token <= last
        last = found.promised.ms_per_token
    assert not found.lossless
    # Were nothing more to be confirmed, what was confirmed would stay.
    monkeypatch.setattr(tuning, "REJECTIONS", 0)
    assert tuned(tmp_path, ANYTHING).policy == found.policy
    # Unless something speaks against it.
    monkeypatch.setattr(tuning, "REJECTIONS", 99)
    monkeypatch.setattr(tuning, "time_policies", timing(over_lossless=0.9))
    assert tuned(tmp_path, ANYTHING).lossless


def test_no_time_at_all(tmp_path: Path) -> None:
    """The answer is lossless, from what little there is; more time goes on from there."""
    found = tuned(tmp_path, ANYTHING, time_limit=0.0)
    assert found.lossless
    assert found.settings == ()
    assert found.notes[-1] == "the time was over before all was tried: the same command goes on"
    traces = (tmp_path / "traces.jsonl").read_text().splitlines()
    assert len(traces) == 2  # the header, and one example
    assert not tuned(tmp_path, ANYTHING).lossless


def test_little_time_for_many_examples(tmp_path: Path) -> None:
    """Without a budget, what was recorded is enough; with one, a first batch is always written."""
    found = tune(pair(), task(50), out=with_costs(tmp_path / "none"), max_new_tokens=NEW)
    assert (found.lossless, found.promised.examples) == (True, RECORDED)
    out = with_costs(tmp_path / "budget")
    found = tune(pair(), task(90), ANYTHING, out=out, max_new_tokens=NEW, time_limit=0.0)
    assert (found.lossless, found.promised.examples) == (True, ROWS)
    assert len((out / "runs.jsonl").read_text().splitlines()) <= 1 + 2 * ROWS


def test_what_confirms_is_looked_at_thrice_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    climb = search.Search._climb
    monkeypatch.setattr(search.Search, "_climb", lambda *given: (climb(*given)[0], search.INSIDE))
    first = tuned(tmp_path, "agreement: -20%")
    assert len(first.rejected) == tuning.REJECTIONS
    monkeypatch.setattr(search, "MOST", MOST + 4)
    assert tuned(tmp_path, "agreement: -20%").rejected == first.rejected


def test_another_budget_in_the_same_folder(tmp_path: Path) -> None:
    first = tuned(tmp_path, ANYTHING)
    runs = (tmp_path / "runs.jsonl").stat().st_size
    second = tuned(tmp_path, "agreement: -20%")
    assert (second.lossless, first.lossless) == (True, False)
    assert second.settings != ()
    assert (tmp_path / "runs.jsonl").stat().st_size >= runs  # what is known is used


def test_copies(tmp_path: Path) -> None:
    free = replace(COSTS, draft=0.0)
    copying = biglittle.Pair(pair().target, "prompt-lookup", pair().tokenizer)
    found = tune(copying, task(), ANYTHING, out=with_costs(tmp_path, free), max_new_tokens=NEW)
    assert {one.policy.partition(":")[0] for one in found.settings} <= {
        "static", "heuristic", "cost-aware",
    }  # fmt: skip


def test_stop_strings_end_what_is_recorded(tmp_path: Path) -> None:
    text = pair().generate("the big model writes 0", temperature=0, max_new_tokens=NEW).text
    of = task(2, stop=(text[3:5],))
    found = tune(pair(), of, out=with_costs(tmp_path), max_new_tokens=NEW)
    assert found.lossless


def test_one_task_of_several(tmp_path: Path) -> None:
    again = replace(task(3), name="again")
    several = Example("long", ("first turn", "second turn"), chat=True)
    merged = tuning.prepare(
        [task(12), again, task(1, name="turns", examples=(several,))], [], seed=0, run_code=False
    )
    assert merged.name == "words+again+turns"
    assert len(merged.examples) == 13  # what was asked before is left out
    assert merged.examples[-1].id == "turns/long"
    assert merged.examples[-1].turns == ("first turn",)
    with pytest.raises(ParameterError, match="end differently"):
        tuning.prepare([task(), task(name="b", stop=("x",))], [], seed=0, run_code=False)
    with pytest.raises(ParameterError, match="no task"):
        tuning.prepare([], [], seed=0, run_code=False)


# What is refused.


def test_a_pair_without_a_draft(tmp_path: Path) -> None:
    alone = biglittle.Pair(pair().target, tokenizer=pair().tokenizer)
    with pytest.raises(ParameterError, match="tuning needs a draft"):
        tune(alone, task(), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_another_run(tmp_path: Path) -> None:
    tuned(tmp_path)
    for options, words in (
        ({"seed": 1}, "seed=0, and this one has 1"),
        ({"max_new_tokens": 5}, f"max_new_tokens={NEW}, and this one has 5"),
        ({"pair": pair("other")}, "draft="),
        ({"pair": retrained()}, "draft weights="),
    ):
        with pytest.raises(ParameterError, match=words):
            tuned(tmp_path, **options)
    with pytest.raises(ParameterError, match="data task="):
        tune(pair(), task(13), out=tmp_path, max_new_tokens=NEW)


def test_a_file_that_is_no_profile(tmp_path: Path) -> None:
    (with_costs(tmp_path) / "profile.json").write_text("{}")
    with pytest.raises(ParameterError, match="is no profile"):
        tuned(tmp_path)
    assert not (tmp_path / "runs.jsonl").exists()


def test_the_folder_is_tied_from_the_start(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        tuned(tmp_path, progress=killing(0))
    with pytest.raises(ParameterError, match="seed=0, and this one has 1"):
        tuned(tmp_path, seed=1)


def test_a_folder_in_use(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(ParameterError, match="another process is tuning"):
        tuned(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ParameterError, match="is no folder to write to"):
        tune(pair(), task(), out=tmp_path / "file")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(GrowingFile):
        def append(self, *_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("biglittle.tune.runs.GrowingFile", Full)
        with pytest.raises(ParameterError, match="the disk is full; make room"):
            tuned(tmp_path)
    assert tuned(tmp_path).lossless


def test_damaged_costs(tmp_path: Path) -> None:
    with_costs(tmp_path)
    (tmp_path / "costs.json").write_text('[{"draft": 1}]')
    with pytest.raises(ParameterError, match="costs.json is damaged; delete it"):
        tune(pair(), task(), out=tmp_path, max_new_tokens=NEW)


def test_a_share_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="which is 0 on 6 examples; give one in points"):
        tuned(tmp_path, "exact_match: -5%")


@pytest.mark.slow
def test_with_a_real_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are measured, and the best is timed: of a tiny pair it is the target alone."""
    monkeypatch.undo()
    monkeypatch.setattr(search, "MOST", 4)
    said: list[str] = []
    found = tune(
        pair("other"), task(), ANYTHING, out=tmp_path, max_new_tokens=NEW,
        progress=lambda what, done, total: said.append(what),
    )  # fmt: skip
    assert list(dict.fromkeys(said))[:4] == [
        "timing passes", "recording what the models write", "writing the target's own outputs",
        "trying settings",
    ]  # fmt: skip
    data = json.loads((tmp_path / "profile.json").read_text())
    assert data["format"] == "biglittle profile"
    assert data["hardware"]["cores"] >= 1
    assert found.target == folders()["target"]
    again = tune(pair("other"), task(), ANYTHING, out=tmp_path, max_new_tokens=NEW)
    assert numbers(again) == numbers(found)
