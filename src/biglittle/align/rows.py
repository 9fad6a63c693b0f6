"""Many requests through a few rows: when one ends, the next begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ..decoding import Request, Row
    from ..pair import Pair

__all__ = ["ROWS", "run_rows"]

ROWS = 8
Item = TypeVar("Item")


def run_rows(
    pair: Pair,
    waiting: deque[Item],
    request: Callable[[Item], Request | None],
    rows: int = ROWS,
) -> Iterator[tuple[Item, Row]]:
    """Decode what is waiting, so many rows beside each other; yields each item as its row ends.

    Args:
        pair: What decodes.
        waiting: The items; the caller may add to them while it is given others.
        request: Of an item, when its turn comes; None for one that is left out.
        rows: How many rows.

    Raises:
        RowError: A request that ended on an exception of its own code.
    """
    engine = pair.engine()
    running: dict[Row, Item] = {}
    while waiting or running:
        while waiting and len(running) < rows:
            item = waiting.popleft()
            if (found := request(item)) is not None:
                running[engine.admit(found)] = item
        for row in engine.step():
            if row.error is not None:
                raise row.error
            if row.finished:
                yield running.pop(row), row
