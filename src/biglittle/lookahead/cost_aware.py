"""Cost-aware lookahead: draft on while the next token is worth more than it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import PolicyError
from ..results import Round
from .base import Decision, DraftStep, Lookahead, check_number, check_tokens

__all__ = ["WIDTHS", "CostAware"]

Floats = npt.NDArray[np.float64]

WIDTHS = (1, 2, 4, 8, 16)
"""Target passes whose costs `verify` gives: the first is the unit."""
TYPICAL = (0.25, (1.1, 1.2, 1.5, 2.2))
EDGES = np.array([0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
"""Of the classes of confidence, in each of which acceptance is counted."""
CENTRES = np.array([0.05, 0.2, 0.4, 0.6, 0.75, 0.85, 0.925, 0.97, 0.995])
SPREAD = np.array([0.01, 0.07, 0.1, 0.1, 0.07, 0.08, 0.07, 0.1, 0.4])
"""How often each class occurs, before anything was seen."""
TRUST = 3.0
"""What the draft's own confidence counts for, in judged tokens a class."""
START = (6.0, 0.8)
"""Tokens that a row starts with having written, and steps that each took."""
MEMORY = 0.9
"""What a round counts for after the next one."""
PAUSE = (8, 64)
"""Plain tokens after speculation has lost: the first time, and at most."""


@dataclass(frozen=True, slots=True)
class State:
    """What a row has learned."""

    judged: tuple[float, ...]
    """Tokens of every class that the target judged, the prior included."""
    accepted: tuple[float, ...]
    """Those that it accepted."""
    cost: float = START[0] * START[1]
    """Of the rounds with a draft, in steps of the target; earlier rounds count less."""
    written: float = START[0]
    """Tokens that those rounds wrote."""
    plain: int = 0
    """Rounds still to go without a draft."""
    pause: int = PAUSE[0]
    """Rounds without a draft the next time that speculation loses."""

    @property
    def price(self) -> float:
        """What a token costs at present, in steps: never more than plain decoding's."""
        return min(1.0, self.cost / self.written)


@dataclass(frozen=True, slots=True)
class CostAware(Lookahead):
    """Draft while the expected gain of one more token exceeds its cost, by measured costs.

    A drafted token is worth what it saves: the price of a token at present (in steps of the
    target, 1 without speculation) times the probability that it and all before it are accepted.
    Those probabilities start from the draft's own confidence and are corrected by what the target
    did with the row's tokens of like confidence. A token that is not worth its verification is
    dropped. Where speculation loses, the row decodes plainly and looks again from time to time.

    Attributes:
        draft: Cost of a draft step, in steps of the target.
        verify: Costs of target passes over 2, 4, 8 and 16 tokens, in passes over one.
        tokens: The most a round.

    Without `draft` and `verify` a pair measures them on this machine at first use.
    """

    name: ClassVar[str] = "cost_aware"
    draft: float | None = None
    verify: tuple[float, ...] | None = None
    tokens: int = 16

    def __post_init__(self) -> None:
        check_tokens(self.name, self.tokens)
        if self.draft is not None:
            check_number(self.name, "draft", self.draft)
            if self.draft < 0:
                raise PolicyError(f"{self.name}: draft={self.draft!r} must not be negative")
        if self.verify is None:
            return
        rising = all(a <= b for a, b in zip((1.0, *self.verify), self.verify, strict=False))
        if len(self.verify) != len(WIDTHS) - 1 or not rising:
            shown = "/".join(map(str, self.verify))
            raise PolicyError(
                f"{self.name}: verify={shown} must be the costs of passes over 2, 4, 8 and 16 "
                "tokens, in passes over one: four numbers from 1 up that do not fall, such as "
                "1.1/1.2/1.5/2.2"
            )

    def initial(self) -> State:
        """A row that trusts the draft's confidence."""
        judged = TRUST * SPREAD * len(SPREAD)
        return State(tuple(judged), tuple(judged * CENTRES))

    def budget(self, state: Any) -> int:
        """Nothing while speculation pauses."""
        return 0 if state is not None and state.plain else self.tokens

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Drop the token, keep it, or go on: what pays best."""
        known = [self.initial() if state is None else state for state in states]
        judged = np.array([state.judged for state in known])
        rates = np.array([state.accepted for state in known]) / judged  # [rows, classes]
        price = np.array([state.price for state in known])
        alive = np.ones(len(known))  # probability that all tokens so far are accepted
        for sure in (*step.before, step.confidence):
            at = np.searchsorted(EDGES, sure.cpu().numpy(), side="right")
            alive *= rates[np.arange(len(known)), at]
        cost, dearer = _marginal(self.costs, max(self.tokens, step.index + 1))
        keep = alive * price >= dearer[step.index]
        more = self._value(judged, rates, alive * price, dearer[step.index + 1]) > cost
        decisions = np.where(keep, np.where(more, Decision.CONTINUE, Decision.KEEP), Decision.DROP)
        return torch.from_numpy(decisions.astype(np.int8)).to(step.tokens.device)

    @staticmethod
    def _value(judged: Floats, rates: Floats, worth: Floats, dearer: float) -> Floats:
        """What one more token is expected to be worth, beyond its verification, [rows]."""
        often = judged / judged.sum(axis=1, keepdims=True)
        gain: Floats = (often * np.maximum(rates * worth[:, None] - dearer, 0)).sum(axis=1)
        return gain

    @property
    def costs(self) -> tuple[float, tuple[float, ...]]:
        """`draft` and `verify`; typical ones until they are measured."""
        draft, verify = TYPICAL
        return (
            draft if self.draft is None else float(self.draft),
            verify if self.verify is None else self.verify,
        )

    def observe(self, state: Any, seen: Round) -> State:
        """Count what was accepted, and see whether speculation pays."""
        if not seen.predicted:
            own: State = state
            return replace(own, plain=max(0, own.plain - 1))
        judged, accepted = list(state.judged), list(state.accepted)
        for at in range(min(seen.accepted + 1, seen.drafted)):
            kind = int(np.searchsorted(EDGES, seen.confidence[at], side="right"))
            judged[kind] += 1
            accepted[kind] += at < seen.accepted
        draft, verify = self.costs
        passed = float(np.interp(1 + seen.drafted, WIDTHS, (1.0, *verify)))
        found = State(
            tuple(judged),
            tuple(accepted),
            MEMORY * state.cost + draft * seen.predicted + passed,
            MEMORY * state.written + seen.accepted + 1,
        )
        if found.cost <= found.written:
            return found
        return replace(found, plain=state.pause, pause=min(2 * state.pause, PAUSE[1]))


@lru_cache(maxsize=64)
def _marginal(costs: tuple[float, tuple[float, ...]], tokens: int) -> tuple[float, Floats]:
    """A draft step, and what each further token adds to a pass, [tokens + 1].

    Where a pass gets dearer in leaps, what a leap costs is spread over the tokens that share it:
    the additions are the slopes of the largest convex function below the costs.
    """
    draft, verify = costs
    x, y = np.array(WIDTHS, float), np.array([1.0, *verify])
    hull = [0]
    while hull[-1] < len(x) - 1:
        last = hull[-1]
        slopes = (y[last + 1 :] - y[last]) / (x[last + 1 :] - x[last])
        hull.append(last + 1 + int(np.flatnonzero(slopes == slopes.min())[-1]))
    widths = np.arange(1, tokens + 3)
    bent = np.interp(widths, x[hull], y[hull])
    beyond = widths > x[-1]
    steepest = (y[hull[-1]] - y[hull[-2]]) / (x[hull[-1]] - x[hull[-2]])
    bent[beyond] = y[-1] + (widths[beyond] - x[-1]) * steepest
    return draft, np.diff(bent)
