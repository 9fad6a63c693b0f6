"""Files of requests in OpenAI's batch format, answered to the last one.

A request is a line `{"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": …}`.
An answer is a line that is added to the other file when it is complete; its `id` is made of the
request, so that a run that goes on knows which requests it answered.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import ParameterError
from ..files import GrowingFile
from .errors import ApiError, QueueFullError, ShuttingDownError, as_api, first_problem
from .schemas import ChatRequest, CompletionRequest
from .service import Job, Service

__all__ = ["Answers", "BatchLine", "read_batch", "run_batch"]

PAUSE = 0.05  # seconds between looks at a full queue, or at the wish to stop
PREFIX = "batch_req_"
BEGINNING = f'{{"id":"{PREFIX}'.encode()  # of an answer's line
URLS: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request.

    Attributes:
        id: Of its answer, made of the whole line.
        custom_id: The user's own.
        url: Which kind it is.
        body: What is asked.
    """

    id: str
    custom_id: str
    url: str
    body: Any


def read_batch(path: Path) -> list[BatchLine]:
    """All requests of a file.

    Raises:
        ParameterError: The file cannot be read, holds no request or one that is none, or two of
            the same `custom_id`.
    """
    try:
        raw = path.read_bytes().split(b"\n")
    except OSError as cause:
        raise ParameterError(f"cannot read {path}: {cause.strerror}") from cause
    lines = [_line(f"{path}:{i}", line) for i, line in enumerate(raw, start=1) if line.strip()]
    if not lines:
        raise ParameterError(f"there is no request in {path}")
    seen: set[str] = set()
    for line in lines:
        if line.custom_id in seen:
            raise ParameterError(f"{path}: custom_id {line.custom_id!r} is there twice")
        seen.add(line.custom_id)
    return lines


def _line(where: str, raw: bytes) -> BatchLine:
    try:
        data = json.loads(raw)
    except (RecursionError, ValueError) as cause:
        raise ParameterError(f"{where} is not JSON: {getattr(cause, 'msg', cause)}") from cause
    if not isinstance(data, dict) or not isinstance(data.get("custom_id"), str):
        raise ParameterError(f'{where} has no "custom_id"; give every request one of its own')
    if data.get("method") != "POST" or data.get("url") not in URLS:
        known = " or ".join(URLS)
        raise ParameterError(f'{where}: "method" must be POST, and "url" {known}')
    text = json.dumps(data, sort_keys=True).encode()
    name = f"{PREFIX}{hashlib.sha256(text).hexdigest()[:32]}"
    return BatchLine(name, data["custom_id"], data["url"], data.get("body"))


class Answers:
    """The file of answers; one that is there is gone on with.

    Args:
        path: The file.
        lines: The requests that it is to answer.

    Raises:
        ParameterError: The file answers something else, or cannot be read or written.
    """

    def __init__(self, path: Path, lines: Sequence[BatchLine]) -> None:
        self.path = path
        self.done: set[str] = set()
        self._file = GrowingFile(path, BEGINNING)
        asked = {line.id for line in lines}
        with _writing(path):
            found = self._file.lines() if path.exists() else []
        for number, line in enumerate(found, start=1):
            name = self._name(line)
            if name not in asked:
                raise ParameterError(
                    f"{path}:{number} answers no request of this batch; give another file"
                )
            self.done.add(name)
        with _writing(path):
            self._file.append()  # before any work, the file can be written

    def add(self, line: BatchLine, status: int, body: Mapping[str, Any]) -> None:
        """Append an answer; it is on the disk when this returns."""
        response = {
            "status_code": status,
            "request_id": f"req-{uuid.uuid4().hex}",
            "body": body,
        }
        record = {
            "id": line.id,
            "custom_id": line.custom_id,
            "response": response,
            "error": None,
        }
        with _writing(self.path):
            self._file.append(record)
        self.done.add(line.id)

    @staticmethod
    def _name(line: bytes) -> str:
        try:
            return str(json.loads(line)["id"])
        except (ValueError, KeyError, TypeError):
            return ""


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Within, what the disk refuses becomes one line that says how to go on."""
    try:
        yield
    except OSError as cause:
        raise ParameterError(
            f"{path} cannot be written ({cause.strerror}); make room there, and give the same "
            "command again: what was answered is kept"
        ) from cause


async def run_batch(
    service: Service,
    lines: Sequence[BatchLine],
    answers: Answers,
    *,
    together: int,
    answered: Callable[[int], None],
    stopped: Callable[[], bool],
) -> None:
    """Answer what has no answer yet.

    Args:
        service: Started.
        lines: The requests.
        answers: Where answers go.
        together: Requests under way at a time.
        answered: Told the status of every answer.
        stopped: Whether to leave off; what is under way is then left unanswered.
    """
    todo = [line for line in lines if line.id not in answers.done]
    waiting = iter(todo)
    running: set[asyncio.Task[None]] = set()

    async def one(line: BatchLine) -> None:
        status, body = await _answer(service, line)
        answers.add(line, status, body)
        answered(status)

    try:
        while not stopped():
            while len(running) < together and (line := next(waiting, None)) is not None:
                running.add(asyncio.create_task(one(line)))
            if not running:
                return
            done, running = await asyncio.wait(
                running, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _answer(service: Service, line: BatchLine) -> tuple[int, Mapping[str, Any]]:
    """A request's status and body."""
    try:
        job = await _submit(service, line)
        return 200, await job.whole()
    except ShuttingDownError:  # no answer: the next run asks again
        raise
    except Exception as error:
        found = as_api(error)
        return found.status, found.body


async def _submit(service: Service, line: BatchLine) -> Job:
    try:
        body: Any = URLS[line.url].model_validate(line.body)
    except ValidationError as error:
        raise first_problem(error.errors()) from None
    if body.stream:
        raise ApiError(400, "stream: a batch has no streams; leave it out", param="stream")
    ask: Any = service.chat if isinstance(body, ChatRequest) else service.complete
    while True:
        try:
            found: Job = await ask(body)
        except QueueFullError:
            await asyncio.sleep(PAUSE)
        else:
            return found
