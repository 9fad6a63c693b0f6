"""Clients of every kind for a while: afterwards nothing is left of them, and answers were right.

`BIGLITTLE_SOAK_SECONDS` makes it longer.
"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.server.conftest import NAME, Running, make_service, wait_for
from tests.server.test_api import post
from tests.server.test_clients import send

from biglittle import Pair
from biglittle.server import Ticket

SECONDS = float(os.environ.get("BIGLITTLE_SOAK_SECONDS", "20"))
PROMPTS = ["The little model", "the big model corrects", "A drafter proposes", "def add(", "token"]
POLICIES = ["none", "static:tokens=3", "dynamic", "cost-aware"]
GROWTH = 48 << 20  # bytes: what allocators keep for themselves, but no leak of rows


class Crowd:
    """Clients that do as they like until the time is over."""

    def __init__(self, running: Running, expected: dict[str, str]) -> None:
        self.running = running
        self.expected = expected
        self.end = time.monotonic() + SECONDS
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.kinds: list[Callable[[random.Random, OpenAI], None]] = [
            self.asks,
            self.streams,
            self.leaves,
            self.hangs_up,
            self.stalls,
            self.sends_rubbish,
            self.is_refused,
        ]

    def client(self, seed: int) -> None:
        chance = random.Random(seed)
        with self.running.client() as client:
            while time.monotonic() < self.end:
                kind = chance.choice(self.kinds)
                try:
                    kind(chance, client)
                    self.done[kind.__name__] += 1
                except Exception as error:  # shown at the end
                    self.wrong.append(f"{kind.__name__}: {type(error).__name__}: {error}")

    def body(self, chance: random.Random, **more: Any) -> tuple[str, dict[str, Any]]:
        prompt = chance.choice(PROMPTS)
        body = {"model": NAME, "prompt": prompt, "temperature": 0, "max_tokens": 24, **more}
        return prompt, {**body, "extra_body": {"policy": chance.choice(POLICIES)}}

    def check(self, prompt: str, text: str) -> None:
        assert text == self.expected[prompt], f"{prompt!r} became {text!r}"

    def asks(self, chance: random.Random, client: OpenAI) -> None:
        prompt, body = self.body(chance)
        self.check(prompt, client.completions.create(**body).choices[0].text)

    def streams(self, chance: random.Random, client: OpenAI) -> None:
        prompt, body = self.body(chance, stream=True)
        chunks = client.completions.create(**body)
        self.check(prompt, "".join(chunk.choices[0].text for chunk in chunks))

    def leaves(self, chance: random.Random, client: OpenAI) -> None:
        """In the middle of a stream."""
        _, body = self.body(chance, stream=True, max_tokens=200)
        stream = client.completions.create(**body)
        for _ in range(chance.randrange(3)):
            next(iter(stream))
        stream.close()

    def hangs_up(self, chance: random.Random, client: OpenAI) -> None:
        """Without having heard anything."""
        found = send(self.running, {"max_tokens": 200, "stream": chance.random() < 0.5})
        time.sleep(chance.random() / 20)
        found.close()

    def stalls(self, chance: random.Random, client: OpenAI) -> None:
        """Sends half a body, or reads no answer."""
        length = 10_000 if chance.random() < 0.5 else None
        found = send(self.running, {"max_tokens": 100, "stream": True}, length=length)
        time.sleep(chance.random() / 4)
        found.close()

    def sends_rubbish(self, chance: random.Random, client: OpenAI) -> None:
        found = socket.create_connection(("127.0.0.1", self.running.port), timeout=30)
        found.sendall(chance.randbytes(chance.randrange(1, 2000)))
        found.close()

    def is_refused(self, chance: random.Random, client: OpenAI) -> None:
        bad = chance.choice([b"", b"{", b"[]", b'{"model": 7}', b"\xff" * 100])
        status, _, answer = post(self.running, "/v1/chat/completions", bad)
        assert status == 400
        assert json.loads(answer)["error"]["message"]


def memory() -> int:
    """Resident bytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def tickets() -> int:
    gc.collect()
    return sum(type(found) is Ticket for found in gc.get_objects())


@pytest.mark.slow
def test_soak(pair: Pair) -> None:
    expected = {prompt: pair.generate(prompt, max_new_tokens=24).text for prompt in PROMPTS}
    before = tickets()
    with Running(make_service(pair, rows=4, queue=64)) as running:
        crowd = Crowd(running, expected)
        threads = [threading.Thread(target=crowd.client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 3)  # what is made once has been made
        warm = memory()
        for thread in threads:
            thread.join()
        scheduler = running.service.scheduler
        wait_for(lambda: scheduler.running == scheduler.waiting == 0)
        assert crowd.wrong == []
        assert set(crowd.done) == {kind.__name__ for kind in crowd.kinds}
        assert memory() - warm < GROWTH
        assert scheduler.cached_tokens == 0
        assert not scheduler._live
        assert not scheduler._queue
        wait_for(lambda: tickets() <= before)
        with running.client() as client:
            crowd.check(
                PROMPTS[0],
                client.completions.create(
                    model=NAME, prompt=PROMPTS[0], temperature=0, max_tokens=24
                )
                .choices[0]
                .text,
            )
        with pytest.raises(openai.NotFoundError), running.client() as client:
            client.models.retrieve("another")
