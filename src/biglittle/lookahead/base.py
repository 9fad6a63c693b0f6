"""The lookahead seam: after each drafted token, go on, stop and keep it, or stop and drop it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import PolicyError
from ..results import Round

__all__ = [
    "Decision",
    "DraftStep",
    "Lookahead",
    "check_number",
    "check_probability",
    "check_tokens",
    "keep_below",
]


class Decision(IntEnum):
    """What a lookahead says of the token that was just drafted."""

    CONTINUE = 0
    KEEP = 1
    """Stop; the token is sent to verification."""
    DROP = 2
    """Stop; the token is given up and the target predicts this position."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """What a drafter knows of one drafted token in every row."""

    index: int
    """Position in the window, from 0."""
    tokens: Tensor
    """The drafted ids, [rows] int64."""
    confidence: Tensor
    """The draft's probability of the drafted token, [rows] float32 (1 where a draft has none)."""
    top: Tensor
    """The draft's largest probability, [rows] float32."""
    logits: Tensor | None
    """The draft's processed logits, [rows, vocab]; None for drafts without a distribution."""
    before: tuple[Tensor, ...] = ()
    """`confidence` of the window's earlier tokens, in order."""
    rows: int = 1
    """Rows in the target's next pass."""
    drafting: int | None = None
    """Those among them for which the pass gets wider, since they draft: the others are padded to
    its width. None: all of them, or nothing is padded."""

    def uncertainty(self, k: int) -> tuple[Tensor, Tensor]:
        """The draft's `k` largest probabilities, largest first, [rows, k] float32, and the entropy
        of its whole distribution in nats, [rows] float32."""
        if self.logits is None:
            sure = torch.zeros(len(self.top), k)
            sure[:, 0] = self.top
            return sure, torch.zeros(len(self.top))
        return uncertainty(self.logits, k)


class Lookahead(ABC):
    """When to stop drafting. Frozen: what changes with a row lives in that row's state.

    `tokens` is the hard cap of a window. A member is a frozen dataclass in a module of this
    package; the module's name is the rule's name in policy strings, its fields are the options.
    """

    name: ClassVar[str]
    tokens: int

    def initial(self, unread: int = 0) -> Any:
        """The state that a new row starts with; `unread` tokens of its prompt are new to the
        draft."""
        return None

    def warning(self, target: str, draft: str) -> str:
        """What to say to who uses the rule with these models, by their names; "" for nothing."""
        return ""

    def budget(self, state: Any, rows: int = 1, drafting: int | None = None) -> int:
        """The most tokens to draft for a row this round, in 0 … `tokens`.

        Args:
            state: The row's.
            rows: In the target's pass; see `DraftStep.rows`.
            drafting: See `DraftStep.drafting`.
        """
        return self.tokens

    @abstractmethod
    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """A `Decision` for every row of the step, [rows] int8. Must not depend on other rows, but
        for their number (`DraftStep.rows`, `DraftStep.drafting`)."""

    def decide_window(
        self, confidence: Tensor, steps: Iterable[DraftStep], states: Sequence[Any]
    ) -> Tensor:
        """`decide` after every token of whole windows, as if drafting had gone on after each: for
        replay, where they are known. A rule that asks for no more than the confidence can answer
        for all of them at once.

        Args:
            confidence: The draft's probabilities of the windows' tokens, [rows, width] float32.
            steps: The windows' steps, `width` of them.
            states: As for `decide`.

        Returns:
            Decisions, [rows, width] int8.
        """
        return torch.stack([self.decide(step, states) for step in steps], dim=1)

    def observe(self, state: Any, seen: Round) -> Any:
        """The state after a round; one in which nothing was drafted is a round, too."""
        return state


def uncertainty(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest probabilities of logits [rows, vocab], largest first, [rows, k] float32, and
    the entropy in nats, [rows] float32."""
    logprobs = logits.float().log_softmax(-1)
    probabilities = logprobs.exp()
    top = probabilities.topk(min(k, logits.shape[-1])).values
    top = torch.nn.functional.pad(top, (0, k - top.shape[-1]))
    return top, torch.special.entr(probabilities).sum(-1)


def keep_below(values: Tensor, threshold: float, decision: Decision) -> Tensor:
    """`decision` where a value is strictly below the threshold, CONTINUE elsewhere; [rows] int8."""
    return (values < threshold).to(torch.int8) * int(decision)


def check_tokens(name: str, tokens: int) -> None:
    """Raise `PolicyError` unless the window is a whole number from 1 up."""
    if type(tokens) is not int or tokens < 1:  # a bool is an int, but no number of tokens
        raise PolicyError(f"{name}: tokens={tokens!r} must be a whole number of at least 1")


def check_number(name: str, option: str, value: float) -> None:
    """Raise `PolicyError` unless the value is a number; infinity is one, NaN is not."""
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or value != value:  # NaN differs from itself
        raise PolicyError(f"{name}: {option}={value!r} must be a number")


def check_probability(name: str, option: str, value: float) -> None:
    """Raise `PolicyError` unless the value is a number in 0 … 1."""
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not (number and 0 <= value <= 1):  # also false for NaN
        raise PolicyError(f"{name}: {option}={value!r} must be a number between 0 and 1")
