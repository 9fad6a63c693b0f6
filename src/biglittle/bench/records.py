"""The file of a run: a header, then a line of JSON for everything that was measured.

A run that was killed leaves what it had, and goes on from there. A run with other settings, or
elsewhere, does not: its numbers could not be set beside these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ParameterError
from ..files import GrowingFile, opening
from ..results import Stats
from .systems import Answer

__all__ = ["Difference", "Header", "Log", "Record", "Recorded", "read_log"]

KIND, VERSION = "biglittle bench", 1
NAME = {"format": KIND, "version": VERSION}
OPENING = opening(kind="header")


@dataclass(frozen=True, slots=True)
class Header:
    """What a run's numbers depend on; plain data."""

    settings: Mapping[str, Any]
    """Models, systems and generation parameters."""
    data: Mapping[str, str]
    """Every task's name, and a hash of its examples."""
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    command: str
    """The exact command line; it may differ where a run goes on."""

    def check(self, other: Header, path: Path) -> None:
        """Raise `ParameterError` unless a run under the other header may go on in this one's
        file."""
        for part in ("settings", "data", "versions", "hardware"):
            ours, theirs = getattr(self, part), getattr(other, part)
            for key in sorted({*ours, *theirs}):
                if ours.get(key) != theirs.get(key):
                    raise ParameterError(
                        f"{path} is of a run with {part} {key}={ours.get(key)!r}, and this one has "
                        f"{theirs.get(key)!r}: its numbers could not be compared; give another "
                        "folder with --out, or delete that one"
                    )


@dataclass(frozen=True, slots=True)
class Record:
    """One example through one system."""

    task: str
    example: str
    system: str
    answers: tuple[Answer, ...]
    """One a turn."""
    prompt: str
    """A hash of what was asked, by which two runs are matched."""
    source: int = 0
    """Tokens that an encoder read."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it."""
        return self.task, self.example, self.system

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """Generated tokens of every turn."""
        return tuple(answer.tokens for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a lossless system's greedy output first differs from plain decoding's."""

    task: str
    example: str
    system: str
    turn: int
    position: int
    """Among the turn's generated tokens, from 0."""
    tokens: tuple[str, str]
    """Plain decoding's token there, and the system's."""
    logits: tuple[float, float]
    """The target's for both."""
    near_tie: bool
    """Whether rounding explains it; else it is a fault."""

    @property
    def margin(self) -> float:
        """How far apart the logits are."""
        return abs(self.logits[0] - self.logits[1])

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies it."""
        return self.task, self.example, self.system


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a file holds."""

    header: Header
    records: tuple[Record, ...]
    differences: tuple[Difference, ...]


class Log:
    """A file that is written as results come.

    Args:
        path: Of the file; of an earlier run it goes on, if that was the same.
        header: Of this run.

    Raises:
        ParameterError: A file of another run, or one that cannot be read or written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self._file = GrowingFile(path, OPENING)
        self.records: dict[tuple[str, str, str], Record] = {}
        self.differences: dict[tuple[str, str, str], Difference] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._begun = path.exists() and bool(self._file.lines())
        except OSError as cause:
            raise ParameterError(f"cannot write {path}: {cause.strerror}") from cause
        if self._begun:
            found = self.recorded
            found.header.check(header, path)
            self.records = {record.key: record for record in found.records}
            self.differences = {difference.key: difference for difference in found.differences}

    @property
    def recorded(self) -> Recorded:
        """What the file holds."""
        return read_log(self.path)

    def add(self, record: Record) -> None:
        """Keep a result."""
        self.records[record.key] = record
        self._write("record", record)

    def add_difference(self, difference: Difference) -> None:
        """Keep a difference."""
        self.differences[difference.key] = difference
        self._write("difference", difference)

    def _write(self, kind: str, item: Record | Difference) -> None:
        items = [{"kind": kind, **asdict(item)}]
        if not self._begun:  # a run that is refused leaves no file
            items.insert(0, {"kind": "header", **asdict(self.header), **NAME})
            self._begun = True
        self._file.append(*items)


def read_log(path: Path) -> Recorded:
    """What a run's file holds.

    Raises:
        ParameterError: No such file, or one that is not a run's.
    """
    records, differences = [], []
    lines = _lines(path)
    header = _header(next(lines, {}), path)
    for item in lines:
        kind = item.pop("kind", None)
        try:
            if kind == "record":
                records.append(_record(item))
            else:
                pair = {"tokens": tuple(item["tokens"]), "logits": tuple(item["logits"])}
                differences.append(Difference(**item | pair))
        except (KeyError, TypeError) as cause:
            raise ParameterError(f"{path} is damaged: {cause}; delete it to start anew") from cause
    return Recorded(header, tuple(records), tuple(differences))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = GrowingFile(path, OPENING).lines()
    except OSError as cause:
        raise ParameterError(f"cannot read {path}: {cause.strerror}") from cause
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            item = json.loads(line)
        except ValueError as cause:
            raise ParameterError(f"{path}:{number} is not JSON; is it a run's file?") from cause
        if not isinstance(item, dict):
            raise ParameterError(f"{path}:{number} is not an object; is it a run's file?")
        yield item


def _header(item: dict[str, Any], path: Path) -> Header:
    if item.get("format") != KIND:
        raise ParameterError(f"{path} is not the results file of a bench; give another folder")
    if item["version"] != VERSION:
        raise ParameterError(
            f"{path} is of version {item['version']} of the format, and this is {VERSION}; "
            "measure anew in another folder"
        )
    names = ("settings", "data", "versions", "hardware", "command")
    return Header(**{name: item[name] for name in names})


def _record(item: dict[str, Any]) -> Record:
    answers = tuple(
        Answer(
            text=answer["text"],
            tokens=tuple(answer["tokens"]),
            seconds=answer["seconds"],
            stats=Stats(**answer["stats"]),
            rounds=tuple((drafted, accepted) for drafted, accepted in answer["rounds"]),
            exits=tuple(answer.get("exits", ())),  # later than version 1 of the format
        )
        for answer in item["answers"]
    )
    return Record(**item | {"answers": answers})
