"""`biglittle tune` and `--profile`, in this process, on tiny models."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.tune.common import few_settings, folders, timing, with_costs

from biglittle.cli.options import parse_time
from biglittle.errors import ParameterError
from biglittle.tune import lossless, search, space, tuning

if TYPE_CHECKING:
    from tests.cli.conftest import Run
    from typer.testing import Result

QUICK = ("--dtype", "float32", "-m", "8")
ANYTHING = ("--budget", "agreement: -99%")


@pytest.fixture
def tune(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run it on the tiny pair, a few settings, with costs and times that are made up."""
    monkeypatch.setattr(search, "MOST", 8)
    monkeypatch.setattr(space, "FIRST", 3.0)
    monkeypatch.setattr(tuning, "time_policies", timing())
    monkeypatch.setattr(lossless, "settings", few_settings)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"The {n} model\n" for n in "abcdefghijkl") + "The a model\n")

    def tune(*arguments: str, out: str = "out") -> Result:
        models = ("-t", folders()["target"], "-d", folders()["near"])
        asked = () if "--task" in arguments or "--source" in arguments else ("--task", str(prompts))
        folder = with_costs(tmp_path / out)
        return run("tune", *models, *QUICK, *asked, "--out", str(folder), *arguments)

    return tune


@pytest.fixture
def profile(tune: Any, tmp_path: Path) -> str:
    """The file of a lossy profile."""
    assert tune(*ANYTHING).exit_code == 0
    return str(tmp_path / "out" / "profile.json")


def test_a_lossy_answer(tune: Any, tmp_path: Path) -> None:
    result = tune(*ANYTHING, "--time", "1h")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert found["lossless"] is False
    assert result.stdout.startswith(f"{found['policy']} is LOSSY: ")
    use = f"Use: biglittle generate --profile {tmp_path / 'out' / 'profile.json'}"
    assert use in result.stdout
    assert "the answer" in result.stdout
    assert "1 example left out: asked before" in result.stderr
    assert f"saved in {tmp_path / 'out'}: profile.json, pareto.svg" in result.stderr
    assert found["promised"]["examples"] == 6


def test_a_lossless_answer(tune: Any, tmp_path: Path) -> None:
    result = tune("-q")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "LOSSY" not in result.stdout
    assert json.loads((tmp_path / "out" / "profile.json").read_text())["lossless"] is True


def test_parallel_text(tune: Any, tmp_path: Path) -> None:
    for name in ("t.de", "t.en"):
        (tmp_path / name).write_text("".join(f"Der {n}. Text\n" for n in range(10)))
    files = ("--source", str(tmp_path / "t.de"), "--reference", str(tmp_path / "t.en"))
    result = tune(*files, "--raw", "--budget", "bleu: -90", "--budget", "chrf: -90")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert found["budgets"] == ["bleu: -90", "chrf: -90"]


def test_ctrl_c(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(search.Search, "_try", stop)
        result = tune(*ANYTHING)
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    assert tune(*ANYTHING).exit_code == 0


# --profile.


def test_a_profile_brings_its_models(run: Run, profile: str) -> None:
    policy = json.loads(Path(profile).read_text())["policy"]
    result = run("generate", "--profile", profile, "The model", "-m", "4", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["policy"] == policy
    assert f"{policy} is lossy" in result.stderr
    own = run("generate", "--profile", profile, "-p", "dynamic", "The", "-m", "4", "--json")
    assert json.loads(own.stdout)["policy"] == "dynamic"


def test_a_profile_in_a_conversation(run: Run, profile: str) -> None:
    result = run("chat", "--profile", profile, "-m", "4", stdin="hello\n")
    assert result.exit_code == 0, result.stderr
    assert "is lossy" in result.stderr


def test_a_profile_in_a_bench(run: Run, profile: str, tmp_path: Path) -> None:
    policy = json.loads(Path(profile).read_text())["policy"]
    task = ("--task", str(tmp_path / "prompts.txt"), "--limit", "2")
    out = ("--out", str(tmp_path / "bench"))
    result = run("bench", "--profile", profile, "-p", "static", *task, *out, "-m", "8")
    assert result.exit_code == 0, result.stderr
    rows = json.loads((tmp_path / "bench" / "summary.json").read_text())["rows"]
    assert [row["system"] for row in rows] == ["none", "static", policy]


def test_a_profile_of_another_pair(run: Run, profile: str) -> None:
    for command in (["generate", "The"], ["chat"]):
        result = run(*command, "--profile", profile, "-t", folders()["other"], stdin="")
        refused(result, "the profile is of another target")
    refused(run("generate", "The", "--profile", "absent.json"), "profile absent.json cannot be")


# What is refused.


def refused(result: Result, beginning: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {beginning}"), result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_what_is_wrong_is_said_before_models_are_loaded(
    tune: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("biglittle.cli.tune.load_pair", load)
    refused(tune("--budget", "blue: -1"), "budget: metric 'blue' is none of")
    refused(tune("--budget", "bleu"), "budget 'bleu' cannot be read")
    refused(tune("--budget", "agreement: 1%"), "budget 'agreement: 1%' asks for a gain")
    refused(tune("--budget", "bleu: -1"), "metric 'bleu' needs references")
    refused(tune("--budget", "pass@1: 0"), "a budget for pass@1 means running programs")
    refused(tune(*ANYTHING, "--limit", "9"), "task 'prompts' has 9 examples, and a budget needs")
    refused(tune("--time", "soon"), "--time soon is no time")
    refused(tune("--source", "t.de"), "--source and --reference go together")
    refused(tune("--task", "nowhere.txt"), "there is no file 'nowhere.txt'")
    refused(run("tune", "-t", "x"), "tuning needs a draft: give one with --draft")
    refused(run("tune", "-t", "x", "-d", "promt-lookup"), "draft 'promt-lookup' is neither")
    (tmp_path / "file").write_text("")
    refused(run("tune", "--out", str(tmp_path / "file")), f"--out {tmp_path / 'file'} is no folder")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "optuna" else found(name)
    )
    refused(tune(), "tune needs optuna: pip install 'biglittle[tune]'")


def test_another_runs_folder(tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune().exit_code == 0
    monkeypatch.setattr("biglittle.cli.tune.load_pair", lambda *_: pytest.fail("it was loaded"))
    file = str(tmp_path / "out" / "runs.jsonl")
    refused(tune("--seed", "1", "-q"), f"{file} is of a run with settings --seed 0")
    refused(tune("--limit", "11", "-q"), f"{file} is of a run with data task=")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("1h30m", 5400), ("90s", 90), ("2H", 7200), ("5min", 300)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds
    assert parse_time(None) is None


@pytest.mark.parametrize("text", ["", "0m", "30", "1d", "m", "-5m"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ParameterError, match="write for example 30m"):
        parse_time(text)
