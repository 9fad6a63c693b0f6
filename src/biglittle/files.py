"""Files that a kill at any moment leaves whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import ParameterError

__all__ = ["LOCK", "GrowingFile", "take", "write_whole"]

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
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ParameterError(
            f"another process is {doing} in {folder}: wait for it, or give another folder"
        ) from None
    return lock


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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mended = False

    def lines(self) -> list[bytes]:
        """The complete lines, without their newlines."""
        return self.path.read_bytes().split(b"\n")[:-1]

    def rest(self) -> bytes:
        """What a killed run left unfinished, if anything."""
        return self.path.read_bytes().rpartition(b"\n")[2]

    def mend(self) -> None:
        """Cut off a line that was not written to its end."""
        if self.path.is_file():
            os.truncate(self.path, sum(len(line) + 1 for line in self.lines()))

    def append(self, *items: Mapping[str, Any]) -> None:
        """Add objects; they are on the disk when this returns."""
        if not self._mended:
            self.mend()
            self._mended = True
        with self.path.open("ab") as file:
            file.write(b"".join(map(_line, items)))
            file.flush()
            os.fsync(file.fileno())


def _line(item: Mapping[str, Any]) -> bytes:
    text = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf8", "surrogatepass") + b"\n"  # as `json.loads` decodes
