"""`biglittle serve`: bad beginnings are one line and exit code 2; signals end it in good order."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from tests.cli.conftest import Run, Start


@contextmanager
def serving(start: Start, *arguments: str, **streams: Any) -> Iterator[tuple[Any, str]]:
    """A server in a process of its own, ready; and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start("serve", *arguments, "--port", str(port), **streams)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(process, url)
        yield process, url
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        try:
            assert json.load(urlopen(f"{url}/health"))["ready"]
            return
        except (URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError("it does not come up")


def ask(url: str, path: str = "/v1/completions", key: str = "", **body: Any) -> Any:
    asked = {"model": "target", "prompt": "The", "temperature": 0, **body}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    return json.load(urlopen(Request(url + path, json.dumps(asked).encode(), headers)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "port"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid is no address"),
        (["--api-key", "no-such-file"], "--api-key no-such-file cannot be read"),
        (["--rows", "0"], "rows"),
        (["--queue", "-1"], "queue"),
        (["--timeout", "0"], "timeout"),
        (["--max-body", "x"], "max-body"),
        (["--grace", "-1"], "grace"),
        (["--policy", "dynamc"], "did you mean"),
        (["--log-level", "loud"], "log-level"),
        (["--profile", "no-such-profile.json"], "profile no-such-profile.json cannot be read"),
        (["--policy", "dynamic"], "draft"),
    ],
)
def test_bad_beginnings(
    run: Run, folders: dict[str, str], arguments: list[str], message: str
) -> None:
    result = run("serve", folders["target"], *arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_a_port_that_is_taken(run: Run, folders: dict[str, str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        result = run("serve", folders["target"], "--port", str(port))
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in result.stderr


@pytest.mark.parametrize("key", ["", "\n", "two words", "schlüssel", "\x00"])
def test_bad_keys(run: Run, folders: dict[str, str], tmp_path: Path, key: str) -> None:
    path = tmp_path / "key"
    path.write_text(key, encoding="utf8")
    result = run("serve", folders["target"], "--api-key", str(path))
    assert result.exit_code == 2
    assert "key" in result.stderr


def test_an_empty_key_in_the_environment(
    run: Run, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGLITTLE_API_KEY", "")
    result = run("serve", folders["target"])
    assert result.exit_code == 2
    assert "BIGLITTLE_API_KEY holds no key" in result.stderr


def test_a_lossy_default_needs_leave(run: Run, folders: dict[str, str]) -> None:
    arguments = ["serve", folders["target"], "-d", "prompt-lookup", "-p", "bild", "--port", "0"]
    result = run(*arguments)
    assert result.exit_code == 2
    assert "--allow-lossy" in result.stderr


def test_without_the_extra(
    run: Run, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("biglittle.cli.serve.NEEDED", ("fastapi", "no_such_package"))
    result = run("serve", folders["target"])
    assert result.exit_code == 2
    assert "serve needs no_such_package: pip install 'biglittle[serve]'" in result.stderr


@pytest.mark.slow
def test_it_serves_until_it_is_told_to_end(
    start: Start, folders: dict[str, str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("k-1\n", encoding="utf8")
    arguments = [folders["target"], "--draft", folders["draft"], "--api-key", str(key)]
    with serving(start, *arguments) as (process, url):
        assert ask(url, key="k-1", max_tokens=5)["usage"]["completion_tokens"] == 5
        with pytest.raises(URLError, match="401"):
            ask(url, key="k-2")
        answers: list[Any] = []
        asking = threading.Thread(
            target=lambda: answers.append(ask(url, key="k-1", max_tokens=200))
        )
        asking.start()
        metrics = f"{url}/metrics"
        while 'num_requests_running{model_name="target"} 1.0' not in str(urlopen(metrics).read()):
            assert asking.is_alive()
        os.kill(process.pid, signal.SIGTERM)
        asking.join()
        assert answers[0]["usage"]["completion_tokens"] > 5
        assert process.wait(60) == 0
        with pytest.raises(URLError):
            urlopen(f"{url}/health")


@pytest.mark.slow
def test_ctrl_c_ends_it(start: Start, folders: dict[str, str]) -> None:
    with serving(start, folders["target"]) as (process, _):
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130


def takes_requests(url: str) -> bool:
    try:
        urlopen(f"{url}/health").close()
    except OSError:  # refused, or reset: it was waiting when the listener closed
        return False
    return True


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once(start: Start, folders: dict[str, str]) -> None:
    arguments = [folders["long"], "--grace", "600", "--max-new-tokens", "100000"]
    with serving(start, *arguments) as (process, url):
        body = {"model": "long", "prompt": "The little model", "temperature": 0, "stream": True}
        body |= {"max_tokens": 100_000}
        headers = {"Content-Type": "application/json"}
        stream = urlopen(Request(f"{url}/v1/completions", json.dumps(body).encode(), headers))
        assert stream.readline().startswith(b"data: ")
        os.kill(process.pid, signal.SIGINT)
        while takes_requests(url):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert "shutting down" in stream.read().decode().splitlines()[-2]
        assert "Traceback" not in process.stderr.read().decode()
