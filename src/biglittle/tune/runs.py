"""The folder of a run: every output that was paid for, kept as it comes.

`runs.jsonl` begins with what the outputs depend on; then comes a line an output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..bench.records import Header
from ..errors import ParameterError
from ..files import GrowingFile, opening, take
from ..results import Result

__all__ = ["Output", "Runs", "check_beforehand", "only_one"]

NAME = {"format": "biglittle tune", "version": 1}


@dataclass(frozen=True, slots=True)
class Output:
    """What was written for one example, and in which rounds."""

    text: str
    tokens: tuple[int, ...]
    rounds: tuple[tuple[int, int, bool], ...]
    """Drafted, accepted, and whether the draft gave up the last position; of every round."""

    @classmethod
    def of(cls, result: Result) -> Output:
        """Of a result that has a trace."""
        rounds = tuple((r.drafted, r.accepted, r.fallback) for r in result.rounds or ())
        return cls(result.text, result.token_ids, rounds)


class Runs:
    """Outputs by policy and example.

    Args:
        path: Of the file; that of an earlier run goes on, if it was the same.
        header: What outputs depend on.

    Raises:
        ParameterError: A file of another run, or one that cannot be read or written.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self._header = path, header
        self._outputs: dict[str, dict[str, Output]] = {}
        self._file = GrowingFile(path, opening(**NAME))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = self._file.lines() if path.exists() else []
        except OSError as cause:
            raise ParameterError(f"cannot write {path}: {cause.strerror}") from cause
        self._begun = bool(lines)
        if lines:
            found, items = _read(path, lines)
            found.check(header, path)
            try:
                for item in items:
                    self._keep(item["policy"], item["example"], _output(item))
            except (KeyError, TypeError, ValueError) as cause:
                raise ParameterError(f"{path} is damaged; delete it to start anew") from cause

    def of(self, policy: str) -> Mapping[str, Output]:
        """What a policy has written so far, by example."""
        return self._outputs.get(policy, {})

    def begin(self) -> None:
        """Tie the folder to this run: not before, so that one that is refused leaves no file."""
        if not self._begun:
            self._file.append({**NAME, **asdict(self._header)})
            self._begun = True

    def add(self, policy: str, outputs: Mapping[str, Output]) -> None:
        """Keep outputs; they are on the disk when this returns."""
        self.begin()
        self._file.append(
            *({"policy": policy, "example": name, **asdict(o)} for name, o in outputs.items())
        )
        for name, output in outputs.items():
            self._keep(policy, name, output)

    def _keep(self, policy: str, example: str, output: Output) -> None:
        self._outputs.setdefault(policy, {})[example] = output


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Within, no other process works in the folder.

    Raises:
        ParameterError: One does; or the folder cannot be made.
    """
    try:
        lock = take(folder, "tuning")
    except OSError as cause:
        raise ParameterError(f"{folder} is no folder to write to: {cause.strerror}") from cause
    try:
        yield
    finally:
        lock.release()


def check_beforehand(path: Path, data: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Refuse a run's file for what is known before models are loaded: data, and some settings.

    Raises:
        ParameterError: A file of another run, or no such file.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf8", errors="replace") as file:
        line = file.readline()
    if line.endswith("\n"):  # else nothing was kept yet
        found = _header(path, line)
        known = {name: found.settings.get(name) for name in settings}
        ours = replace(found, settings=settings, data=data)
        replace(found, settings=known).check(ours, path)


def _read(path: Path, lines: list[bytes]) -> tuple[Header, list[dict[str, Any]]]:
    header = _header(path, lines[0])
    try:
        return header, [json.loads(line) for line in lines[1:]]
    except ValueError as cause:
        raise ParameterError(f"{path} is damaged: {cause}; delete it to start anew") from cause


def _header(path: Path, line: str | bytes) -> Header:
    try:
        data = json.loads(line)
        known = {name: data.pop(name) for name in NAME}
        header = Header(**data)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ParameterError(
            f"{path} is not the file of a tuning run, or is damaged; give another folder"
        ) from cause
    if known != NAME:
        raise ParameterError(
            f"{path} is not of this version's tuning runs; give another folder, or delete that one"
        )
    return header


def _output(item: Mapping[str, Any]) -> Output:
    rounds = tuple((drafted, accepted, fallback) for drafted, accepted, fallback in item["rounds"])
    return Output(item["text"], tuple(item["tokens"]), rounds)
