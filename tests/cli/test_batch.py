"""`biglittle batch`: answered to the last request, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run, Start

from biglittle.files import alone


def write(path: Path, count: int, **body: Any) -> Path:
    asked = {"model": "target", "prompt": "The", "max_tokens": 6, "temperature": 0, **body}
    lines = [
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": asked}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf8")
    return path


def names(out: Path) -> list[str]:
    """The requests whose answers are complete."""
    raw = out.read_bytes().splitlines(keepends=True) if out.exists() else []
    return [json.loads(line)["custom_id"] for line in raw if line.endswith(b"\n")]


def test_a_batch(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    requests, out = write(tmp_path / "in.jsonl", 5), tmp_path / "out.jsonl"
    arguments = ["batch", str(requests), str(out), "-t", folders["target"], "-d", folders["draft"]]
    result = run(*arguments, "--rows", "2")
    assert result.exit_code == 0, result.stderr
    assert sorted(names(out)) == [f"r{i}" for i in range(5)]
    again = run(*arguments)
    assert again.exit_code == 0
    assert "all of 5 requests are answered already" in again.stderr


def test_two_at_once(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    requests, out = write(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    with alone(out):
        result = run("batch", str(requests), str(out), "-t", folders["target"], "-d", "none")
    assert result.exit_code == 2
    assert "another process writes to" in result.stderr


def test_requests_that_cannot_be_answered(
    run: Run, folders: dict[str, str], tmp_path: Path
) -> None:
    requests, out = write(tmp_path / "in.jsonl", 2, policy="bild"), tmp_path / "out.jsonl"
    result = run("batch", str(requests), str(out), "-t", folders["target"], "-d", folders["draft"])
    assert result.exit_code == 0
    assert "2 requests could not be answered" in result.stderr
    record = json.loads(out.read_text(encoding="utf8").splitlines()[0])
    assert record["response"]["body"]["error"]["code"] == "lossy_policy"


@pytest.mark.parametrize(
    ("text", "message"), [("", "there is no request"), ("x\n", "in.jsonl:1 is not JSON")]
)
def test_bad_files(run: Run, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(text, encoding="utf8")
    result = run("batch", str(path), str(tmp_path / "out.jsonl"))
    assert result.exit_code == 2
    assert message in result.stderr


def test_no_place_for_the_answers(run: Run, tmp_path: Path) -> None:
    requests = write(tmp_path / "in.jsonl", 1)
    result = run("batch", str(requests), str(tmp_path / "nowhere" / "out.jsonl"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle(
    run: Run, start: Start, folders: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    requests, out = write(tmp_path / "in.jsonl", 60, max_tokens=40), tmp_path / "out.jsonl"
    arguments = ["batch", str(requests), str(out), "-t", folders["target"], "-d", folders["draft"]]
    process = start(*arguments, "--rows", "2")
    end = time.monotonic() + 120
    while len(names(out)) < 3:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=60)
    done = names(out)
    assert 3 <= len(done) < 60
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert b"the same command goes on" in said
    assert run(*arguments).exit_code == 0
    assert sorted(names(out)) == sorted(f"r{i}" for i in range(60))
    assert names(out)[: len(done)] == done
