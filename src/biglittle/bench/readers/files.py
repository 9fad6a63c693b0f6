"""Files and rows of data, checked as they are read."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ParameterError

__all__ = ["Record", "json_records", "read_lines", "stem"]


@dataclass(frozen=True, slots=True)
class Record:
    """A row of data, and where it came from; what a method asks for is checked."""

    fields: Mapping[str, Any]
    where: str
    """For messages, e.g. `tasks.jsonl:3`."""

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def text(self, name: str) -> str:
        """A text that is not empty."""
        value = self._get(name, "a text")
        if not _is_text(value):
            raise self.refusal(name, value, "a text that is not empty")
        return str(value)

    def optional_text(self, name: str) -> str:
        """A text, or an empty one where it is missing."""
        value = self.fields.get(name) or ""
        if not isinstance(value, str):
            raise self.refusal(name, value, "a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, at least one and none empty."""
        value = self._get(name, "a list of texts")
        if not isinstance(value, list) or not value or not all(map(_is_text, value)):
            raise self.refusal(name, value, "a list of texts, none of them empty")
        return tuple(value)

    def label(self, name: str, default: str) -> str:
        """A text or a whole number, as a text; the default where it is missing."""
        value = self.fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not (isinstance(value, int) or _is_text(value)):
            raise self.refusal(name, value, "a text or a whole number")
        return str(value)

    def refusal(self, name: str, value: Any, expected: str) -> ParameterError:
        """The error for a field that is not what it should be."""
        return ParameterError(f"{self.where}: {name!r} is {_shown(value)}, expected {expected}")

    def _get(self, name: str, expected: str) -> Any:
        if name not in self.fields:
            raise ParameterError(f"{self.where} has no {name!r}, expected {expected}")
        return self.fields[name]


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text file, which may be compressed (`.gz`).

    Raises:
        ParameterError: A file that cannot be read or is empty.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        line = data[: cause.start].count(b"\n") + 1 if path.suffix != ".gz" else None
        where = str(path) if line is None else f"{path}:{line}"
        raise ParameterError(f"{where} is not UTF-8 text; convert it first") from cause
    except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
        raise ParameterError(f"cannot decompress {path}: {cause}") from cause
    except OSError as cause:
        raise ParameterError(f"cannot read {path}: {cause.strerror}") from cause
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if not any(line.strip() for line in lines):
        raise ParameterError(f"{path} is empty")
    return lines


def json_records(path: Path) -> list[Record]:
    """The rows of a file with a JSON object a line.

    Raises:
        ParameterError: A file that cannot be read, or a line that is no object.
    """
    lines = enumerate(read_lines(path), start=1)
    return [_json_record(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _json_record(line: str, where: str) -> Record:
    try:
        fields = json.loads(line)
    except ValueError as cause:
        reason = getattr(cause, "msg", str(cause))
        raise ParameterError(
            f"{where} is not JSON ({reason}), expected an object a line"
        ) from cause
    if not isinstance(fields, dict):
        raise ParameterError(f"{where} is {_shown(fields)}, expected an object a line")
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as cause:  # half a surrogate pair
        raise ParameterError(f"{where} is not valid Unicode text") from cause
    return Record(fields, where)


def stem(path: Path) -> str:
    """A file's name without its endings: what its task is called."""
    return path.name.split(".")[0] or path.name


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _shown(value: Any) -> str:
    """A value for a message, in a few words."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:37]}…"
