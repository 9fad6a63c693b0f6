"""Files that survive a kill at any moment and a full disk.

A file of records grows line by line: a header, then JSON objects, each known by a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..errors import BiglittleError, ParameterError
from ..files import GrowingFile, opening, write_whole

__all__ = ["Records", "read_records", "writing", "written_whole"]


TORCH_WRITES = ("PytorchStreamWriter", "inline_container", "iostream error")
"""What `torch.save` speaks of when it cannot write."""


class Records:
    """A file that records are added to; one that is there is gone on with.

    Args:
        path: The file.
        kind: What it holds, e.g. "answers".
        version: Of its format.
        about: What the records depend on, plain data; a file about something else is refused.

    Raises:
        ParameterError: The file holds something else, or cannot be written.
    """

    def __init__(self, path: Path, kind: str, version: int, about: Mapping[str, Any]) -> None:
        self.path = path
        self.done: dict[str, dict[str, Any]] = {}
        self._file = _file(path, kind)
        header = {"format": f"biglittle-{kind}", "version": version, **about}
        if path.exists() and self._file.lines():
            found, self.done = read_records(path, kind, version)
            _check_same(path, found, header)
            return
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file.append(header)

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Append a record."""
        with writing(self.path):
            self._file.append({"key": key, **record})
        self.done[key] = record


def read_records(
    path: Path, kind: str, version: int
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The header of a file and its records by key; an unfinished last line is left out.

    Raises:
        ParameterError: The file is missing, of another kind or version, or damaged.
    """
    try:
        lines = _file(path, kind).lines()
    except OSError as cause:
        raise ParameterError(f"{path} cannot be read ({cause.strerror})") from cause
    header = _parsed(path, 1, lines[0]) if lines else {}
    if header.get("format") != f"biglittle-{kind}":
        raise ParameterError(f"{path} is no file of {kind}; give another folder, or remove it")
    if header.get("version") != version:
        raise ParameterError(
            f"{path} is of version {header.get('version')} of its format, and this program knows "
            f"version {version}; give another folder, or remove it"
        )
    records = [_parsed(path, number, line) for number, line in enumerate(lines[1:], start=2)]
    return header, {str(record.pop("key", "")): record for record in records}


def _file(path: Path, kind: str) -> GrowingFile:
    return GrowingFile(path, opening(format=f"biglittle-{kind}"))


def written_whole(path: Path, text: str) -> None:
    """`write_whole`, in a folder that is made; what fails is told in a line."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, what cannot be written becomes one line that says how to go on."""
    try:
        yield
    except BiglittleError:  # some are OSErrors too
        raise
    except (OSError, RuntimeError, SafetensorError) as cause:
        reason = getattr(cause, "strerror", None) or " ".join(str(cause).split())
        if isinstance(cause, RuntimeError):
            if not any(name in str(cause) for name in TORCH_WRITES):
                raise
            reason = "is the disk full?"
        raise ParameterError(
            f"{path} cannot be written ({reason}); make room there, and give the same command "
            "again: what was done is kept"
        ) from cause


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ParameterError(f"{path}:{number} is damaged; remove the line, or the file")
    return found


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in sorted({*found, *wanted}):
        theirs, ours = found.get(name), wanted.get(name)
        if theirs != ours:
            raise ParameterError(
                f"{path} was written with {name} {theirs!r}, and now it is {ours!r}; give another "
                "folder, or remove the file"
            )
