"""How much memory is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_memory"]


def available_memory(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes that can be had without swapping, within what the containers around this process
    allow; None where the system does not tell.

    Args:
        proc: Where Linux tells of itself.
        groups: Where its control groups are, of version 2.
    """
    system = _numbers(proc / "meminfo").get("MemAvailable:")
    found = [] if system is None else [system * 1024]
    for line in _lines(proc / "self" / "cgroup"):
        number, _, name = line.partition("::")
        if number == "0":  # others are of version 1
            found += _left(groups, groups / name.lstrip("/"))
    return min(found, default=None)


def _left(groups: Path, inner: Path) -> Iterator[int]:
    """What a group and those around it still allow. Pages of files that were not used lately count
    as free: the system gives them up first."""
    depth = len(inner.parts) - len(groups.parts)
    for group in [inner, *inner.parents][: depth + 1]:
        limit, used = (_lines(group / f"memory.{what}") for what in ("max", "current"))
        if limit and used and limit[0] != "max":
            pages = _numbers(group / "memory.stat").get("inactive_file", 0)
            yield max(0, int(limit[0]) - int(used[0]) + pages)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf8").splitlines()
    except OSError:
        return []


def _numbers(path: Path) -> dict[str, int]:
    """A table of names and numbers."""
    return {words[0]: int(words[1]) for words in map(str.split, _lines(path))}
