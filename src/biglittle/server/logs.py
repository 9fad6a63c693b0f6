"""What is logged: a line of JSON an event, with the request's id, and no text of a prompt or an
answer unless the level is `debug`."""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .answers import Answer
from .errors import error_response
from .metrics import Metrics
from .schemas import Shared

if TYPE_CHECKING:
    from logging import LogRecord

__all__ = ["JsonLines", "RequestLog", "describe", "log_to_stderr"]

log = logging.getLogger("biglittle.server")

STATE = "biglittle.log"  # the key in an ASGI scope
NO_ANSWER = 499
"""nginx's status for a client that went away."""


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: str) -> None:
    """Send the server's log, and uvicorn's, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("biglittle.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


def describe(scope: Scope, what: Shared | Answer) -> None:
    """Note what a request was about, for its line in the log."""
    state: dict[str, Any] = scope.setdefault(STATE, {})
    if isinstance(what, Answer):
        state["answer"] = what
    elif log.isEnabledFor(logging.DEBUG):
        state["body"] = what.model_dump(exclude_unset=True)


class RequestLog:
    """Gives every request an id, and logs and counts it when it has been answered."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or whatever else the scope is."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = f"req-{uuid.uuid4().hex}"
        started = time.perf_counter()
        scope[STATE] = {}
        status = NO_ANSWER

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception as error:  # nobody foresaw it
            if status != NO_ANSWER:  # the answer has begun
                raise
            await error_response(error)(scope, receive, named)
        finally:
            self._write(scope, name, status, time.perf_counter() - started)

    def _write(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        # A path that no route has is the client's own text: it does not become a label.
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.answered(path, status)
        fields: dict[str, Any] = {
            "request_id": name,
            "method": scope["method"],
            "path": path,
            "status": status,
            "seconds": round(seconds, 4),
        }
        fields |= _about(scope[STATE])
        watching = path in ("/health", "/health/ready", "/metrics")
        log.log(logging.DEBUG if watching else logging.INFO, "request", extra={"fields": fields})


def _about(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    answer: Answer | None = state.get("answer")
    if answer is not None:
        found["answer_id"], found["policy"] = answer.id, str(answer.policy)
        done = list(answer.results.values())
        found["prompt_tokens"] = sum(result.stats.read_tokens for result in done)
        found["completion_tokens"] = sum(result.stats.new_tokens for result in done)
    if "body" in state:  # at the level debug only
        found["body"] = state["body"]
        if answer is not None:
            found["texts"] = [result.text for result in answer.results.values()]
    return found
