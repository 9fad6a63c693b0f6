"""Traces: what the target wrote and what the draft would have proposed, recorded once.

From a trace follows, without running a model again, what every lookahead rule would do under
lossless greedy decoding: see `replay`.
"""

from .base import Header, Proposals, Trace, Traces
from .disco import Calibration, DiscoReport, fit_disco, train_disco
from .file import read_traces
from .record import record
from .replay import Replay, oracle, replay

__all__ = [
    "Calibration",
    "DiscoReport",
    "Header",
    "Proposals",
    "Replay",
    "Trace",
    "Traces",
    "fit_disco",
    "oracle",
    "read_traces",
    "record",
    "replay",
    "train_disco",
]
