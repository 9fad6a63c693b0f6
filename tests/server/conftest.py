"""A server over tiny models, in this process or behind a real port."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from openai import OpenAI
from tests.cli.conftest import make_model, make_tokenizer

from biglittle import Pair
from biglittle.server import ServerLimits, ServerSettings, Service, create_app

NAME = "tiny"


@pytest.fixture(scope="session")
def pair() -> Pair:
    """A random target with a draft that agrees now and then."""
    tokenizer = make_tokenizer()
    target = make_model(tokenizer, seed=0, context=512)
    return Pair(target, "early-exit:layers=1", tokenizer, policy="static:tokens=3")


@pytest.fixture(scope="session")
def two(pair: Pair) -> Pair:
    """The same target with a draft model of its own."""
    draft = make_model(pair.tokenizer, seed=1, layers=1, context=512)
    return Pair(pair.target, draft, pair.tokenizer, policy="static:tokens=3")


@pytest.fixture(scope="session")
def alone(pair: Pair) -> Pair:
    """The same target without a draft."""
    return Pair(pair.target, None, pair.tokenizer)


def make_service(pair: Pair, *, allow_lossy: bool = False, **limits: Any) -> Service:
    settings = ServerSettings(
        name=NAME, allow_lossy=allow_lossy, limits=ServerLimits(**{"new_tokens": 256, **limits})
    )
    return Service(pair, settings)


def wait_for(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return as soon as something holds; fail when it does not come to."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class Running:
    """A server in a thread of its own, on a free loopback port."""

    def __init__(self, service: Service, **options: Any) -> None:
        self.service = service
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(128)
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(create_app(service, **options), log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Running:
        self.service.start()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.service.stop()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self.socket]))

    def client(self, **options: Any) -> OpenAI:
        """OpenAI's own."""
        given = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options}
        return OpenAI(**given)


@pytest.fixture(scope="session")
def server(pair: Pair) -> Iterator[Running]:
    """One that many tests use."""
    with Running(make_service(pair, rows=4, allow_lossy=True)) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[OpenAI]:
    with server.client() as client:
        yield client
