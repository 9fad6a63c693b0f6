"""`biglittle diagnose`: the conclusion in words, what it rests on, and what it leaves behind."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

SHORT = ("--limit", "2", "-m", "8")
PICTURES = {"acceptance.svg", "calibration.svg", "passes.svg", "speedups.svg"}


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Short ones: the models' context is."""
    file = tmp_path / "prompts.txt"
    file.write_text("The little model\n\nA drafter proposes\nnot used: the limit is two\n")
    return str(file)


def test_a_pair(run: Run, folders: dict[str, str], prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("diagnose", folders["target"], folders["draft"], "--prompts", prompts, *SHORT)
    first = run(*arguments, "--out", str(out))
    assert first.exit_code == 0, first.stderr
    data = json.loads((out / "diagnosis.json").read_text())
    assert data["prompts"] == 2
    assert first.stdout.startswith(data["advice"]["verdict"])  # plain words first
    use = next(line for line in first.stdout.splitlines() if line.startswith("Use: "))
    assert use.startswith(f"Use: biglittle generate -t {folders['target']} -d ")
    assert use.endswith(f"-p {data['advice']['policy']}")
    for title in ("Predicted speed", "Time of a pass", "Acceptance", "confidence"):
        assert title in first.stdout
    assert "The head is" in first.stdout
    assert "not predicted: DISCO learns from at least 6 prompts" in first.stderr
    for policy in ("dynamic", "static", "fallback", "heuristic", "prompt-lookup:ngram="):
        assert policy in first.stdout
    assert {file.name for file in out.iterdir()} == {*PICTURES, "diagnosis.json", "traces.jsonl"}

    before = (out / "traces.jsonl").read_bytes()
    again = run(*arguments, "--out", str(out))
    assert again.exit_code == 0
    assert (out / "traces.jsonl").read_bytes() == before  # nothing was recorded twice


@pytest.mark.slow
def test_enough_prompts_for_disco(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    prompts.write_text("\n".join(f"The little model {word}" for word in "abcdefgh"))
    arguments = ("diagnose", folders["target"], folders["long"], "--prompts", str(prompts))
    half = ("--draft-vocab", "200")  # the target itself, but for some tokens
    result = run(*arguments, *half, "-m", "32", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert "not predicted" not in result.stderr
    assert "disco.safetensors" in result.stderr
    assert "of a draft step.\n" in result.stdout  # a head that is cut already
    data = json.loads((out / "diagnosis.json").read_text())
    (policy,) = (one["policy"] for one in data["predictions"] if one["family"] == "disco")
    used = run("generate", "-t", folders["target"], "-d", folders["draft"], "-p", policy, "The")
    assert used.exit_code == 0, used.stderr


def test_the_projects_prompts_by_task(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("diagnose", folders["long"], *SHORT, "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert "By task" in result.stdout
    data = json.loads((out / "diagnosis.json").read_text())
    assert [part["task"] for part in data["tasks"]] == ["chat", "code"]
    assert data["draft"].startswith("prompt-lookup")  # no draft was given
    assert "Acceptance" in result.stdout
    assert "confidence" not in result.stdout  # copies have none


def test_without_matplotlib(
    run: Run,
    folders: dict[str, str],
    prompts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    out = tmp_path / "out"
    result = run("diagnose", folders["target"], "--prompts", prompts, *SHORT, "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert "pip install 'biglittle[bench]'" in result.stderr
    assert {file.name for file in out.iterdir()} == {"diagnosis.json", "traces.jsonl"}


def test_another_pairs_traces(
    run: Run, folders: dict[str, str], prompts: str, tmp_path: Path
) -> None:
    options = ("--prompts", prompts, *SHORT, "--out", str(tmp_path / "out"))
    assert run("diagnose", folders["target"], *options).exit_code == 0
    result = run("diagnose", folders["target"], folders["draft"], *options)
    assert result.exit_code == 2
    assert "traces.jsonl" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["big", "-t", "other"], "the target is given twice: big and --target other"),
        (["big", "little", "-d", "other"], "the draft is given twice: little and --draft other"),
        (["big", "little", "--prompts", "absent.jsonl"], "cannot read absent.jsonl"),
        (["big", "little", "--prompts", "absent.txt"], "cannot read absent.txt"),
        (["big", "prompt-lookup:ngram=x"], "ngram"),
    ],
)
def test_refused_before_anything_is_loaded(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("diagnose", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_in_place_of_the_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("diagnose", "big", "little", "--out", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert f"--out {tmp_path / 'file'} is no folder to write to" in result.stderr


def test_only_empty_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    result = run("diagnose", "big", "little", "--prompts", str(tmp_path / "empty.txt"))
    assert result.exit_code == 2
    assert "there is no prompt in" in result.stderr
