"""OpenMP's workers, of which every thread that computes has its own."""

from __future__ import annotations

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

__all__ = ["release_workers"]

HARD = 2  # omp_pause_hard


def release_workers() -> None:
    """End the OpenMP workers of the calling thread; it gets new ones when it computes again.

    For a thread that leaves the computing to another one. GNU's OpenMP lets workers wait
    actively, which short operations need, only while there are no more of them in the process
    than cores (`gomp_throttled_spin_count_var`). Idle workers of the thread that loaded a model
    would count: on two cores a token of a small model then takes 1.7 times as long.
    """
    for library in ThreadpoolController().select(prefix="libgomp").lib_controllers:
        pause = getattr(library.dynlib, "omp_pause_resource_all", None)  # OpenMP 5.0
        if pause is not None:
            pause(HARD)
