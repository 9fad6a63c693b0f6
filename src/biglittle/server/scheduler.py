"""The scheduler: one engine thread, and requests that join and leave between its rounds."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..decoding import Capacity
from ..drafters import PredictedDrafter
from ..engines.threads import release_workers
from ..errors import ParameterError
from ..results import Chunk
from .errors import EngineError, QueueFullError, ShuttingDownError, TimeUpError
from .metrics import Metrics, Progress

if TYPE_CHECKING:
    from ..decoding import Engine, Request, Row
    from ..pair import Pair

__all__ = ["Scheduler", "ServerLimits", "Ticket"]

log = logging.getLogger("biglittle.server")

CLOSING = "the server is shutting down; ask another one, or later"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server takes on.

    Raises:
        ParameterError: A number out of range.
    """

    rows: int = 16
    """Rows that decode together."""
    kv_tokens: int | None = None
    """Tokens of all rows that the target's K/V cache may hold; requests wait while theirs do not
    fit. None: as many as the models can."""
    chunk: int = 256
    """Tokens of prompts that are read between two rounds, so that a long one holds up nobody."""
    prefix_tokens: int = 4096
    """Tokens of ended rows whose state is kept for prompts that begin alike; 0 for none."""
    queue: int = 256
    """Rows that may wait for one."""
    seconds: float = 600.0
    """For one request, waiting included."""
    prompt_tokens: int | None = None
    """Of one prompt; None is what the context has room for."""
    new_tokens: int = 2048
    """Of one answer, and what an answer gets that asks for no limit."""
    body_bytes: int = 4 << 20
    """Of one request."""

    def __post_init__(self) -> None:
        for name in ("queue", "prompt_tokens", "new_tokens", "body_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"{name}={value} must be at least 1")
        self.capacity()  # checks its own
        if not (0 < self.seconds < math.inf):
            raise ParameterError(f"seconds={self.seconds} must be a number above 0")

    def capacity(self) -> Capacity:
        """The engine's part of them."""
        return Capacity(
            rows=self.rows,
            kv_tokens=self.kv_tokens,
            chunk=self.chunk,
            prefix_tokens=self.prefix_tokens,
        )


class Ticket:
    """A request's place: an asynchronous iterator of the chunks of its rows, as they come.

    `Chunk.index` says whose a chunk is. Iterating ends after every row's last chunk, which carries
    its `Result`; it raises what ended the request otherwise. To be iterated in the event loop that
    submitted it.
    """

    def __init__(self, scheduler: Scheduler, requests: Sequence[Request], seconds: float) -> None:
        self.requests = tuple(requests)
        self.submitted = time.perf_counter()
        self.deadline = self.submitted + seconds
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        self._open = len(self.requests)  # rows whose last chunk has not been taken

    def __aiter__(self) -> Ticket:
        return self

    async def __anext__(self) -> Chunk:
        if not self._open:
            raise StopAsyncIteration
        item = await self._arrived.get()
        if isinstance(item, Exception):
            self._open = 0
            raise item
        self._open -= item.result is not None
        return item

    def cancel(self) -> None:
        """Free the rows, within one round; does nothing to what has ended."""
        self._open = 0
        self._scheduler.cancel(self)

    def put(self, item: Chunk | Exception) -> None:
        """Hand something over, from any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)


@dataclass(slots=True, eq=False)
class _Live:
    """A row in the engine."""

    ticket: Ticket
    last: float
    """When its last tokens came, or it did."""
    progress: Progress = field(default_factory=Progress)
    started: bool = False


class Scheduler:
    """One engine thread; requests join and leave between rounds.

    A request that fails on its own account fails alone. When the engine fails, what was in it
    fails with `EngineError`, and the server goes on with a fresh engine.

    Args:
        pair: What generates.
        limits: How much at a time.
        metrics: Where it is counted.
    """

    def __init__(self, pair: Pair, limits: ServerLimits, metrics: Metrics | None = None) -> None:
        self.pair = pair
        self.limits = limits
        self.metrics = Metrics(pair.name) if metrics is None else metrics
        self._changed = threading.Condition()
        # Shared, under the condition:
        self._queue: deque[tuple[Ticket, Request]] = deque()
        self._gone: set[Ticket] = set()
        self._starting = 0  # rows that the engine has, but has not begun
        self._draining = self._closing = False
        # The engine thread's own:
        self._engine: Engine | None = None
        self._live: dict[Row, _Live] = {}
        self._usual = 1.0  # seconds of a request, smoothed
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self.metrics.watch(self)

    # From any thread.

    def start(self) -> None:
        """Start the engine thread. The calling thread should leave the computing to it."""
        release_workers()
        self._thread.start()

    def drain(self) -> None:
        """Take no new requests; those that were taken go on."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def stop(self, grace: float = 0.0) -> None:
        """Take no new requests, let the others finish within so many seconds, and end the thread;
        what is left then fails with `ShuttingDownError`. A second call may cut the first one's
        grace short."""
        self.drain()
        with self._changed:
            self._changed.wait_for(lambda: self._closing or not self._busy, timeout=grace)
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, requests: Sequence[Request]) -> Ticket:
        """Queue the rows of one request, all or none. Call it in a running event loop.

        Raises:
            QueueFullError: More would wait than may.
            ShuttingDownError: The server stops.
            ParameterError: More than may ever wait.
        """
        if len(requests) > self.limits.queue:
            raise ParameterError(
                f"the request asks for {len(requests)} choices; this server's queue has room for "
                f"{self.limits.queue}"
            )
        ticket = Ticket(self, requests, self.limits.seconds)
        with self._changed:
            if self._draining:
                raise ShuttingDownError(CLOSING)
            room = self.limits.queue + max(0, self.limits.rows - len(self._live))
            if len(self._queue) + len(requests) > room:
                raise QueueFullError(len(self._queue), self._retry_after())
            self._queue.extend((ticket, request) for request in requests)
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """See `Ticket.cancel`."""
        with self._changed:
            self._gone.add(ticket)
            self._changed.notify_all()

    @property
    def alive(self) -> bool:
        """Whether the engine thread runs."""
        return self._thread.is_alive()

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.alive and not self._draining

    @property
    def waiting(self) -> int:
        """Rows that have not begun."""
        return len(self._queue) + self._starting

    @property
    def running(self) -> int:
        """Rows that have."""
        return len(self._live) - self._starting

    @property
    def cached_tokens(self) -> int:
        """Tokens of rows in the target's cache."""
        engine = self._engine
        return 0 if engine is None else sum(engine.target.lengths)

    @property
    def kept_tokens(self) -> int:
        """Tokens of ended rows whose state is kept."""
        engine = self._engine
        return 0 if engine is None else engine.kept_tokens

    @property
    def cache_share(self) -> float:
        """How much of `ServerLimits.kv_tokens` is taken, 0 … 1; 0 without a limit."""
        engine, limit = self._engine, self.limits.kv_tokens
        return 0.0 if engine is None or limit is None else engine.reserved / limit

    @property
    def _busy(self) -> bool:
        return bool(self._queue or self._live)

    def _retry_after(self) -> int:
        turns = (len(self._queue) + len(self._live)) / self.limits.rows
        return round(min(60.0, max(1.0, self._usual * turns / 2)))

    # The engine thread.

    def _serve(self) -> None:
        while self._wait_for_work():
            try:
                self._drop_gone()
                self._drop_late()
                self._admit()
                self._step()
            except Exception as cause:
                self._fail(cause)
        self._end_all(ShuttingDownError(CLOSING))

    def _wait_for_work(self) -> bool:
        """Whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._busy or self._gone or self._closing)
            return not self._closing

    def _admit(self) -> None:
        """Hand as many waiting requests to the engine as it may have rows."""
        while self._queue and len(self._live) < self.limits.rows:
            ticket, request = self._queue[0]  # where it stays meanwhile: `_busy` is never wrong
            try:
                if self._engine is None:
                    self._engine = self._fresh_engine()
                row = self._engine.admit(request)
            except Exception as cause:  # about this request only: nothing has run yet
                self._end(ticket, cause)
                continue
            with self._changed:
                self._queue.popleft()
                self._live[row] = _Live(ticket, ticket.submitted)
                self._starting += 1

    def _fresh_engine(self) -> Engine:
        engine = self.pair.engine(self.limits.capacity())
        engine.drafter = PredictedDrafter(engine.drafter, self.pair.vocab)
        return engine

    def _step(self) -> None:
        if self._engine is None or not self._engine.busy:
            return
        before = time.perf_counter()
        rows = self._engine.step()
        now = time.perf_counter()
        parts = [self._observe(row, now) for row in rows if row in self._live]
        self.metrics.stepped(now - before, parts)
        for row in rows:
            if row in self._live:
                self._deliver(row, now)

    def _observe(self, row: Row, now: float) -> Progress:
        """What the step added to a row."""
        live = self._live[row]
        if not live.started:
            live.started = True
            self._starting -= 1
            self.metrics.started(now - live.ticket.submitted)
        seen = Progress.of(row)
        added, first = seen - live.progress, not live.progress.new_tokens
        live.progress = seen
        self.metrics.progressed(row, added, now - live.last, first=first)
        if added.new_tokens:
            live.last = now
        return added

    def _deliver(self, row: Row, now: float) -> None:
        live = self._live[row]
        chunk = row.take_chunk()
        if row.error is not None:
            self._forget(row)
            assert isinstance(row.error, Exception)  # what is worse ends the thread
            self._end(live.ticket, row.error)
        elif row.finished:
            self._forget(row)
            seconds = now - live.ticket.submitted
            self._usual += 0.2 * (seconds - self._usual)
            self.metrics.finished(row, seconds)
        if chunk is not None and row.error is None:
            live.ticket.put(chunk)

    def _forget(self, row: Row) -> None:
        with self._changed:
            live = self._live.pop(row)
            self._starting -= not live.started
            self._changed.notify_all()

    def _drop_gone(self) -> None:
        with self._changed:
            gone, self._gone = self._gone, set()
        for ticket in gone:
            self._remove(ticket)

    def _drop_late(self) -> None:
        now = time.perf_counter()
        tickets = [ticket for ticket, _ in self._queue] + [v.ticket for v in self._live.values()]
        for ticket in {ticket for ticket in tickets if now > ticket.deadline}:
            self._end(ticket, TimeUpError(f"the request took more than {self.limits.seconds:g} s"))

    def _end(self, ticket: Ticket, error: Exception) -> None:
        """Tell a request what ended it, and free its rows."""
        ticket.put(error)
        self.metrics.failed(error)
        self._remove(ticket)

    def _remove(self, ticket: Ticket) -> None:
        with self._changed:
            self._queue = deque(item for item in self._queue if item[0] is not ticket)
            self._changed.notify_all()
        for row in [row for row, live in self._live.items() if live.ticket is ticket]:
            self._forget(row)
            if self._engine is not None:
                self._engine.cancel(row)

    def _fail(self, cause: Exception) -> None:
        """The engine is not to be trusted any more: what it held fails, and a fresh one follows."""
        log.error("the engine failed", exc_info=cause)
        self._engine = None  # first: its rows are beyond cancelling
        error = EngineError(
            f"the engine failed while the request ran ({type(cause).__name__}); the server goes on "
            "with a fresh one"
        )
        for ticket in {live.ticket for live in self._live.values()}:
            self._end(ticket, error)
        cause.__traceback__ = None  # it holds the rounds' tensors
        gc.collect()

    def _end_all(self, error: Exception) -> None:
        self._engine = None
        tickets = {ticket for ticket, _ in self._queue}
        tickets |= {live.ticket for live in self._live.values()}
        for ticket in tickets:
            self._end(ticket, error)
