"""Files that a kill at any moment leaves whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import ParameterError

__all__ = ["LOCK", "GrowingFile", "alone", "opening", "take", "write_whole"]

LOCK = ".lock"


def take(folder: Path, doing: str) -> FileLock:
    """Have a folder, made if need be, for this process alone, until the lock is released.

    Args:
        folder: The folder.
        doing: What another process would be doing there, for the message.

    Raises:
        ParameterError: Another process has it.
        OSError: It cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return _taken(folder / LOCK, f"is {doing} in {folder}: wait for it, or give another folder")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Within, this process has a file for itself.

    Raises:
        ParameterError: Another process has it, or its folder is not there or cannot be written to.
    """
    lock = path.with_name(f".{path.name}{LOCK}")
    try:
        path.parent.stat()  # the lock would make it
        taken = _taken(lock, f"writes to {path}: wait for it, or give another file")
    except OSError as cause:
        raise ParameterError(f"{path} cannot be written: {cause.strerror}") from cause
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        taken.release()


def _taken(lock: Path, what: str) -> FileLock:
    taken = FileLock(lock)
    try:
        taken.acquire(timeout=0)
    except Timeout:
        raise ParameterError(f"another process {what}") from None
    return taken


def write_whole(path: Path, text: str) -> None:
    """Write a file so that there is the old one or the new one, never a part of either."""
    part = path.with_name(f".{path.name}.new")
    part.write_text(text, encoding="utf8")
    part.replace(path)


class GrowingFile:
    """JSON objects, a line each; one that is there is gone on with.

    A line is complete when it ends with a newline. What a killed run left unfinished is the last
    line: it is not read, and cut off before the next one is written. What the system refuses is an
    `OSError`, for the caller to put into words.

    Args:
        path: The file.
        opening: How its first line begins.
    """

    def __init__(self, path: Path, opening: bytes = b"") -> None:
        self.path, self._opening = path, opening
        self._mended = False

    def lines(self) -> list[bytes]:
        """The complete lines, without their newlines. A single line without a newline that begins
        otherwise than ours is somebody else's file: it is there, to be refused."""
        *complete, rest = self.path.read_bytes().split(b"\n")
        ours = rest.startswith(self._opening) or self._opening.startswith(rest)
        return complete if complete or ours else [rest]

    def mend(self) -> None:
        """Cut off a line that was not written to its end."""
        if self.path.is_file():
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def append(self, *items: Mapping[str, Any]) -> None:
        """Add objects; they are on the disk when this returns."""
        if not self._mended:
            self.mend()
            self._mended = True
        with self.path.open("ab") as file:
            file.write(b"".join(map(_line, items)))
            file.flush()
            os.fsync(file.fileno())


def opening(**first: Any) -> bytes:
    """How a line begins whose first items are these."""
    return _line(first)[: -len(b"}\n")]


def _line(item: Mapping[str, Any]) -> bytes:
    text = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf8", "surrogatepass") + b"\n"  # as `json.loads` decodes
