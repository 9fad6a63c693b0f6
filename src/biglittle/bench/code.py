"""Runs a model's code against its tests, in a process of its own.

The process has its own empty working directory, no standard input, no environment, no network,
and limits on time, memory, the size of files and the number of processes; it ends, with
everything that it started, when its time is over. On Linux it runs, where that is permitted, in
fresh namespaces (user, network, processes); everywhere, Python refuses it connections, other
programs, signals, and changes to files outside its directory. Root's code runs as user nobody.

This stops what goes wrong by accident: endless loops, memory eaten up, files overwritten. It is
no sandbox against code that means harm: it can read what the user can read, and a determined
program can get round what Python refuses. Run models that you do not trust in a container.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import ParameterError
from .tasks import CodeTests

__all__ = ["Limits", "Outcome", "program", "run"]

CHILD = Path(__file__).with_name("code_child.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # threads are processes too
FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use."""

    seconds: float = 10.0
    """Wall-clock time, start included; and of CPU time, rounded up."""
    memory_bytes: int = 1 << 30
    """Address space of each process."""
    file_bytes: int = 1 << 24
    """Size of each file."""
    processes: int = 32
    """Processes and threads. They are counted with those of other programs of the same user where
    there are no user namespaces, and where root starts several."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a program's tests."""

    passed: bool
    reason: str
    """"passed", or what went wrong, in a line."""


def program(answer: str, tests: CodeTests, *, chat: bool, stop: Sequence[str] = ()) -> str:
    """The program that a model's answer makes.

    Args:
        answer: A completion of `tests.prompt`, or a chat model's answer.
        tests: What it is for.
        chat: Whether it is a chat model's: its code is then that of the first fenced block that
            defines the entry point, or else of the first block, or else all of it; it follows
            the prompt, whose imports and helpers it may use.
        stop: Where a completion ends: before the first of these texts.
    """
    if not chat:
        ends = [answer.find(text) for text in stop if text in answer]
        return tests.prompt + answer[: min(ends, default=len(answer))]
    return f"{tests.prompt}\n{_chat_code(answer, tests.entry_point)}\n"


def _chat_code(answer: str, entry_point: str | None) -> str:
    blocks = FENCE.findall(answer) or [answer]
    whole = [textwrap.dedent(block) for block in blocks]  # in a list, a block is indented
    if entry_point is None:
        return whole[0]
    defines = re.compile(rf"^(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE)
    return next(filter(defines.search, whole), str(blocks[0]))  # else the body alone


def run(program: str, tests: str, limits: Limits | None = None) -> Outcome:
    """Run a program, and then its tests in the same module.

    It passes if both end without an exception: a program that exits, however, before its tests
    are done does not.

    Args:
        program: Python source.
        tests: Python source that raises if the program is wrong.
        limits: Default: `Limits()`.

    Raises:
        ParameterError: No way to run it here.
    """
    if os.name != "posix":
        raise ParameterError("code can be run on Linux and macOS only; leave out pass@1")
    limits = limits or Limits()
    with (
        tempfile.TemporaryDirectory(prefix="biglittle-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as job,
    ):
        job.write(_job(program, tests, limits))
        job.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(CHILD)],
            stdin=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        return _outcome(process, limits)


def _job(program: str, tests: str, limits: Limits) -> bytes:
    job = {
        "program": program,
        "tests": tests,
        "cpu_seconds": math.ceil(limits.seconds),
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
        "processes": limits.processes,
    }
    return json.dumps(job).encode()


def _outcome(process: subprocess.Popen[bytes], limits: Limits) -> Outcome:
    assert process.stdout is not None
    with process.stdout as stdout:
        try:
            code = process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"not done after {limits.seconds:g} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.set_blocking(stdout.fileno(), False)  # a process that got away may hold the other end
        report = stdout.read()
    if not report:
        how = f"ended by signal {code - 128}" if code > 128 else "exited"
        return Outcome(False, f"{how} before its tests were done")
    result = json.loads(report)
    if "error" in result:
        raise ParameterError(result["error"])
    return Outcome(result["passed"], result["reason"])
