"""Time spent in forwards, without a synchronisation of its own."""

from __future__ import annotations

import time

import torch

__all__ = ["Stopwatch"]


class Stopwatch:
    """Adds up the time of the blocks that it is a context for.

    On a CPU that is wall-clock time. On a GPU a forward returns before it has run, so events are
    recorded and read later, when `seconds` is asked for after the round's own synchronisation.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._seconds = 0.0
        self._started = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        if self._cuda:
            stream = torch.cuda.current_stream(self._device)
            self._events.append((torch.cuda.Event(True), torch.cuda.Event(True)))
            self._events[-1][0].record(stream)
        else:
            self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        if self._cuda:
            self._events[-1][1].record(torch.cuda.current_stream(self._device))
        else:
            self._seconds += time.perf_counter() - self._started

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        for start, end in self._events:
            end.synchronize()
            self._seconds += start.elapsed_time(end) / 1000
        self._events.clear()
        return self._seconds
