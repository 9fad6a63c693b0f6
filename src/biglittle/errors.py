"""One exception tree: every error that biglittle raises on purpose is a `BiglittleError`.

The message is one line that names the thing, the reason and the way out. The classes also derive
from the built-in exception that a caller would expect (`ValueError` for a bad value and so on), so
that code which knows nothing of this library still catches them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BiglittleError",
    "ContextError",
    "IncompatiblePairError",
    "LoadError",
    "ParameterError",
    "PolicyError",
    "RowError",
    "UnsupportedModelError",
    "nearest",
]


class BiglittleError(Exception):
    """The root of the tree: catch this to catch everything that the library refuses."""


class ParameterError(BiglittleError, ValueError):
    """A parameter, a prompt or an option that cannot be used."""


class PolicyError(ParameterError):
    """A policy string or object that is unknown or has an option out of range."""


class ContextError(ParameterError):
    """A prompt that does not fit in the context of the model."""


class LoadError(BiglittleError, OSError):
    """A model or tokenizer that cannot be found, downloaded, checked or read."""


class UnsupportedModelError(BiglittleError, TypeError):
    """A model that cannot take part: its state cannot be rolled back, or it is of another kind."""


class IncompatiblePairError(BiglittleError, ValueError):
    """Two models that cannot work together: other tokenizers, other kinds, other inputs."""


class RowError(BiglittleError, RuntimeError):
    """A request that ended on an exception of its own, e.g. of a user's logits processor.

    The cause is chained as `__cause__`. The other requests of the batch are not affected.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A "did you mean" clause for error messages: `"; did you mean 'x'?"`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
