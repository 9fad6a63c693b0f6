"""What a GGUF file says of itself, read in a moment.

The package gguf maps every value and every tensor into an array, which takes half a minute for a
vocabulary of 150,000 tokens. Here only the header is read:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

llama.cpp ends the process over some files that are well formed and mean nothing; `check_header`
refuses them before.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf

from ...errors import LoadError

__all__ = ["Header", "TensorSize", "check_header", "read_header"]

NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Formats of `struct` by GGUF's number of a type."""
TEXT, ARRAY = 8, 9
VERSION, START = 4, 8  # where the version is, and what follows it
VERSIONS = (2, 3)
LAYERS = 512  # llama.cpp's limit


@dataclass(frozen=True, slots=True)
class TensorSize:
    """Of one tensor."""

    count: int
    """Numbers in it."""
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds."""

    values: dict[str, Any]
    """Lists of texts are of bytes: a token need not be UTF-8."""
    tensors: dict[str, TensorSize]


def read_header(path: Path) -> Header:
    """The header of a sound file.

    Raises:
        ValueError, struct.error, KeyError: Another one.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if struct.unpack_from("<I", data, VERSION)[0] not in VERSIONS:
            raise ValueError("a version of its own")
        read = _Cursor(data)
        tensor_count, value_count = read.number("Q"), read.number("Q")
        values = {}
        for _ in range(value_count):
            key = read.text()
            values[key] = read.value(read.number("I"))
        return Header(values, dict(read.tensor() for _ in range(tensor_count)))


def check_header(path: Path) -> None:
    """Raise `LoadError` for a file that llama.cpp would end the process over. What it can refuse by
    itself is left to it."""
    status = path.stat()
    if reason := _fault(path, status.st_size, status.st_mtime_ns):
        raise LoadError(
            f"{path}: {reason}; llama.cpp cannot run it: take another file, or the model's folder"
        )


@lru_cache(maxsize=16)
def _fault(path: Path, size: int, changed: int) -> str:
    """What is wrong with a file of that size and time; nothing for a sound one."""
    try:
        values = read_header(path).values
    except (ValueError, struct.error, KeyError):
        return ""
    layers = values.get(f"{values.get('general.architecture')}.block_count")
    if isinstance(layers, int) and not 1 <= layers <= LAYERS:
        return f"the file says that it has {layers} layers, and 1 to {LAYERS} can be"
    tokens = values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        return ""
    return _twice(tokens) or _missing(tokens, values.get("tokenizer.ggml.model"))


def _twice(tokens: Sequence[bytes]) -> str:
    known: dict[bytes, int] = {}
    for token, text in enumerate(tokens):
        if text and known.setdefault(text, token) != token:  # empty ones get names
            shown = text.decode("utf8", errors="replace")
            return f"its tokens {known[text]} and {token} are the same, {shown!r}"
    return ""


def _missing(tokens: Sequence[bytes], model: Any) -> str:
    """Of a SentencePiece vocabulary, what unknown characters are written with."""
    if model != "llama":
        return ""
    known = set(tokens)
    for byte in range(256):
        if not known & {f"<0x{byte:02X}>".encode(), bytes([byte])}:
            return f"its SentencePiece vocabulary has no token for the byte 0x{byte:02X}"
    return ""


class _Cursor:
    """Reads one thing after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = START

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        length = self.number("Q")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            return self._array(self.number("I"), self.number("Q"))
        return self.number(NUMBERS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == TEXT:
            return self._texts(count)
        if kind == ARRAY:
            return [self.value(kind) for _ in range(count)]
        form = f"<{count}{NUMBERS[kind]}"
        values = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return list(values)

    def _texts(self, count: int) -> list[bytes]:
        """Hundreds of thousands of them, as quickly as may be."""
        data, at, found = self._data, self._at, []
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            (length,) = length_at(data, at)
            at += 8 + length
            found.append(data[at - length : at])
        self._at = at
        return found

    def tensor(self) -> tuple[str, TensorSize]:
        name, count = self.text(), 1
        for _ in range(self.number("I")):
            count *= self.number("Q")
        kind = gguf.GGMLQuantizationType(self.number("I"))
        self.number("Q")  # where it lies
        block, size = gguf.GGML_QUANT_SIZES[kind]
        return name, TensorSize(count, count // block * size)
