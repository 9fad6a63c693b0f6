"""Requests come, go, fail and wait; the engine thread serves on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.server.conftest import wait_for

from biglittle import ContextError, Pair, ParameterError, Result, RowError
from biglittle.decoding import Engine, Request
from biglittle.server import Scheduler, ServerLimits, Ticket
from biglittle.server.errors import (
    EngineError,
    QueueFullError,
    ShuttingDownError,
    TimeUpError,
)

PROMPTS = ["The little model", "the big model corrects", "A drafter proposes", "def add(", "token"]


def requests(pair: Pair, prompt: Any, new: int = 12, **options: Any) -> list[Request]:
    return pair.requests(prompt, max_new_tokens=new, **options)


async def results(ticket: Ticket) -> list[Result]:
    return [chunk.result async for chunk in ticket if chunk.result is not None]


def with_scheduler(
    pair: Pair, work: Callable[[Scheduler], Coroutine[Any, Any, None]], **limits: Any
) -> Scheduler:
    """Run something beside a scheduler, which is idle afterwards."""
    scheduler = Scheduler(pair, ServerLimits(**limits))
    scheduler.start()
    try:
        asyncio.run(asyncio.wait_for(work(scheduler), 60))
        wait_for(lambda: scheduler.running == scheduler.waiting == 0)
        assert scheduler.cached_tokens == 0
    finally:
        scheduler.stop()
    assert not scheduler.alive
    return scheduler


class Slow:
    """A stopping criterion that waits until it may go on, and counts the tokens."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.tokens = 0

    def __call__(self, ids: Any, scores: Any) -> bool:
        self.tokens += 1
        assert self.go.wait(30)
        return False


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_many_at_once_are_what_each_is_alone(pair: Pair, rows: int) -> None:
    policies = ["none", "static:tokens=3", "dynamic", "bild:fallback=0.4,rollback=4"]
    asked = [
        requests(pair, prompt, 10, policy=policy)
        + requests(pair, prompt, 7, policy=policy, temperature=1.0, seed=3)
        for prompt in PROMPTS
        for policy in policies
    ]

    async def work(scheduler: Scheduler) -> None:
        tickets = [scheduler.submit([part]) for parts in asked for part in parts]
        found = [(await results(ticket))[0] for ticket in tickets]
        alone = [pair.run([part])[0] for parts in asked for part in parts]
        assert [r.token_ids for r in found] == [r.token_ids for r in alone]

    with_scheduler(pair, work, rows=rows)


def test_a_ticket_of_several_rows(pair: Pair) -> None:
    async def work(scheduler: Scheduler) -> None:
        asked = requests(pair, PROMPTS[:3])
        chunks = [chunk async for chunk in scheduler.submit(asked)]
        for index, expected in enumerate(pair.run(asked)):
            own = [chunk for chunk in chunks if chunk.index == index]
            assert "".join(chunk.text for chunk in own) == expected.text
            assert own[-1].result is not None

    with_scheduler(pair, work, rows=2)


def test_a_request_that_fails_fails_alone(pair: Pair) -> None:
    def fail(ids: Any, scores: Any) -> Any:
        if ids.shape[1] > 8:
            raise ValueError("my own mistake")
        return scores

    async def work(scheduler: Scheduler) -> None:
        bad = scheduler.submit(requests(pair, PROMPTS[0], logits_processors=[fail]))
        good = scheduler.submit(requests(pair, PROMPTS[1]))
        with pytest.raises(RowError, match="my own mistake"):
            await results(bad)
        assert (await results(good))[0].text == pair.generate(PROMPTS[1], max_new_tokens=12).text

    with_scheduler(pair, work)


def test_an_engine_that_fails_is_replaced(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    step, broken = Engine.step, threading.Event()

    def breaks(self: Engine) -> Any:
        if broken.is_set() and self.rows:
            broken.clear()
            raise RuntimeError("out of memory, say")
        return step(self)

    monkeypatch.setattr(Engine, "step", breaks)

    async def work(scheduler: Scheduler) -> None:
        broken.set()
        running = [scheduler.submit(requests(pair, prompt)) for prompt in PROMPTS[:2]]
        waiting = scheduler.submit(requests(pair, PROMPTS[2]))
        for ticket in running:
            with pytest.raises(EngineError, match="RuntimeError"):
                await results(ticket)
        expected = pair.generate(PROMPTS[2], max_new_tokens=12).text
        assert (await results(waiting))[0].text == expected

    with_scheduler(pair, work, rows=2)


def test_an_engine_that_cannot_be_made(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(scheduler: Scheduler) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pair, "engine", lambda *given: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await results(scheduler.submit(requests(pair, PROMPTS[0])))
        assert await results(scheduler.submit(requests(pair, PROMPTS[0])))

    with_scheduler(pair, work)


def test_who_goes_away_frees_the_row_within_one_round(pair: Pair) -> None:
    slow = Slow()

    async def work(scheduler: Scheduler) -> None:
        asked = requests(pair, PROMPTS[0], 200, policy="none", stopping_criteria=[slow])
        ticket = scheduler.submit(asked)
        await asyncio.to_thread(wait_for, lambda: slow.tokens == 1)
        ticket.cancel()
        slow.go.set()
        await asyncio.to_thread(wait_for, lambda: scheduler.running == 0)
        assert slow.tokens <= 2

    with_scheduler(pair, work)


def test_who_goes_away_while_waiting_leaves_the_queue(pair: Pair) -> None:
    slow = Slow()

    async def work(scheduler: Scheduler) -> None:
        first = scheduler.submit(requests(pair, PROMPTS[0], stopping_criteria=[slow]))
        await asyncio.to_thread(wait_for, lambda: slow.tokens == 1)
        second = scheduler.submit(requests(pair, PROMPTS[1]))
        assert scheduler.waiting >= 1
        second.cancel()
        slow.go.set()
        assert await results(first)

    with_scheduler(pair, work, rows=1)


def test_a_full_queue(pair: Pair) -> None:
    slow = Slow()

    async def work(scheduler: Scheduler) -> None:
        first = scheduler.submit(requests(pair, PROMPTS[0], stopping_criteria=[slow]))
        await asyncio.to_thread(wait_for, lambda: slow.tokens == 1)
        waiting = [scheduler.submit(requests(pair, prompt)) for prompt in PROMPTS[1:3]]
        with pytest.raises(QueueFullError, match="2 waiting") as caught:
            scheduler.submit(requests(pair, PROMPTS[3]))
        assert 1 <= caught.value.seconds <= 60
        slow.go.set()
        for ticket in (first, *waiting):
            assert await results(ticket)

    with_scheduler(pair, work, rows=1, queue=2)


def test_more_choices_than_may_ever_wait(pair: Pair) -> None:
    async def work(scheduler: Scheduler) -> None:
        with pytest.raises(ParameterError, match="3 choices"):
            scheduler.submit(requests(pair, PROMPTS[:3]))

    with_scheduler(pair, work, queue=2)


def test_time_is_up(pair: Pair) -> None:
    slow = Slow()

    async def work(scheduler: Scheduler) -> None:
        running = scheduler.submit(requests(pair, PROMPTS[0], 200, stopping_criteria=[slow]))
        waiting = scheduler.submit(requests(pair, PROMPTS[1]))
        running.deadline = waiting.deadline = 0.0
        slow.go.set()
        for ticket in (running, waiting):
            with pytest.raises(TimeUpError, match="600 s"):
                await results(ticket)
        assert await results(scheduler.submit(requests(pair, PROMPTS[2])))

    with_scheduler(pair, work, rows=1)


def test_what_runs_finishes_within_the_grace(pair: Pair) -> None:
    async def work(scheduler: Scheduler) -> None:
        tickets = [scheduler.submit(requests(pair, prompt)) for prompt in PROMPTS]
        stopping = asyncio.create_task(asyncio.to_thread(scheduler.stop, 30.0))
        while scheduler.ready:
            await asyncio.sleep(0.01)
        with pytest.raises(ShuttingDownError):
            scheduler.submit(requests(pair, PROMPTS[0]))
        for ticket in tickets:
            assert await results(ticket)
        await stopping

    with_scheduler(pair, work, rows=2)


def test_what_does_not_is_told_so(pair: Pair) -> None:
    slow = Slow()

    async def work(scheduler: Scheduler) -> None:
        tickets = [
            scheduler.submit(requests(pair, PROMPTS[0], 200, stopping_criteria=[slow])),
            scheduler.submit(requests(pair, PROMPTS[1])),
        ]
        stopping = asyncio.create_task(asyncio.to_thread(scheduler.stop, 0.0))
        await asyncio.to_thread(wait_for, lambda: not scheduler.ready)
        slow.go.set()
        await stopping
        for ticket in tickets:
            with pytest.raises(ShuttingDownError):
                await results(ticket)

    with_scheduler(pair, work, rows=1)


def test_errors_of_the_library_come_before_the_queue(pair: Pair) -> None:
    with pytest.raises(ContextError):
        requests(pair, "x" * 1000)


@pytest.mark.parametrize(
    "changes", [{"rows": 0}, {"queue": 0}, {"seconds": 0.0}, {"seconds": float("nan")}]
)
def test_limits_out_of_range(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        ServerLimits(**changes)


def test_the_starting_thread_keeps_no_workers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []
    monkeypatch.setattr(
        "biglittle.server.scheduler.release_workers",
        lambda: released.append(threading.current_thread().name),
    )
    scheduler = Scheduler(pair, ServerLimits())
    scheduler.start()
    scheduler.stop()
    assert released == [threading.current_thread().name]
