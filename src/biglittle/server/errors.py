"""What goes wrong, in OpenAI's format and with its status codes."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from ..errors import BiglittleError, ContextError, ParameterError, PolicyError, RowError
from .schemas import TAGS

__all__ = ["ApiError", "EngineError", "QueueFullError", "ShuttingDownError", "TimeUpError"]
__all__ += ["as_api", "error_response", "first_problem", "reported"]

log = logging.getLogger("biglittle.server")

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}

NO_OBJECT = ("model_attributes_type", "model_type", "dict_type")
"""pydantic's words for it."""


class ApiError(BiglittleError):
    """An answer other than 200.

    Args:
        status: Of HTTP.
        message: For the client.
        code: OpenAI's word for it, or ours.
        param: The field that it is about.
        headers: Of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = KINDS.get(self.status)
        if kind is None:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class QueueFullError(BiglittleError):
    """There is no room in the queue.

    Args:
        waiting: Rows that wait.
        seconds: After how long to try again.
    """

    def __init__(self, waiting: int, seconds: int) -> None:
        super().__init__(f"the queue is full ({waiting} waiting); try again in {seconds} s")
        self.seconds = seconds


class ShuttingDownError(BiglittleError):
    """The server stops and takes no more requests."""


class TimeUpError(BiglittleError):
    """A request took longer than it may."""


class EngineError(BiglittleError, RuntimeError):
    """The engine failed, and with it all that was running; the cause is chained."""


def first_problem(problems: Sequence[Any]) -> ApiError:
    """The first thing that pydantic finds wrong, by the name of its field; never what was sent."""
    problem = problems[0]
    where = [str(part)[:64] for part in problem["loc"] if part not in ("body", *TAGS)]
    if problem["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON")
    if not where and problem["type"] in NO_OBJECT:
        reason = "the body is no JSON object; send one, as Content-Type: application/json"
        return ApiError(400, reason)
    param = where[0] if where else None
    if problem["type"] == "extra_forbidden":
        return ApiError(400, f"{where[-1]}: unknown, or not supported here", param=param)
    name = ".".join(where)[:200] or "the body"
    return ApiError(400, f"{name}: {problem['msg']}", param=param)


def as_api(error: Exception) -> ApiError:
    """What the client is told. Nothing of what the program did not foresee is in it."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            again = {"Retry-After": str(error.seconds)}
            return ApiError(429, str(error), code="queue_full", headers=again)
        case ShuttingDownError():
            return ApiError(503, str(error), code="shutting_down", headers={"Retry-After": "5"})
        case TimeUpError():  # the same request would take as long again
            return ApiError(504, str(error), code="timeout", headers={"x-should-retry": "false"})
        case ContextError():
            return ApiError(400, str(error), code="context_length_exceeded")
        case PolicyError():
            return ApiError(400, str(error), code="invalid_policy", param="policy")
        case ParameterError():
            return ApiError(400, str(error))
        case RowError(__cause__=ParameterError() as cause):  # a schema beyond the grammar's limits
            return ApiError(400, str(cause))
        case RowError():
            return ApiError(500, f"the request failed: {error}", code="request_failed")
        case EngineError():
            return ApiError(500, str(error), code="engine_error")
        case _:
            return ApiError(500, "the server failed on this request", code="internal_error")


def reported(error: Exception) -> ApiError:
    """What the client is told; what nobody foresaw goes to the log, whole."""
    found = as_api(error)
    if found.code == "internal_error":
        log.error("a request failed", exc_info=error)
    return found


def error_response(error: Exception) -> Response:
    """An error as OpenAI writes it. ASCII: what was sent may hold what is no text."""
    found = reported(error)
    body = json.dumps(found.body).encode("ascii")
    return Response(body, found.status, found.headers, media_type="application/json")
