"""`biglittle align`: a draft is made, its use is told; what is refused, in a line; Ctrl-C."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run

from biglittle.align import alignment, evaluation
from biglittle.costs import Costs
from biglittle.diagnosis import Profile

COSTS = Profile((Costs(0.3, (1, 16), (1.0, 1.5), context=128),))
SHORT = ["-m", "8", "--epochs", "1", "--batch", "4", "--limit", "12"]


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing passes takes most of the time that a tiny alignment does."""
    monkeypatch.setattr(evaluation, "measure_profile", lambda *args, **options: COSTS)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"The little model {number}\n" for number in range(30)))
    return str(file)


@pytest.fixture
def models(folders: dict[str, str]) -> list[str]:
    return ["-t", folders["target"], "-d", folders["draft"]]


def test_a_draft_is_made(
    run: Run, models: list[str], prompts: str, tmp_path: Path, folders: dict[str, str]
) -> None:
    out = tmp_path / "aligned"
    arguments = ["align", *models, "--task", prompts, "--out", str(out), *SHORT]
    done = run(*arguments)
    assert done.exit_code == 0, done.stderr
    for part in ("1 answer held out", "agreement", "predicted speed-up", "tokens a pass"):
        assert part in done.stdout
    for part in ("asking the target", "training", f"generate -t {folders['target']} -d {out}"):
        assert part in done.stderr
    answer = run("generate", "-t", folders["target"], "-d", str(out), "-m", "4", "The little")
    assert answer.exit_code == 0, answer.stderr
    again = run(*arguments)
    assert again.exit_code == 0
    assert again.stdout == done.stdout
    assert "asking" not in again.stderr
    other = run(*arguments, "--lr", "0.5")
    assert other.exit_code == 2
    assert "holds an alignment with --lr 0.0001, and now it is 0.5" in other.stderr


@pytest.mark.slow
def test_answers_are_shared(
    run: Run, models: list[str], prompts: str, folders: dict[str, str], tmp_path: Path
) -> None:
    answers = tmp_path / "answers.jsonl"
    data = ["--task", prompts, "--answers", str(answers), *SHORT]
    first = run("align", *models, *data, "--out", str(tmp_path / "one"))
    assert first.exit_code == 0, first.stderr
    asked = answers.read_bytes()
    assert not (tmp_path / "one" / "work" / "answers.jsonl").exists()
    cut = ["-t", folders["target"], "--init", "layers=1"]
    second = run("align", *cut, *data, "--out", str(tmp_path / "two"))
    assert second.exit_code == 0, second.stderr
    assert answers.read_bytes() == asked
    other = run("align", *cut, *data, "-m", "5", "--out", str(tmp_path / "three"))
    assert other.exit_code == 2
    assert f"{answers} was written with --max-new-tokens 8, and now it is 5" in other.stderr


@pytest.mark.slow
def test_source_text_alone(run: Run, folders: dict[str, str], prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    models = ["-t", folders["target"], "--init", "layers=1"]
    done = run("align", *models, "--source", prompts, "--raw", "--out", str(out), *SHORT)
    assert done.exit_code == 0, done.stderr
    first = json.loads((out / "work" / "answers.jsonl").read_text().splitlines()[1])
    assert first["source"] is None  # a decoder-only model is just given the line
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("asking the target", marks=pytest.mark.slow),
        pytest.param("before: ", marks=pytest.mark.slow),
        "training",
    ],
)
def test_ctrl_c_says_how_to_go_on(
    run: Run,
    models: list[str],
    prompts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    pressed: list[str] = []
    run_of = alignment.align

    def press(plan: Any, out: Path, *, progress: Callable[..., None], **options: Any) -> Any:
        def say(what: str, done: int, total: int) -> None:
            progress(what, done, total)
            if what.startswith(stage) and done and not pressed:
                pressed.append(what)
                signal.raise_signal(signal.SIGINT)

        return run_of(plan, out, progress=say, **options)

    monkeypatch.setattr("biglittle.align.align", press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        arguments = ["align", *models, "--task", prompts, "--out", str(tmp_path / "out"), *SHORT]
        done = run(*arguments)
        assert done.exit_code == 130
        assert "stopped: the same command goes on" in done.stderr
        assert "Traceback" not in done.stderr
        assert pressed
        assert run(*arguments).exit_code == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "{target}"], "there is nothing to train"),
        (["-d", "{draft}", "--init", "layers=1"], "--init layers=1 are two drafts"),
        (["--init", "layers=x"], "layers=x is no number"),
        (["--init", "layers=9"], "has 2 layers, of which 9 cannot be cut"),
        (["-d", "{foreign}"], "different tokenizers"),
        (["-d", "{draft}", "--task", "nowhere.txt"], "there is no file 'nowhere.txt'"),
        (["-d", "{draft}", "--task", "{empty}"], "empty.txt is empty"),
        (["-d", "{draft}", "--source", "{prompts}"], "give a template"),
        (["-d", "{draft}", "--reference", "{prompts}"], "--reference is of a text that --source"),
        (
            ["-d", "{draft}", "--source", "{prompts}", "--reference", "{short}", "--raw"],
            "30 lines, but",
        ),
        (["-d", "{draft}", "--task", "{prompts}", "--held-out", "30"], "--held-out 30 leaves"),
        (["-d", "{draft}", "--lr", "0"], "--lr 0.0 must be above 0"),
        (["-d", "{draft}", "--optimizer", "adam"], "unknown optimizer 'adam'"),
        (["-d", "{draft}", "--schedule", "cosin"], "did you mean 'cosine'"),
        (["-d", "{draft}", "--joint"], "joint is for an early exit"),
        (["-d", "{draft}", "--limit", "5"], "--limit is of files: give --task or --source"),
        (["-d", "{draft}", "--raw"], "--chat/--raw is of files"),
        (["-d", "{draft}", "--task", "{prompts}", "--prompts", "9"], "--prompts is for a target"),
        (["-d", "{draft}", "--source", "{prompts}", "--raw", "--metric", "bleu"], "--metric needs"),
        (["-d", "{draft}", "--task", "{prompts}", "--device", "cuda:1"], "CUDA_VISIBLE_DEVICES=1"),
        (
            ["-d", "{draft}", "--task", "{prompts}", "--soft", "1", "--draft-device", "cuda"],
            "soft labels need target and draft on one device",
        ),
        (["-t", "{bare}", "-d", "{bare}"], "has no chat template, so it cannot ask itself"),
        (["-d", "./nowhere"], "nowhere"),
        (["--early-exit", "5"], "give a number from 1 to 1"),
        (["-d", "{draft}", "--task", "{prompts}", "--out", "{target}"], "holds no alignment"),
        (["-d", "prompt-lookup"], "is no model that can be trained"),
    ],
)
def test_mistakes(
    run: Run,
    folders: dict[str, str],
    prompts: str,
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("one\n")
    files = {"prompts": prompts, "empty": tmp_path / "empty.txt", "short": tmp_path / "short.txt"}
    filled = [part.format(**folders, **files) for part in arguments]
    if "-t" not in filled:
        filled = ["-t", folders["target"], *filled]
    if "--out" not in filled:
        filled += ["--out", str(tmp_path / "out")]
    done = run("align", *filled)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_full_disk(
    run: Run,
    models: list[str],
    prompts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    arguments = ["align", *models, "--task", prompts, "--out", str(tmp_path / "out"), *SHORT]
    with monkeypatch.context() as patch:
        patch.setattr("transformers.LlamaForCausalLM.save_pretrained", full)
        done = run(*arguments)
    assert done.exit_code == 2
    assert "cannot be written (No space left on device)" in done.stderr
    assert "the same command again: what was done is kept" in done.stderr
    assert run(*arguments).exit_code == 0
