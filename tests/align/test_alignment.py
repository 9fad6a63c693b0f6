"""Alignment from end to end, of all that can be trained; killed anywhere, and gone on with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import biglittle
from biglittle import ParameterError
from biglittle.align import AlignReport, Plan, Settings, align, evaluation
from biglittle.align.report import State
from biglittle.bench.readers import read_tasks
from biglittle.bench.readers.options import ReadOptions
from biglittle.bench.readers.parallel import read_source
from biglittle.bench.tasks import Task
from biglittle.costs import Costs
from biglittle.diagnosis import Profile

COSTS = Profile((Costs(0.3, (1, 16), (1.0, 1.5), context=128),))
FAST = Settings(learning_rate=1e-3, optimizer="adamw", epochs=2, batch=6)


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing passes takes most of the time that a tiny alignment does."""

    def known(*args: Any, progress: Any, **options: Any) -> Profile:
        progress(1, 1)
        return COSTS

    monkeypatch.setattr(evaluation, "measure_profile", known)


@pytest.fixture(scope="module")
def tasks(prompts: str) -> tuple[Task, ...]:
    return read_tasks(prompts)


def plan(folders: dict[str, str], tasks: tuple[Task, ...], **changes: Any) -> Plan:
    usual: dict[str, Any] = {"target": folders["target"], "tasks": tasks, "settings": FAST}
    if not {"init", "early_exit"} & set(changes):
        usual["draft"] = folders["draft"]
    return Plan(**{**usual, "max_new_tokens": 12, "held_out": 5, **changes})


KINDS: dict[str, dict[str, Any]] = {
    "draft": {},
    "lora": {"lora": 4, "settings": dataclasses.replace(FAST, learning_rate=1e-2)},
    "soft": {"settings": dataclasses.replace(FAST, soft=0.5)},
    "init": {"init": "layers=2,head=80", "settings": dataclasses.replace(FAST, epochs=4, batch=4)},
    "exit": {"early_exit": 1, "settings": dataclasses.replace(FAST, learning_rate=3e-3)},
    "joint": {"early_exit": 1, "joint": True},
}


QUICK = ("draft", "exit")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.slow) for kind in KINDS],
)
def test_agreement_rises(
    kind: str, folders: dict[str, str], tasks: tuple[Task, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = align(plan(folders, tasks, **KINDS[kind]), out, command="the command")
    assert report.rose
    assert report.after.agreement > report.before.agreement
    assert report.after.acceptance > report.before.acceptance
    assert (report.training.samples, report.training.held_out) == (22, 5)
    pair = biglittle.load(report.target, report.draft)
    answer = pair.generate("The little", max_new_tokens=8)
    assert (
        answer.token_ids == pair.generate("The little", policy="none", max_new_tokens=8).token_ids
    )
    assert (report.target == folders["target"]) == (kind != "joint")
    card = (out / "README.md").read_text()
    for part in (folders["target"], report.data, "the command", f"{report.after.speedup:.2f}×"):
        assert part in card
    saved = json.loads((out / "align.json").read_text())
    assert saved["after"] == dataclasses.asdict(report.after)
    assert saved["made"]["command"] == "the command"
    assert not (out / "work" / "training").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["init", "joint"])
def test_an_encoder_decoder_target(
    kind: str, translator: str, prompts: str, tmp_path: Path
) -> None:
    sources = read_source(Path(prompts), ReadOptions(chat=False))
    learns: dict[str, Any] = (
        {"init": "layers=1,encoder=1"} if kind == "init" else {"early_exit": 1, "joint": True}
    )
    settings = dataclasses.replace(FAST, learning_rate=3e-3, epochs=4)
    asked = Plan(
        target=translator,
        tasks=sources,
        settings=settings,
        max_new_tokens=10,
        held_out=5,
        **learns,
    )
    report = align(asked, tmp_path / "out")
    assert report.rose
    lines = (tmp_path / "out" / "work" / "answers.jsonl").read_text().splitlines()
    first = json.loads(lines[1])
    tokenizer = biglittle.load(translator).tokenizer
    assert tokenizer.decode(first["source"]) == Path(prompts).read_text().splitlines()[0]
    assert first["prompt"] == [1]
    pair = biglittle.load(report.target, report.draft)
    assert pair.generate("big little", max_new_tokens=4).token_ids


class Killed(BaseException):
    """Nothing catches it."""


@pytest.mark.slow
def test_killed_at_any_stage_and_gone_on_with(
    folders: dict[str, str], tasks: tuple[Task, ...], tmp_path: Path
) -> None:
    """The result is that of a run that nobody killed, weight for weight."""
    wanted = align(plan(folders, tasks), tmp_path / "whole")
    part = tmp_path / "part"
    kills: set[str] = set()

    def kill(what: str, done: int, total: int) -> None:
        stage = what.partition(",")[0]
        if stage not in kills and done > (5 if stage == "training" else 0):
            kills.add(stage)
            raise Killed

    found: AlignReport | None = None
    while found is None:
        try:
            found = align(plan(folders, tasks), part, progress=kill)
        except Killed:
            continue
    assert kills == {
        "asking the target",
        "before: seeing what the draft proposes",
        "before: timing passes",
        "training",
        "after: seeing what the draft proposes",
    }
    assert found.training == wanted.training
    assert (found.after.agreement, found.data) == (wanted.after.agreement, wanted.data)
    one, other = (load_file(folder / "model.safetensors") for folder in (part, tmp_path / "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)
    again = align(plan(folders, tasks), part)  # it is done: no model is loaded
    assert again == found
    with pytest.raises(ParameterError, match="max_new_tokens=12, and now it is 13"):
        align(plan(folders, tasks, max_new_tokens=13), part)
    with pytest.raises(ParameterError, match="batch=6, and now it is 4"):
        align(plan(folders, tasks, settings=dataclasses.replace(FAST, batch=4)), part)


def test_prompts_of_the_targets_own(folders: dict[str, str], tmp_path: Path) -> None:
    own = plan(folders, (), prompts=6, held_out=None)
    settings = dataclasses.replace(FAST, epochs=1)
    report = align(dataclasses.replace(own, settings=settings), tmp_path / "out")
    assert report.training.held_out == 1
    assert report.training.samples >= 2
    assert "prompts that the target wrote itself" in (tmp_path / "out" / "README.md").read_text()


def test_what_is_refused_before_prompts_are_written(
    folders: dict[str, str], tmp_path: Path
) -> None:
    out, old = tmp_path / "out", tmp_path / "old.jsonl"
    with pytest.raises(ParameterError, match="held_out=6 leaves nothing to train on"):
        align(plan(folders, (), prompts=6, held_out=6), out)
    assert not out.exists()
    old.write_text('{"format": "something else"}\n')
    with pytest.raises(ParameterError, match="is no file of answers"):
        align(plan(folders, (), prompts=6, held_out=2), out, answers=old)
    assert not (out / "work" / "prompts.jsonl").exists()


def test_fewer_prompts_after_all(
    folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the target has answered, how many prompts it writes may be changed."""

    def too_few(*_: Any, **__: Any) -> Any:
        raise ParameterError("ask for fewer")

    own = plan(folders, (), prompts=9, held_out=1)
    own = dataclasses.replace(own, settings=dataclasses.replace(FAST, epochs=1))
    with monkeypatch.context() as patched:
        patched.setattr("biglittle.align.alignment.write_prompts", too_few)
        with pytest.raises(ParameterError, match="ask for fewer"):
            align(own, tmp_path / "out")
    fewer = dataclasses.replace(own, prompts=6)
    assert align(fewer, tmp_path / "out").training.held_out == 1
    with pytest.raises(ParameterError, match="prompts=6, and now it is 9"):
        align(own, tmp_path / "out")


@pytest.mark.slow
def test_the_drafts_own_quality(folders: dict[str, str], prompts: str, tmp_path: Path) -> None:
    """Where there are references, and of held-out examples alone."""
    answers = tmp_path / "answers.txt"
    answers.write_text(Path(prompts).read_text().upper())
    given = read_tasks(prompts, reference=answers, template="Shout: {source}")
    report = align(plan(folders, given), tmp_path / "out")
    assert (
        set(report.before.quality)
        == set(report.after.quality)
        == {
            "prompts bleu",
            "prompts chrf",
        }
    )
    assert "| alone: prompts chrf |" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft": None}, "there is nothing to train"),
        ({"draft": "early-exit:layers=1"}, "is no model that can be trained"),
        ({"init": "layers=1"}, "draft=.* and init='layers=1' are two drafts"),
        ({"joint": True}, "joint is for an early exit"),
        ({"draft": None, "init": "layers=1", "lora": 2}, "lora is for a draft"),
        ({"draft": "little.gguf"}, "little.gguf is a quantized file"),
        ({"held_out": 0}, "held_out=0 must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_plans_that_are_refused(
    changes: dict[str, Any], message: str, folders: dict[str, str], tasks: tuple[Task, ...]
) -> None:
    usual: dict[str, Any] = {"target": folders["target"], "draft": folders["draft"]}
    with pytest.raises(ParameterError, match=message):
        Plan(**{**usual, "tasks": tasks, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft": "{foreign}"}, "different tokenizers"),
        ({"init": "layers=9"}, "has 3 layers, of which 9 cannot be cut"),
        ({"init": "layers=1,encoder=1"}, "has no encoder"),
        ({"early_exit": 3}, "give a number from 1 to 2"),
        ({"held_out": 27}, "held_out=27 leaves nothing to train on: there are 27"),
    ],
)
def test_what_is_refused_before_it_is_worked_on(
    changes: dict[str, Any],
    message: str,
    folders: dict[str, str],
    tasks: tuple[Task, ...],
    tmp_path: Path,
) -> None:
    filled = {
        name: value.format(**folders) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    with pytest.raises(biglittle.BiglittleError, match=message):
        align(plan(folders, tasks, **filled), tmp_path / "out")
    assert not (tmp_path / "out").exists()  # other options may follow


def test_a_folder_of_something_else(
    folders: dict[str, str], tasks: tuple[Task, ...], tmp_path: Path
) -> None:
    with pytest.raises(ParameterError, match="is there already and holds no alignment"):
        align(plan(folders, tasks), folders["draft"])
    (tmp_path / "align.json").write_text("{")
    with pytest.raises(ParameterError, match="cannot be read"):
        align(plan(folders, tasks), tmp_path)
    (tmp_path / "align.json").write_text("{}")
    with pytest.raises(ParameterError, match="is no alignment of this version"):
        align(plan(folders, tasks), tmp_path)


def test_two_processes_in_one_folder(
    folders: dict[str, str], tasks: tuple[Task, ...], tmp_path: Path
) -> None:
    asked = plan(folders, tasks, max_new_tokens=2, settings=dataclasses.replace(FAST, steps=1))
    tried: list[str] = []

    def again(what: str, done: int, total: int) -> None:
        if what.partition(",")[0] not in tried:
            tried.append(what.partition(",")[0])
            with pytest.raises(ParameterError, match="another process is aligning in"):
                align(asked, tmp_path / "out")

    align(asked, tmp_path / "out", progress=again)
    assert {"asking the target", "training"} <= set(tried)
    assert not (tmp_path / "out" / ".lock").exists()


def test_a_kill_before_it_has_begun(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".align.json.new").touch()
    State(tmp_path, {"lora": 4}).begin()
    with pytest.raises(ParameterError, match="lora=4, and now it is 5"):
        State(tmp_path, {"lora": 5})
