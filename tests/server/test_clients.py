"""Clients that go away, stall, crowd in, or send nothing; and the official one's view of it."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.server.conftest import NAME, Running, make_service, wait_for
from tests.server.test_api import PROMPT, post

from biglittle import Pair
from biglittle.decoding import Engine
from biglittle.server import app


def send(
    running: Running, body: dict[str, Any], *, length: int | None = None, room: int | None = None
) -> socket.socket:
    """A request whose answer is not waited for."""
    raw = json.dumps({"model": NAME, "prompt": PROMPT, **body}).encode()
    found = socket.socket()
    found.settimeout(30)
    if room is not None:  # bytes that the system takes before they are read
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    found.connect(("127.0.0.1", running.port))
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw) if length is None else length}\r\n\r\n"
    )
    found.sendall(head.encode() + raw)
    return found


class Gate:
    """Holds the engine before its next round, as long as it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.rounds = 0
        step = Engine.step

        def gated(engine: Engine) -> Any:
            assert self.open.wait(30)
            self.rounds += 1
            return step(engine)

        monkeypatch.setattr(Engine, "step", gated)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_row(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    gate = Gate(monkeypatch)
    with Running(make_service(pair)) as running:
        scheduler = running.service.scheduler
        client = send(running, {"max_tokens": 250, "stream": stream, "policy": "none"})
        wait_for(lambda: scheduler.waiting + scheduler.running == 1)
        client.close()
        wait_for(lambda: bool(scheduler._gone))
        gate.open.set()
        wait_for(lambda: scheduler.waiting + scheduler.running == 0)
        assert gate.rounds <= 1
        assert post(running, "/v1/completions", b"{}")[0] == 400  # it serves on


def test_a_client_that_leaves_in_the_middle_of_a_stream(pair: Pair) -> None:
    with Running(make_service(pair)) as running:
        scheduler = running.service.scheduler
        with running.client() as client:
            stream = client.completions.create(
                model=NAME, prompt=PROMPT, max_tokens=250, stream=True, temperature=0
            )
            next(iter(stream))
            stream.close()
        wait_for(lambda: scheduler.running == 0)


def test_a_client_that_stops_reading_is_let_go(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "READ_SECONDS", 0.0)
    with Running(make_service(pair, seconds=2.0)) as running:
        running.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        tasks = running._server.server_state.tasks
        body = {"max_tokens": 250, "temperature": 0, "stream": True, "logprobs": 20}
        with send(running, body, room=2048):
            wait_for(lambda: bool(tasks))
            wait_for(lambda: not tasks)


def test_a_full_queue(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with Running(make_service(pair, rows=1, queue=1)) as running:
        scheduler = running.service.scheduler
        clients = [send(running, {"max_tokens": 4})]
        wait_for(lambda: scheduler._starting == 1)
        clients.append(send(running, {"max_tokens": 4}))
        wait_for(lambda: len(scheduler._queue) == 1)
        body = json.dumps({"model": NAME, "prompt": PROMPT}).encode()
        status, headers, answer = post(running, "/v1/completions", body)
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(answer)["error"]["type"] == "rate_limit_error"
        gate.open.set()
        for client in clients:
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
            client.close()


def test_time_is_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with Running(make_service(pair, seconds=0.05)) as running, running.client() as client:
        threading.Timer(0.2, gate.open.set).start()
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=NAME, prompt=PROMPT, max_tokens=200)
        assert caught.value.status_code == 504
        assert caught.value.code == "timeout"
        assert caught.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails(pair: Pair, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    step = Engine.step
    left = [2]

    def breaks(engine: Engine) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("secret detail")
        return step(engine)

    with Running(make_service(pair)) as running, running.client() as client:
        monkeypatch.setattr(Engine, "step", breaks)
        asked: Any = {"model": NAME, "prompt": PROMPT, "max_tokens": 9, "temperature": 0}
        with pytest.raises(openai.APIError, match="fresh one") as caught:
            list(client.completions.create(**asked, stream=stream))
        assert "secret" not in str(caught.value)
        assert client.completions.create(**asked).choices[0].text  # it serves on


def test_a_body_that_does_not_come(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.1)
    with Running(make_service(pair)) as running:
        client = send(running, {}, length=1000)
        assert client.recv(1000).startswith(b"HTTP/1.1 408")
        client.close()


def test_a_body_without_an_end(pair: Pair) -> None:
    with Running(make_service(pair, body_bytes=1000)) as running:
        client = socket.create_connection(("127.0.0.1", running.port), timeout=30)
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        client.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 413")
        client.close()


def test_many_clients_get_what_each_would_get_alone(client: OpenAI, pair: Pair) -> None:
    prompts = [f"The {word} model {i}" for i in range(8) for word in ("little", "big")]

    def ask(prompt: str) -> str:
        found = client.completions.create(model=NAME, prompt=prompt, temperature=0, max_tokens=16)
        return found.choices[0].text

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(ask, prompts))
    assert texts == [pair.generate(prompt, max_new_tokens=16).text for prompt in prompts]


# Predicted outputs.


def predicted(client: OpenAI, prediction: str | None, **options: Any) -> Any:
    given: dict[str, Any] = {}
    if prediction is not None:
        given["prediction"] = {"type": "content", "content": prediction}
    return client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Who writes?"}],
        temperature=0,
        max_tokens=40,
        **given,
        **options,
    )


@pytest.mark.parametrize("which", ["pair", "two", "alone"])
def test_predicted_outputs(which: str, request: pytest.FixtureRequest) -> None:
    pair: Pair = request.getfixturevalue(which)
    with Running(make_service(pair)) as running, running.client() as client:
        plain = predicted(client, None, extra_body={"policy": "none"}).choices[0].message.content
        found = predicted(client, plain)
        assert found.choices[0].message.content == plain
        details = found.usage.completion_tokens_details
        other = predicted(client, "Something that was never written.")
        assert other.choices[0].message.content == plain
        assert details.accepted_prediction_tokens > (
            other.usage.completion_tokens_details.accepted_prediction_tokens
        )
