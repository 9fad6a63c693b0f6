"""The server against its own OpenAPI description, with made-up requests: nothing is a 500, and
every answer is one that the description knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import schemathesis.specs.openapi.checks as checks
from hypothesis import HealthCheck, given, settings, strategies
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from tests.server.conftest import NAME, Running, make_service

from biglittle import Pair


@pytest.fixture(scope="module")
def described(pair: Pair) -> Iterator[Any]:
    """The description that a server gives of itself."""
    service = make_service(pair, rows=8, new_tokens=8, prompt_tokens=64)
    with Running(service) as running:
        yield schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        assert service.scheduler.alive
        assert service.scheduler.running == service.scheduler.waiting == 0


CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


WRONG = [("/v1/chat/completions", "POST"), ("/v1/completions", "POST")]
PLAIN = (
    "messages",
    "prompt",
    "max_tokens",
    "n",
    "seed",
    "stop",
    "stream",
    "temperature",
    "details",
)
RIGHT = [
    *WRONG,
    ("/v1/models", "GET"),
    ("/v1/models/{model}", "GET"),
    ("/v1/playground", "GET"),
    ("/health", "GET"),
    ("/health/ready", "GET"),
    ("/metrics", "GET"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [(*operation, GenerationMode.POSITIVE) for operation in RIGHT]
    + [(*operation, GenerationMode.NEGATIVE) for operation in WRONG],
)
def test_no_request_is_a_server_error(
    described: Any, path: str, method: str, mode: GenerationMode
) -> None:
    seen: set[int] = set()

    @given(
        case=described[path][method].as_strategy(generation_mode=mode), known=strategies.booleans()
    )
    @settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(case: Any, known: bool) -> None:
        if known and isinstance(case.body, dict):  # or few would get to the models
            case.body = {name: case.body[name] for name in PLAIN if name in case.body}
            case.body["model"] = NAME
        answer = case.call(timeout=60)
        seen.add(answer.status_code)
        assert answer.status_code < 500, (answer.status_code, answer.text)
        case.validate_response(answer, checks=CHECKS)

    check()
    wanted = {200} if method == "GET" and "{" not in path else {404} if method == "GET" else {400}
    assert wanted <= seen
    if mode is GenerationMode.POSITIVE and method == "POST":
        assert 200 in seen


def test_every_path_is_described(described: Any) -> None:
    paths = sorted(described)
    assert paths == [
        "/health",
        "/health/ready",
        "/metrics",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/playground",
    ]
