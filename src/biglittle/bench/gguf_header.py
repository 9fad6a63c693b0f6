"""What a GGUF file says of itself, read in a moment.

The package gguf maps every value and every tensor into an array, which takes half a minute for a
vocabulary of 150,000 tokens. Here only the header is read:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

__all__ = ["Header", "TensorSize", "read_header"]

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
START = 8  # behind the magic and the version


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
    tensors: dict[str, TensorSize]


def read_header(path: Path) -> Header:
    """The header of a file that llama.cpp has loaded, which is to say, of a sound one."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        read = _Cursor(data)
        tensor_count, value_count = read.number("Q"), read.number("Q")
        values = {}
        for _ in range(value_count):
            key = read.text()
            values[key] = read.value(read.number("I"))
        return Header(values, dict(read.tensor() for _ in range(tensor_count)))


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
            inner, count = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(count)]
        return self.number(NUMBERS[kind])

    def tensor(self) -> tuple[str, TensorSize]:
        name, count = self.text(), 1
        for _ in range(self.number("I")):
            count *= self.number("Q")
        kind = gguf.GGMLQuantizationType(self.number("I"))
        self.number("Q")  # where it lies
        block, size = gguf.GGML_QUANT_SIZES[kind]
        return name, TensorSize(count, count // block * size)
