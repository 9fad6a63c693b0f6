"""Runs one program and then its tests: a script that `biglittle.bench.code` starts.

It reads a job as JSON from standard input and writes what came of it as JSON to standard output,
which the program itself never sees. Nothing here imports the rest of the library, so that it
starts in a few hundredths of a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import types
from pathlib import Path
from typing import Any

NOBODY = 65534

# Of Linux: unshare(2), prctl(2), capabilities(7).
NEW_USER, OTHER_NAMESPACES = 0x10000000, 0x40000000 | 0x20000000 | 0x08000000  # network, pid, ipc
SET_PARENT_DEATH_SIGNAL, SET_KEEP_CAPABILITIES = 1, 8
CAPABILITY_VERSION, READ_ANY_FILE = 0x20080522, 1 << 2

REFUSED = (
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostby",
    "socket.getnameinfo",
    "socket.send",
    "os.exec",
    "os.kill",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "subprocess.Popen",
)
"""Audit events (their beginnings) that end in an exception: network, other programs, signals."""

CHANGES = {
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
}
"""Audit events whose paths must lie in the working directory."""

UNREADABLE = (
    "as root, code runs as user nobody, who cannot read Python's own files here: run it as another "
    "user, or with a Python outside of root's home"
)

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> int:
    """Run the job in a process of its own; the exit code is that process's."""
    job = json.load(sys.stdin)
    report = os.dup(1)
    _silence()
    root = os.geteuid() == 0
    if sys.platform == "linux":  # where it is not permitted, the audit hook is left
        ctypes.CDLL(None).unshare(OTHER_NAMESPACES | (0 if root else NEW_USER))
    child = os.fork()  # the first in the new process namespace: all others end with it
    if child == 0:
        try:
            if root and not _become_nobody():
                _write(report, error=UNREADABLE)
                os._exit(0)
            _confine(job)
            process = os.getpid()
            result = run(job["program"], job["tests"])
            if os.getpid() == process:  # what the program forked comes by here too
                _write(report, **result)
        finally:
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def run(program: str, tests: str) -> dict[str, Any]:
    """Run a program and its tests in one module; only tests that end count as passed."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        for name, text in (("program", program), ("tests", tests)):
            exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    except BaseException as error:  # SystemExit too: a program may not decide that it passed
        return {"passed": False, "reason": _described(error)}
    return {"passed": True, "reason": "passed"}


def _described(error: BaseException) -> str:
    """An error in a line; its own text may be of a class that the program wrote."""
    try:
        text = " ".join(str(error).split())[:200]
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _write(report: int, **result: Any) -> None:
    os.write(report, json.dumps(result).encode())


def _silence() -> None:
    """Standard streams lead nowhere: reading ends at once, and output costs nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _become_nobody() -> bool:
    """Give up root, for whom limits on processes do not hold; False if Python is out of reach.

    On Linux nobody may still read every file, where root could: Python often lies in root's home.
    """
    os.chown(".", NOBODY, NOBODY)
    os.setgroups([])
    os.setgid(NOBODY)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_KEEP_CAPABILITIES, 1)
    os.setuid(NOBODY)
    if sys.platform == "linux":
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
        sets = (ctypes.c_uint32 * 6)(READ_ANY_FILE, READ_ANY_FILE)  # effective, permitted
        ctypes.CDLL(None).capset(header, sets)
    try:
        Path(os.__file__).open("rb").close()
    except PermissionError:
        return False
    return True


def _confine(job: dict[str, Any]) -> None:
    """Limits of this process, which it cannot raise again."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: job["cpu_seconds"],
        resource.RLIMIT_FSIZE: job["file_bytes"],
        resource.RLIMIT_NPROC: job["processes"],
    }
    if sys.platform == "linux":  # macOS does not limit address space
        limits[resource.RLIMIT_AS] = job["memory_bytes"]
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (value, value))
    folder = os.path.realpath(".")
    sys.addaudithook(lambda event, details: _audit(event, details, folder))


def _audit(event: str, details: tuple[Any, ...], folder: str) -> None:
    if event.startswith(REFUSED):
        raise PermissionError(f"{event} is not allowed here")
    if event == "open" and details[2] & WRITING:
        _require_inside(details[:1], folder)
    elif event in CHANGES:
        _require_inside(details, folder)


def _require_inside(paths: tuple[Any, ...], folder: str) -> None:
    for path in paths:
        if isinstance(path, str | bytes | os.PathLike):
            real = os.path.realpath(os.fsdecode(path))
            if real != os.devnull and os.path.commonpath((real, folder)) != folder:
                raise PermissionError(f"{path!r} is outside the working directory")


if __name__ == "__main__":
    sys.exit(main())
