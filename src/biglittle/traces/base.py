"""What a trace holds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["Header", "Proposals", "Trace", "Traces", "check_models", "describe"]

VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """Tokens that the draft proposes, and how sure it is of each: `n` of them."""

    tokens: npt.NDArray[np.int32]
    """[n]"""
    confidence: npt.NDArray[np.float32]
    """The draft's probability of each, [n]; 1 for drafts without a distribution."""
    top: npt.NDArray[np.float32]
    """The draft's largest probabilities, largest first, [n, k]."""
    entropy: npt.NDArray[np.float32]
    """Of the draft's distribution, in nats, [n]."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> Proposals:
        return Proposals(
            self.tokens[part], self.confidence[part], self.top[part], self.entropy[part]
        )

    @classmethod
    def join(cls, parts: Sequence[Proposals], k: int) -> Proposals:
        """One after another; `k` says how many top probabilities there are where there are none."""
        return cls(
            np.concatenate([np.empty(0, np.int32), *[part.tokens for part in parts]]),
            np.concatenate([np.empty(0, np.float32), *[part.confidence for part in parts]]),
            np.concatenate([np.empty((0, k), np.float32), *[part.top for part in parts]]),
            np.concatenate([np.empty(0, np.float32), *[part.entropy for part in parts]]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One prompt: the target's greedy output, and the draft's proposals along it.

    Positions count generated tokens from 0. The token at position 0 comes with the prompt's
    reading; a window that starts at position s proposes tokens for s, s + 1, …
    """

    prompt: tuple[int, ...]
    """The (decoder's) prompt."""
    key: str
    """Stands for the prompt, an encoder's inputs included."""
    tokens: tuple[int, ...]
    """What the target wrote."""
    limit: int
    """The most tokens it was allowed."""
    readable: int
    """How many of the tokens the draft knows, all before them included: it drafts no further."""
    context: int | None
    """Tokens that the draft can hold; None is no limit."""
    chain: Proposals
    """The draft's first choice at positions 1, 2, …, given the target's tokens before; empty where
    what a window proposes depends on where it starts."""
    branches: dict[int, Proposals]
    """After a position at which the draft's choice is not the target's: how the draft would go on
    from its own choice. Without a chain: what a window that starts at the position proposes."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the traces of a file have in common."""

    models: Mapping[str, str]
    """See `describe`."""
    chained: bool
    """Whether what the draft proposes depends on the prefix alone, not on where the window
    starts."""
    cap: int
    """The most tokens of a window that is recorded."""
    top: int
    """How many of the draft's largest probabilities are recorded."""
    settings: str = "{}"
    """Generation parameters, as JSON."""
    version: int = VERSION


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """The traces of a file."""

    header: Header
    traces: tuple[Trace, ...]

    def __len__(self) -> int:
        return len(self.traces)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.traces)

    def __getitem__(self, part: slice) -> Traces:
        return Traces(self.header, self.traces[part])

    def check(self, pair: Pair) -> None:
        """Raise `ParameterError` unless the traces are of this pair."""
        check_models(self.header.models, pair, "the trace", "record one with this pair")


def describe(pair: Pair) -> dict[str, str]:
    """A pair, for a header: the models' names, how they run, hashes of their weights and of the
    vocabulary."""
    vocabulary = pair.tokenizer.get_vocab() if pair.tokenizer is not None else None
    return {
        **{f"{name} weights": found for name, found in pair.fingerprints.items()},
        "target": pair.name,
        "draft": pair.draft_name,
        "summary": pair.summary,
        "tokenizer": digest(sorted(vocabulary.items())) if vocabulary else "",
    }


def check_models(models: Mapping[str, str], pair: Pair, what: str, remedy: str) -> None:
    """Raise `ParameterError` unless a pair is the one that was described; `what` was made of it."""
    own = describe(pair)
    if models["tokenizer"] != own["tokenizer"]:
        raise ParameterError(f"{what} is of another tokenizer than the pair's; {remedy}")
    for side in ("target", "draft"):
        theirs, ours = models.get(f"{side} weights"), own[f"{side} weights"]
        if theirs is None or not ours:  # names are all there is to compare
            theirs, ours = models[side], own[side]
        if theirs == ours:
            continue
        if models[side] != own[side]:
            known = f"another {side} ({models[side]}) than the pair's ({own[side]})"
        else:
            known = f"other weights of the {side}, {own[side]}, than these"
        raise ParameterError(f"{what} is of {known}; {remedy}")


def digest(data: Any) -> str:
    """A short hash of plain data."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def header_fields() -> set[str]:
    """The names of the header's fields."""
    return {field.name for field in dataclasses.fields(Header)}
