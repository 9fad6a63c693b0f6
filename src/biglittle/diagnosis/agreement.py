"""How often the draft is right, how far it gets, and whether its confidence can be believed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..traces import Trace, Traces, replay

__all__ = ["Agreement", "Bin", "measure_agreement"]

BINS = 10
WINDOW = 12

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bin:
    """Proposals of about the same confidence."""

    confidence: float
    """Their mean."""
    agreement: float
    """The share of them that are the target's tokens."""
    count: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """The draft's proposals beside the target's tokens."""

    rate: float
    """The share of the target's tokens that the draft, given what comes before, proposes."""
    positions: int
    """Tokens that were compared."""
    by_position: tuple[float, ...]
    """Of the tokens drafted k-th in a window of constant length, the share accepted, k = 1 …"""
    bins: tuple[Bin, ...]
    """By the draft's confidence, ascending; none for a draft that has no confidence."""

    @property
    def calibration_error(self) -> float:
        """How far confidence and agreement are apart, in the mean over all proposals (the expected
        calibration error of Guo et al. 2017, equation 3)."""
        total = sum(part.count for part in self.bins)
        apart = sum(part.count * abs(part.confidence - part.agreement) for part in self.bins)
        return apart / total if total else 0.0


def measure_agreement(traces: Traces) -> Agreement:
    """Compare what the draft proposes at every position with what the target wrote there."""
    proposals = [_first_choices(trace, chained=traces.header.chained) for trace in traces]
    agrees = np.concatenate([np.empty(0), *[agrees for agrees, _ in proposals]])
    confidence = np.concatenate([np.empty(0), *[sure for _, sure in proposals]])
    positions = sum(max(0, len(trace.tokens) - 1) for trace in traces)
    return Agreement(
        rate=float(agrees.sum()) / max(1, positions),
        positions=positions,
        by_position=_by_position(traces),
        bins=tuple(_bins(confidence, agrees)) if traces.header.chained else (),
    )


def _first_choices(trace: Trace, *, chained: bool) -> tuple[Floats, Floats]:
    """Whether the draft's choices are the target's, and how sure it is; where it has any."""
    if chained:
        wanted = np.array(trace.tokens[1 : 1 + len(trace.chain)])
        return (trace.chain.tokens == wanted).astype(float), trace.chain.confidence.astype(float)
    made = [(at, part) for at, part in trace.branches.items() if len(part)]
    agrees = [float(part.tokens[0] == trace.tokens[at]) for at, part in made]
    return np.array(agrees), np.ones(len(made))


def _by_position(traces: Traces) -> tuple[float, ...]:
    window = min(WINDOW, traces.header.cap)
    found = replay(traces, f"static:tokens={window}")
    drafted = [int((found.drafted >= k).sum()) for k in range(1, window + 1)]
    accepted = [int((found.accepted >= k).sum()) for k in range(1, window + 1)]
    return tuple(a / d for a, d in zip(accepted, drafted, strict=True) if d)


def _bins(confidence: Floats, agrees: Floats) -> Iterable[Bin]:
    which = np.minimum((confidence * BINS).astype(int), BINS - 1)
    for number in range(BINS):
        own = which == number
        if own.any():
            yield Bin(float(confidence[own].mean()), float(agrees[own].mean()), int(own.sum()))
