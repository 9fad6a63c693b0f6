"""`biglittle traces`: recording goes on, replaying needs no model, DISCO says how good it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers as tf
from tests.cli.conftest import Run
from tests.traces.conftest import disturbed

PROMPTS = ["The little", "A drafter", "def add", "the big model", "every byte", "it wrote"]


@pytest.fixture(scope="module")
def near(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A draft that agrees with the target now and then."""
    folder = str(tmp_path_factory.mktemp("models") / "near")
    model = tf.AutoModelForCausalLM.from_pretrained(folders["target"])
    disturbed(model, 0.08).save_pretrained(folder)
    tf.AutoTokenizer.from_pretrained(folders["target"]).save_pretrained(folder)
    return folder


@pytest.fixture
def recorded(run: Run, folders: dict[str, str], near: str, tmp_path: Path) -> Path:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    out = tmp_path / "traces.jsonl"
    models = ["-t", folders["target"], "-d", near, "--out", str(out), "-m", "12", "--cap", "6"]
    done = run("traces", "record", *models, "--jsonl", str(prompts))
    assert done.exit_code == 0, done.stderr
    assert "6 prompts, " in done.stderr
    assert len(out.read_text().splitlines()) == 7
    again = run("traces", "record", *models, PROMPTS[0])
    assert "1 prompts, " in again.stderr
    assert len(out.read_text().splitlines()) == 7  # it was there already
    return out


def test_replay(run: Run, recorded: Path) -> None:
    done = run("traces", "replay", str(recorded), "-p", "static:tokens=2", "-p", "none")
    assert done.exit_code == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert set(rows) >= {"static:tokens=2", "none", "oracle"}
    assert rows["none"][1] == "1.00"
    assert int(rows["oracle"][2]) <= int(rows["static:tokens=2"][2]) <= int(rows["none"][2])
    assert "cost-aware" in run("traces", "replay", str(recorded)).stdout
    recorded.write_text(recorded.read_text().splitlines()[0] + "\n")
    empty = run("traces", "replay", str(recorded))
    assert empty.exit_code == 2
    assert "holds no prompt yet" in empty.stderr


def test_disco(
    run: Run, recorded: Path, tmp_path: Path, folders: dict[str, str], near: str
) -> None:
    out = str(tmp_path / "disco.safetensors")
    done = run("traces", "disco", str(recorded), out)
    assert done.exit_code == 0, done.stderr
    assert "of 1 held-out prompts" in done.stdout
    assert f"--policy disco:path={out}" in done.stderr
    models = ["-t", folders["target"], "-d", near]
    answer = run("generate", *models, "-m", "8", "-p", f"disco:path={out}", PROMPTS[0])
    plain = run("generate", *models, "-m", "8", "-p", "none", PROMPTS[0])
    assert answer.stdout == plain.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "missing.jsonl"], "cannot be read"),
        (["replay", "{traces}", "-p", "bild"], "lossy"),
        (["replay", "{traces}", "-p", "static:tokens=9"], "larger cap"),
        (["replay", "{traces}", "-p", "nonsense"], "unknown policy"),
        (["disco", "{traces}", "/missing/folder/file"], "cannot be written"),
        (["record", "-t", "{target}", "text"], "needs a draft"),
        (["record", "-t", "{target}", "-d", "{draft}", "--out", "{target}", "text"], "cannot be"),
    ],
)
def test_mistakes(
    run: Run, recorded: Path, folders: dict[str, str], arguments: list[str], message: str
) -> None:
    filled = [part.format(traces=recorded, **folders) for part in arguments]
    done = run("traces", *filled)
    assert done.exit_code == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
