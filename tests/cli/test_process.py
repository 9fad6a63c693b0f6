"""The program as users run it: its own process, pipes, signals, a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import biglittle

if TYPE_CHECKING:
    from tests.cli.conftest import Start

pytestmark = pytest.mark.slow
pty = pytest.importorskip("pty", reason="needs a terminal")
TIMEOUT = 120


def finish(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    out, err = process.communicate(timeout=TIMEOUT)
    return out.decode(), err.decode()


def test_ctrl_c_keeps_what_was_written(start: Start, folders: dict[str, str]) -> None:
    options = ["--raw", "--ignore-eos", "-m", "1000000", "-p", "none"]
    process = start("generate", "-t", folders["long"], *options, "The little")
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    (line,) = err.decode().splitlines()
    assert line.endswith("ended by cancelled")
    count = int(line.split()[0])
    pair = biglittle.load(folders["long"])
    whole = pair.generate("The little", max_new_tokens=count, ignore_eos=True).text
    assert (first + rest).decode() == whole + "\n"


def test_closed_pipe_ends_quietly(start: Start, folders: dict[str, str]) -> None:
    options = ["--ignore-eos", "-m", "1000000"]
    process = start("generate", "-t", folders["long"], *options, "The little")
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(TIMEOUT) == 1
    assert err == b""


def test_libraries_keep_quiet(start: Start, folders: dict[str, str]) -> None:
    models = ["-t", folders["target"], "-d", folders["foreign"]]
    out, err = finish(start("generate", *models, "The"))
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")


def test_an_old_encoding_is_no_obstacle(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = start("doctor")
    out, err = finish(process)
    assert process.returncode == 0
    assert "? HF_HUB_OFFLINE is set" in out  # where an arrow would be
    assert err == ""


@pytest.fixture
def terminal() -> Iterator[tuple[int, Callable[[str], str]]]:
    """A terminal: the program's end of it, and what waits for a text on the user's end."""
    user, program = pty.openpty()
    shown = ""

    def read_until(text: str) -> str:
        nonlocal shown
        deadline = time.monotonic() + TIMEOUT
        while text not in shown and time.monotonic() < deadline:
            try:
                shown += os.read(user, 4096).decode(errors="replace")
            except OSError:  # the program has closed its end
                break
        assert text in shown
        seen, shown = shown, ""
        return seen

    read_until.user = user  # type: ignore[attr-defined]
    yield program, read_until
    os.close(user)


def test_chat_in_a_terminal(start: Start, folders: dict[str, str], terminal: Any) -> None:
    program, read_until = terminal
    options = ["--ignore-eos", "-m", "1000000", "-d", folders["draft"]]
    process = start(
        *("chat", "-t", folders["long"], *options),
        stdin=program,
        stdout=program,
        stderr=program,
    )
    user = read_until.user
    assert "■ drafted and accepted" in read_until("\n> ")
    os.write(user, b"The little\n")
    read_until("\x1b[0m")  # the first coloured piece
    os.write(user, b"\x03")
    assert "stopped" in read_until("> ")
    os.write(user, b"/policy heuristic\n")
    assert "policy heuristic" in read_until("> ")
    for _ in range(TIMEOUT // 15):  # one that comes right before `input` waits waits for the next
        os.write(user, b"\x03")
        with suppress(subprocess.TimeoutExpired):
            process.wait(15)
            break
    assert process.poll() == 130
