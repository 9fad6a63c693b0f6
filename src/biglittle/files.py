"""Writing files that a kill at any moment leaves whole."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a file so that there is the old one or the new one, never a part of either."""
    part = path.with_name(f".{path.name}.new")
    part.write_text(text, encoding="utf8")
    part.replace(path)
