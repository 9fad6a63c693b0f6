"""Many requests through a few rows: when one ends, the next begins."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ..policy import Policy

if TYPE_CHECKING:
    from ..decoding import Request, Row
    from ..pair import Pair

__all__ = ["ROWS", "run_fastest", "run_rows"]

ROWS = 16
TRIAL = 2  # times `rows` texts with speculation, and as many without
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


def run_fastest(
    pair: Pair,
    waiting: deque[Item],
    request: Callable[[Item, Policy], Request | None],
    rows: int = ROWS,
) -> Iterator[tuple[Item, Row]]:
    """`run_rows` by the pair's policy or by the target alone, whichever is faster.

    Rows beside each other already use what a machine has to spare, so drafting may not pay; the
    first texts try both. What they write is the same: `request` is of greedy decoding.
    """

    def by(policy: Policy) -> Callable[[Item], Request | None]:
        return lambda item: request(item, policy)

    fastest = pair.policy
    if fastest.lookahead is not None and len(waiting) > 2 * TRIAL * rows:
        rates: dict[Policy, float] = {}  # tokens a second
        for policy in (pair.policy, Policy.none()):
            some = deque(waiting.popleft() for _ in range(TRIAL * rows))
            began, tokens = time.perf_counter(), 0
            for item, row in run_rows(pair, some, by(policy), rows):
                tokens += len(row.new_tokens)
                yield item, row
            rates[policy] = tokens / (time.perf_counter() - began)
        fastest = max(rates, key=rates.__getitem__)
    yield from run_rows(pair, waiting, by(fastest), rows)
