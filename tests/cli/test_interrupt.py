"""Ctrl-C, played by a signal between two rounds: what was written stays."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import biglittle
from biglittle.decoding import Engine

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def press_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Send the signal during the step of that number, so many times."""
    # A test run in the background may have been started with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    step = Engine.step
    done = 0

    def press(at: int, times: int = 1) -> None:
        def interrupted(self: Engine) -> Any:
            nonlocal done
            done += 1
            if done == at:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return step(self)

        monkeypatch.setattr(Engine, "step", interrupted)

    yield press
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def models(folders: dict[str, str]) -> list[str]:
    return ["-t", folders["target"], "-p", "none", "-m", "20"]  # a token a step


def test_text_stays(
    run: Run, models: list[str], folders: dict[str, str], press_ctrl_c: Any
) -> None:
    press_ctrl_c(at=5)
    done = run("generate", *models, "--raw", "The little")
    assert done.exit_code == 130
    text = biglittle.load(folders["target"]).generate("The little", max_new_tokens=5).text
    assert done.stdout == text + "\n"
    assert "5 tokens in" in done.stderr
    assert "ended by cancelled" in done.stderr


def test_json_tells_of_the_rows_that_had_begun(
    run: Run, models: list[str], press_ctrl_c: Any
) -> None:
    press_ctrl_c(at=5)
    done = run("generate", *models, "--json", "-q", "--batch-size", "2", "The", "A", "def")
    assert done.exit_code == 130
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["index"] for one in results] == [0, 1]
    assert [one["finish_reason"] for one in results] == ["cancelled"] * 2
    assert [len(one["token_ids"]) for one in results] == [5, 5]
    assert done.stderr == ""


def test_a_second_one_ends_at_once(run: Run, models: list[str], press_ctrl_c: Any) -> None:
    press_ctrl_c(at=5, times=2)
    done = run("generate", *models, "The little")
    assert done.exit_code == 130
    assert "Traceback" not in done.stderr
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stopped_answer_stays_in_the_conversation(
    run: Run, models: list[str], folders: dict[str, str], press_ctrl_c: Any
) -> None:
    press_ctrl_c(at=5)
    done = run("chat", *models, stdin="The little\nThe big\n")
    assert done.exit_code == 0
    pair = biglittle.load(folders["target"])
    first = pair.chat().send("The little", max_new_tokens=5).text.rstrip("\ufffd")
    messages = [
        {"role": "user", "content": "The little"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "The big"},
    ]
    assert done.stdout == f"{first}\n{pair.generate(messages, max_new_tokens=20).text}\n"
    assert "stopped" in done.stderr.splitlines()
