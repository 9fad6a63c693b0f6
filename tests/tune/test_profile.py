"""Profiles: what is written is read back, and what they are of is checked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tune.common import COSTS, change, folders, pair, setting

import biglittle
from biglittle import ParameterError
from biglittle.bench.summary import Interval
from biglittle.traces.base import describe
from biglittle.tune import Profile, Rejected, Timed

LOSSY = "bild:fallback=0.5,rollback=2"


def profile(**changes: Any) -> Profile:
    """Of the tiny pair, made by hand."""
    values: dict[str, Any] = {
        "policy": LOSSY,
        "lossless": False,
        "verdict": "it is LOSSY",
        "notes": ("a note",),
        "target": folders()["target"],
        "draft": folders()["near"],
        "options": {"dtype": "float32"},
        "models": describe(pair()),
        "task": "words",
        "data": "1234",
        "seed": 0,
        "max_new_tokens": 12,
        "budgets": ("bleu: -2",),
        "promised": setting(LOSSY, changes=[change()]),
        "best_lossless": setting("dynamic", ms=6.0, changes=[change(0.0, value=30.0)]),
        "found": setting(LOSSY, changes=[change()]),
        "timed": Timed(5, Interval(1.5, 1.4, 1.6), Interval(1.4), Interval(1.1)),
        "rejected": (Rejected("static+bild:rollback=3", "it was slower"),),
        "settings": (setting(LOSSY, changes=[change()]),),
        "costs": (COSTS,),
        "hardware": {"cores": 2},
        "versions": {"biglittle": "0"},
        "command": "by hand",
    }
    return Profile(**values | changes)


@pytest.mark.parametrize("changes", [{}, {"found": None, "timed": None, "target": None}])
def test_what_is_written_is_read_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = profile(**changes)
    made.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == made
    assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]


def without(name: str) -> str:
    return json.dumps({key: value for key, value in profile().as_dict().items() if key != name})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file"),
        ("no JSON", "is no profile; `biglittle tune` writes one"),
        ("[1]", "is no profile"),
        ('{"policy": "dynamic"}', "is no profile"),
        (json.dumps({**profile().as_dict(), "version": 9}), "a profile of version 9"),
        (json.dumps({**profile().as_dict(), "policy": "bidl"}), "is damaged"),
        (json.dumps({**profile().as_dict(), "promised": {}}), "is damaged"),
        (json.dumps({**profile().as_dict(), "target": 5}), "damaged .target is 5"),
        (
            json.dumps({**profile().as_dict(), "options": ["dtype"]}),
            "damaged .options is no object",
        ),
        (json.dumps({**profile().as_dict(), "options": {"dtyp": 1}}), "no option 'dtyp'"),
        (json.dumps({**profile().as_dict(), "models": {}}), "models has no 'draft'"),
        (without("policy"), "is damaged"),
        (without("timed"), "is damaged"),
    ],
)
def test_what_is_no_profile(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "profile.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ParameterError, match=words):
        Profile.load(path)


def test_a_pair_by_its_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile().save(path)
    found = biglittle.load(profile=path)
    assert (found.name, found.draft_name) == (pair().name, pair().draft_name)
    assert str(found.policy) == LOSSY
    assert found.origin == pair().origin
    assert found.summary == pair().summary == "float32 on cpu"
    result = found.generate("the big model", max_new_tokens=4)
    assert (result.policy, result.lossless) == (LOSSY, False)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile().as_dict()), encoding="utf-8-sig")
    assert Profile.load(path) == profile()


def test_trust_is_not_a_files_to_give() -> None:
    sly = profile(options={"dtype": "float32", "trust_remote_code": True})
    given = {"dtype": "auto", "trust_remote_code": False}
    assert sly.sources(None, None, given, given)[2] == {**given, "dtype": "float32"}
    own = {**given, "trust_remote_code": True}
    assert sly.sources(None, None, own, given)[2]["trust_remote_code"] is True


def test_what_is_given_comes_first(tmp_path: Path) -> None:
    tuned = profile(target=None, options={})
    found = biglittle.load(folders()["target"], profile=tuned, policy="dynamic", dtype="float32")
    assert str(found.policy) == "dynamic"
    assert found.draft_name == folders()["near"]
    in_memory = biglittle.load(pair().target, profile=profile(), tokenizer=pair().tokenizer)
    assert str(in_memory.policy) == LOSSY  # options of loading are not for it
    with pytest.raises(ParameterError, match="names no target; give one"):
        biglittle.load(profile=tuned)
    with pytest.raises(ParameterError, match="there is no target"):
        biglittle.load()


def test_another_pair() -> None:
    with pytest.raises(ParameterError, match=r"the profile is of another draft \(.*near\)"):
        biglittle.load(draft=folders()["other"], profile=profile())
    with pytest.raises(ParameterError, match="of another target"):
        biglittle.load(folders()["near"], profile=profile())
    models = {**describe(pair()), "tokenizer": "another"}
    with pytest.raises(ParameterError, match="of another tokenizer"):
        profile(models=models).check(pair())


def test_what_a_pair_remembers() -> None:
    options = {"dtype": "float32"}
    near = {"target": folders()["target"], "draft": folders()["near"]}
    assert pair().origin == {**near, "options": options}
    trusting = biglittle.load(folders()["target"], trust_remote_code=True)
    assert trusting.origin == {"target": folders()["target"], "options": {}}  # it is not passed on
    in_memory = biglittle.load(pair().target, "prompt-lookup", tokenizer=pair().tokenizer)
    assert in_memory.origin == {"draft": "prompt-lookup", "options": {}}
    assert biglittle.Pair(pair().target).origin == {}


def test_a_profile_says_that_it_is_lossy() -> None:
    data = dataclasses.asdict(profile())
    assert data["lossless"] is False
    assert data["promised"]["lossless"] is False
