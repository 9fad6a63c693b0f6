"""The trace file: a header line, then a line a prompt, JSON each; arrays as base64 of raw bytes."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BiglittleError, ParameterError
from ..files import GrowingFile, opening
from .base import VERSION, Header, Proposals, Trace, Traces, header_fields

__all__ = ["Writer", "read_traces"]

FORMAT = "biglittle-traces"
OPENING = opening(format=FORMAT)
RECORD = "`biglittle traces record` makes a new one"


def read_traces(path: str | Path) -> Traces:
    """Read a trace file; an unfinished last line is left out.

    Raises:
        ParameterError: The file is missing, is no trace file, of another version, or damaged.
    """
    path = Path(path)
    try:
        lines = GrowingFile(path, OPENING).lines()
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read ({error.strerror}); {RECORD}") from None
    if not lines:
        raise ParameterError(f"{path}: no trace file, or one without its first line; {RECORD}")
    header = _header(path, lines[0])
    traces = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            traces.append(_trace(json.loads(line), header.top))
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ParameterError(
                f"{path}, line {number}: damaged ({type(error).__name__}); {RECORD}"
            ) from None
    return Traces(header, tuple(traces))


class Writer:
    """Appends traces to a file.

    Goes on with a file that is there, if it is of the same header.

    Raises:
        ParameterError: The file holds something else.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.done: dict[str, Trace] = {}
        self._file = GrowingFile(path, OPENING)
        try:
            if path.exists() and path.stat().st_size and self._file.lines():
                self._go_on(header)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file.append({"format": FORMAT, **asdict(header)})
        except OSError as error:
            raise ParameterError(f"{path}: cannot be written ({error.strerror})") from None

    def _go_on(self, header: Header) -> None:
        """Take in what the file holds."""
        found = read_traces(self.path)
        _check_same(self.path, found.header, header)
        self.done = {trace.key: trace for trace in found}

    def add(self, trace: Trace) -> None:
        """Append a trace; it is on the disk when this returns.

        Raises:
            BiglittleError: It cannot be written, the disk being full or gone.
        """
        try:
            self._file.append(_plain(trace))
        except OSError as error:
            raise BiglittleError(
                f"{self.path}: cannot be written ({error.strerror}); what is recorded is kept, and "
                "the same call goes on from there"
            ) from None
        self.done[trace.key] = trace


def _header(path: Path, line: bytes) -> Header:
    try:
        data = json.loads(line)
        known = data.pop("format") == FORMAT
    except (ValueError, KeyError, AttributeError, TypeError):
        known = False
    if not known:
        raise ParameterError(f"{path}: no trace file; {RECORD}")
    if data.get("version") != VERSION:
        raise ParameterError(
            f"{path}: a trace file of version {data.get('version')}, and this program reads "
            f"version {VERSION}; {RECORD}"
        )
    if set(data) != header_fields():
        raise ParameterError(f"{path}, line 1: damaged; {RECORD}")
    return Header(**data)


def _check_same(path: Path, found: Header, wanted: Header) -> None:
    for name in header_fields():
        theirs, ours = getattr(found, name), getattr(wanted, name)
        if theirs != ours:
            raise ParameterError(
                f"{path} was recorded with {name} {theirs!r}, and now it is {ours!r}; "
                "give another name, or remove the file"
            )


def _plain(trace: Trace) -> dict[str, Any]:
    return {
        "key": trace.key,
        "prompt": list(trace.prompt),
        "tokens": list(trace.tokens),
        "limit": trace.limit,
        "readable": trace.readable,
        "context": trace.context,
        "chain": _pack(trace.chain),
        "branches": {str(position): _pack(part) for position, part in trace.branches.items()},
    }


def _trace(data: dict[str, Any], top: int) -> Trace:
    return Trace(
        prompt=tuple(data["prompt"]),
        key=data["key"],
        tokens=tuple(data["tokens"]),
        limit=data["limit"],
        readable=data["readable"],
        context=data["context"],
        chain=_unpack(data["chain"], top),
        branches={int(at): _unpack(part, top) for at, part in data["branches"].items()},
    )


def _pack(part: Proposals) -> list[str]:
    arrays: list[npt.NDArray[Any]] = [part.tokens, part.confidence, part.top, part.entropy]
    return [base64.b64encode(np.ascontiguousarray(array).tobytes()).decode() for array in arrays]


def _unpack(texts: list[str], top: int) -> Proposals:
    tokens, confidence, best, entropy = (base64.b64decode(text, validate=True) for text in texts)
    count = len(tokens) // np.dtype(np.int32).itemsize
    return Proposals(
        np.frombuffer(tokens, np.int32),
        np.frombuffer(confidence, np.float32).reshape(count),
        np.frombuffer(best, np.float32).reshape(count, top),
        np.frombuffer(entropy, np.float32).reshape(count),
    )
