"""Running a model's code: what passes, what does not, and what it cannot do to the machine."""

from __future__ import annotations

import os
import socket
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from biglittle import ParameterError
from biglittle.bench.code import Limits, Outcome, program, run
from biglittle.bench.tasks import CodeTests

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs limits on processes")

TESTS = "assert x == 1"
QUICK = Limits(seconds=30)  # on a busy machine, too


def reason(source: str, limits: Limits | None = None) -> str:
    outcome = run(source, TESTS, limits)
    assert not outcome.passed
    return outcome.reason


def test_passes() -> None:
    assert run("x = 1", TESTS) == Outcome(True, "passed")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 2", "AssertionError"),
        ("x = y", "NameError: name 'y' is not defined"),
        ("def f(:", "SyntaxError: "),
        ("x = 1\n'''", "SyntaxError: "),  # must not swallow the tests
        ("x = [0] * 10**12", "MemoryError"),
        ("import ctypes\nctypes.string_at(0)", "ended by signal 11 before its tests were done"),
    ],
)
def test_fails(source: str, expected: str) -> None:
    assert reason(source).startswith(expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os\nos._exit(0)", "exited before its tests were done"),
    ],
)
def test_ending_before_the_tests_is_no_pass(source: str, expected: str) -> None:
    assert reason(source) == expected


def test_an_error_that_cannot_be_shown() -> None:
    source = "class Bad(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise Bad"
    assert reason(source) == "Bad"


@pytest.mark.parametrize("source", ["while True: pass", "import time\ntime.sleep(60)"])
def test_time_is_limited(source: str) -> None:
    assert reason(source, Limits(seconds=1)) == "not done after 1 s"


def test_memory_is_limited() -> None:
    source = "held = []\nwhile True: held.append(bytearray(1 << 20))"
    limits = Limits(memory_bytes=1 << 28)
    assert reason(source, limits) in ("MemoryError", "exited before its tests were done")


def test_a_fork_bomb_is_bounded() -> None:
    source = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            os.setsid()  # to get away from its group
            time.sleep(60)
        count += 1
except BlockingIOError:
    pass
x = 1 if 0 < count <= 32 else count
"""
    assert run(source, TESTS, QUICK) == Outcome(True, "passed")


def test_a_fork_bomb_that_does_not_stop_is_ended() -> None:
    source = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert reason(source, Limits(seconds=1, processes=8)) == "not done after 1 s"


def test_a_forked_process_does_not_report() -> None:
    source = "import os\nx = 1 if os.fork() == 0 else 2"
    assert reason(source) == "AssertionError"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_is_left_running(tmp_path: Path) -> None:
    mark = f"left-by-{tmp_path.name}"
    source = f"""
import ctypes, os, time
x = 1
if os.fork() == 0:
    ctypes.CDLL(None).prctl(15, b"{mark[-15:]}")  # names the process
    time.sleep(60)
time.sleep(0.1)
"""
    assert run(source, TESTS).passed
    assert mark[-15:] not in running()


def running() -> set[str]:
    """Names of all processes."""
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it ended in between
            names.add(path.read_text().strip())
    return names


def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = f"import socket\nsocket.create_connection(('127.0.0.1', {port}))"
        assert "is not allowed here" in reason(source)
        assert "is not allowed here" in reason(source.replace("'127.0.0.1'", "'localhost'"))


def test_namespaces_where_they_are_permitted() -> None:
    if not run("import os\nx = os.getpid()", TESTS).passed:
        pytest.skip("no namespaces here")
    alone = "import socket\nx = len(socket.if_nameindex())  # the loopback, which is down"
    assert run(alone, TESTS) == Outcome(True, "passed")


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.killpg(0, 9)",
        "import os\nos.execv('/bin/true', ['true'])",
    ],
)
def test_no_other_programs_and_no_signals(source: str) -> None:
    assert "is not allowed here" in reason(source)


def test_no_input() -> None:
    assert reason("x = input()") == "EOFError: EOF when reading a line"
    assert run("import sys\nx = 1 if sys.stdin.read() == '' else 2", TESTS).passed


def test_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGLITTLE_SECRET", "1")
    assert run("import os\nx = 2 if 'BIGLITTLE_SECRET' in os.environ else 1", TESTS).passed


def test_output_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    source = "import sys\nfor i in range(10_000): print('a' * 1000); sys.stderr.write('b')\nx = 1"
    assert run(source, TESTS).passed
    assert capfd.readouterr() == ("", "")


def test_files_are_limited_in_size() -> None:
    source = "with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))"
    assert "File too large" in reason(source)


def test_its_own_directory_is_its_to_use() -> None:
    source = """
import os, tempfile
assert os.listdir() == []
with open("a", "w") as file: file.write("1")
os.rename("a", "b")
x = int(open("b").read())
os.remove("b")
with tempfile.TemporaryFile() as file: file.write(b"1")
"""
    assert run(source, TESTS) == Outcome(True, "passed")


@pytest.mark.parametrize(
    "source",
    [
        "open({path!r}, 'w')",
        "open({path!r}, 'a')",
        "import os\nos.remove({path!r})",
        "import os\nos.rename({path!r}, 'taken')",
        "import os\nos.symlink({path!r}, 'link')\nopen('link', 'w')",
        "import shutil\nshutil.rmtree({folder!r})",
    ],
)
def test_other_files_stay_as_they_are(source: str, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("kept")
    text = reason(source.format(path=str(file), folder=str(tmp_path)))
    assert "is outside the working directory" in text
    assert file.read_text() == "kept"


def test_common_modules_work() -> None:
    source = """
import asyncio, collections, dataclasses, heapq, itertools, math, re, typing
import numpy
@dataclasses.dataclass
class Point:
    x: int
async def one() -> int:
    return int(numpy.ones((40, 40)).sum() // 1600)
x = Point(asyncio.run(one())).x
"""
    assert run(source, TESTS) == Outcome(True, "passed")


def test_runs_beside_threads() -> None:
    """The child sets its own limits: nothing runs between fork and exec of a threaded parent."""
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.append(run("x = 1", TESTS).passed)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_a_main_block_does_not_run() -> None:
    assert run("x = 1\nif __name__ == '__main__':\n    x = 2", TESTS).passed


def test_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biglittle.bench.code.os.name", "nt")
    with pytest.raises(ParameterError, match="Linux and macOS only"):
        run("x = 1", TESTS)


# From an answer to a program.

PROMPT = 'import math\n\n\ndef area(r):\n    """Of a circle."""\n'
CIRCLE = CodeTests(prompt=PROMPT, tests="assert round(area(1), 2) == 3.14", entry_point="area")
STOP = ("\nclass", "\ndef", "\nprint")
BODY = "    return math.pi * r**2\n"


def test_a_completion_ends_at_the_first_stop() -> None:
    answer = BODY + "\n\ndef other():\n    pass\n\nprint(area(2))\nclass A: pass\n"
    assert program(answer, CIRCLE, chat=False, stop=STOP) == PROMPT + BODY + "\n"
    assert program(BODY, CIRCLE, chat=False, stop=STOP) == PROMPT + BODY


WHOLE = "def area(r):\n" + BODY


@pytest.mark.parametrize(
    "answer",
    [
        f"Sure:\n\n```python\n{WHOLE}```\nIt squares the radius.",
        f"```\n{WHOLE}\n```",
        f"```python\n{WHOLE}",  # cut off
        f"Install:\n```sh\npip install x\n```\nThen:\n```python\nimport os\n{WHOLE}```",
        WHOLE,
        f"```python\n{BODY}```",  # the body alone
        "1. So:\n" + textwrap.indent(f"```python\n{WHOLE}```", "   "),
    ],
)
def test_code_of_a_chat_answer(answer: str) -> None:
    made = program(answer, CIRCLE, chat=True)
    assert run(made, CIRCLE.tests) == Outcome(True, "passed")


def test_first_block_where_the_entry_point_has_no_name() -> None:
    tests = CodeTests(prompt="", tests=TESTS)
    assert program("a\n```\nx = 1\n```\n```\nx = 2\n```", tests, chat=True).strip() == "x = 1"


def test_other_languages_are_refused() -> None:
    with pytest.raises(ParameterError, match="'ruby'"):
        CodeTests(prompt="", tests="", language="ruby")
