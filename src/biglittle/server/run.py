"""A server in this process, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from .service import Service

__all__ = ["serve"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST = 5.0  # seconds beyond the grace for answers to reach clients that read slowly
AT_ONCE = 1.0  # seconds for requests to tell their clients that there is no grace


def serve(app: Any, service: Service, listener: socket.socket, *, grace: float) -> bool:
    """Serve until SIGTERM or Ctrl-C; then what runs has `grace` seconds to finish.

    A second Ctrl-C ends it at once.

    Returns:
        Whether it was Ctrl-C.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=round(grace + LAST),
    )
    server = _Server(config, service, grace)
    service.start()
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        service.stop()
    return server.interrupted


class _Server(uvicorn.Server):
    """uvicorn's, with an end in good order: no signal is raised again when all is done."""

    def __init__(self, config: uvicorn.Config, service: Service, grace: float) -> None:
        super().__init__(config)
        self._service = service
        self._grace = grace
        self.interrupted = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.interrupted |= sig == signal.SIGINT
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(asyncio.to_thread(self._service.stop, self._grace))
        await super().shutdown(sockets)
        if self.force_exit:
            await asyncio.to_thread(self._service.stop)
            if self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks, timeout=AT_ONCE)
        await ending
