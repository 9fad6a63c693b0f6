"""How much an engine takes on at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ParameterError

__all__ = ["Capacity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How much an engine takes on at a time; by default, what its models can hold."""

    rows: int | None = None
    """Rows at a time; further requests wait."""
    kv_tokens: int | None = None
    """Tokens of all rows whose keys and values the target may hold: a row reserves its prompt and
    `max_new_tokens`, and a request waits while that does not fit. Where rows do not take from one
    pool (transformers), every row counts as much as the longest one. The draft's come on top."""
    chunk: int | None = None
    """Tokens of prompts that a step reads before the round of the running rows, and as many that
    the draft reads, so that a long prompt holds up nobody. None: prompts are read whole, in steps
    of their own. What the draft reads for seeded samples and lossy policies it reads at once: who
    drafts in which round is not to depend on other rows."""
    prefix_tokens: int = 0
    """Tokens of ended rows whose state is kept, the least recently used going first. A prompt that
    begins like one of them, or like a running row, is read from there on; 0: every prompt is read.
    Kept states come on top of `kv_tokens`."""

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("kv_tokens", 1), ("chunk", 1), ("prefix_tokens", 0)):
            value = getattr(self, name)
            optional = name != "prefix_tokens" and value is None
            if not optional and (type(value) is not int or value < least):
                raise ParameterError(f"{name}={value!r} must be a whole number of at least {least}")
