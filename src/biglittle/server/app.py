"""The routes: OpenAI's API, health and metrics, and the playground."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..errors import BiglittleError
from .errors import ApiError, error_response, first_problem, reported
from .logs import RequestLog, describe
from .playground import PageFiles, describe_server
from .schemas import ChatRequest, CompletionRequest, ErrorBody, ModelCard, ModelList, Playground
from .service import Job, Service

__all__ = ["create_app"]

log = logging.getLogger("biglittle.server")

T = TypeVar("T")
BODY_SECONDS = 30.0  # for a client to send its request
READ_SECONDS = 30.0  # beyond the request's time, for a client to read what was written in it
Responses = dict[int | str, dict[str, Any]]
REFUSALS: Responses = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "A request that cannot be answered",
        401: "A missing or a wrong key",
        404: "No such model",
        408: "A body that did not come",
        413: "A body that is too large",
        429: "A full queue",
        500: "A request, or the engine, that failed",
        503: "The server stops",
        504: "Time is up",
    }.items()
}
ANSWERS: Responses = {
    **REFUSALS,
    200: {
        "description": "The answer; with `stream`, its events",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
}


def create_app(
    service: Service, *, api_key: str | None = None, origins: Sequence[str] = ()
) -> FastAPI:
    """The server as an ASGI application.

    Args:
        service: What answers; whoever runs the application starts and stops it.
        api_key: What clients must send; None lets everyone in.
        origins: Web pages that may call (CORS); none by default.
    """
    app = FastAPI(
        title="biglittle",
        version=__version__,
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
    )
    _add_errors(app)
    _add_openai(app, service)
    _add_watching(app, service)
    _add_playground(app, service)
    app.add_middleware(BodyLimit, limit=service.settings.limits.body_bytes)
    if api_key is not None:
        app.add_middleware(KeyCheck, key=api_key)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-biglittle-policy"],
        )
    app.add_middleware(RequestLog, metrics=service.metrics)
    return app


# Routes.


def _add_openai(app: FastAPI, service: Service) -> None:
    card = ModelCard(id=service.settings.name, created=service.created)

    @app.get("/v1/models", responses=_refusals(401))
    async def models() -> ModelList:
        """The models that can be asked: one."""
        return ModelList(data=[card])

    @app.get("/v1/models/{model:path}", responses=_refusals(401, 404))
    async def model(model: str) -> ModelCard:
        """A model by its name."""
        service.check_model(model)
        return card

    @app.post("/v1/chat/completions", responses=ANSWERS)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        describe(request.scope, body)
        return await _answer(request, await service.chat(body), stream=bool(body.stream))

    @app.post("/v1/completions", responses=ANSWERS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Go on from a text."""
        describe(request.scope, body)
        return await _answer(request, await service.complete(body), stream=bool(body.stream))

    app.openapi = lambda: _described(app)  # type: ignore[method-assign]


def _add_watching(app: FastAPI, service: Service) -> None:
    @app.get("/health", responses={503: {"description": "The engine does not run"}})
    async def health() -> JSONResponse:
        """Whether the engine runs (`alive`), and whether it takes requests (`ready`)."""
        alive, ready = service.scheduler.alive, service.scheduler.ready
        return JSONResponse({"alive": alive, "ready": ready}, 200 if alive else 503)

    @app.get("/health/ready", responses={503: {"description": "It takes no requests"}})
    async def ready() -> JSONResponse:
        """Whether it takes requests."""
        ready = service.scheduler.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_playground(app: FastAPI, service: Service) -> None:
    facts = describe_server(service)

    @app.get("/v1/playground", responses=_refusals(401))
    async def playground() -> Playground:
        """What the page at `/` has to know."""
        return facts

    files = PageFiles()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """The playground."""
        return files.response("index.html")

    @app.get("/playground/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        """What the page loads."""
        return files.response(name)


async def _answer(request: Request, job: Job, *, stream: bool) -> Response:
    headers = {"x-biglittle-policy": str(job.answer.policy).encode("ascii", "replace").decode()}
    describe(request.scope, job.answer)
    if stream:
        await unless_gone(request, job.begin(), job)
        return EventStream(job, headers)
    return JSONResponse(await unless_gone(request, job.whole(), job), headers=headers)


async def unless_gone(request: Request, work: Awaitable[T], job: Job) -> T:
    """Do the work, unless the client goes away: then its rows are freed at once."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client went away", code="client_gone")
        return task.result()
    except BaseException:
        job.ticket.cancel()
        raise
    finally:
        task.cancel()
        watch.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events. However the response ends, the rows are free afterwards; and it ends,
    even if the client stops reading."""

    def __init__(self, job: Job, headers: dict[str, str]) -> None:
        super().__init__(_events(job), media_type="text/event-stream", headers=headers)
        self.headers["cache-control"] = "no-cache"
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket = self._job.ticket
        left = ticket.deadline - time.perf_counter() + READ_SECONDS
        try:
            async with asyncio.timeout(left):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            log.warning("a client does not read its answer: it is let go")
        finally:
            ticket.cancel()


async def _events(job: Job) -> AsyncIterator[str]:
    try:
        async for event in job.events():
            yield f"data: {json.dumps(event)}\n\n"
        yield "data: [DONE]\n\n"
    except Exception as error:  # the status has been sent: the stream has to tell
        yield f"data: {json.dumps(reported(error).body)}\n\n"


# Errors.


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: REFUSALS[status] for status in statuses}


def _add_errors(app: FastAPI) -> None:
    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(first_problem(error.errors()))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(ApiError(error.status_code, str(error.detail)))

    async def failed(request: Request, error: Exception) -> Response:
        return error_response(error)

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(BiglittleError, failed)


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, without FastAPI's 422, which is a 400 here."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = schema
    return app.openapi_schema


# Who gets in.


class KeyCheck:
    """Lets nobody without the key call what is below `/v1`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._wanted = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
            if not hmac.compare_digest(given, self._wanted):
                error = ApiError(401, "a missing or a wrong API key", code="invalid_api_key")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Reads bodies up to a size, and within a time."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._read(scope, receive)
        except TimeoutError:
            late = ApiError(408, f"the body did not come within {BODY_SECONDS:g} s")
            await error_response(late)(scope, receive, send)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None where the client left while sending it."""
        announced = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if announced.isdigit() and int(announced[:18]) > self._limit:
            raise self._too_large()
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._limit:
                raise self._too_large()
            more = message.get("more_body", False)
        return bytes(body)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._limit} bytes", code="too_large")


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` for an application that has not seen the body."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again
