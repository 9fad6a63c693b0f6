"""Cost-aware lookahead: draft on while the next token is worth more than it costs."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import PolicyError
from ..results import Round
from .base import Decision, DraftStep, Lookahead, check_number, check_tokens

__all__ = ["WIDTHS", "CostAware"]

WIDTHS = (1, 2, 4, 8, 16)
"""Target passes whose costs are given: the first is the unit, `verify` has the others."""

# What a row believes before it has seen anything: fitted to Qwen2.5-Coder 0.5B and 1.5B on code,
# chat, summaries and translations. The rest was chosen by replay on the same traces.
EDGES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Of the classes of confidence, in each of which acceptance is counted."""
RATES = (0.08, 0.2, 0.42, 0.68, 0.86, 0.92, 0.97, 0.99, 0.998)
"""Acceptance of every class."""
SHARES = (0.01, 0.12, 0.12, 0.12, 0.08, 0.07, 0.06, 0.1, 0.32)
"""How often each class occurs."""
TRUST = (36.0, 15.0)
"""What the two beliefs count for, in tokens."""
PRICE = (2.7, 3.0)
"""Steps of the target that a row starts with having spent, and tokens it got for them."""
MEMORY = 0.98
"""What a round counts for after the next one."""
REACH = 2
"""The first window's limit; it doubles with every window of that length that is accepted whole."""
LOSS = 0.8
"""Steps spent beyond the tokens got for them at which speculation has lost, whatever is expected
of it."""
WAIT = 0.6
"""Plain tokens at the start for every step that the draft's reading of the prompt will cost: a long
prompt's short answer is over before."""
PAUSE = (8, 64)
"""Plain tokens after speculation has lost: the first time, and at most."""
RARE = 12
"""Times as many where the draft has to read what was written meanwhile: then a look is dear."""


@dataclass(frozen=True, slots=True)
class State:
    """What a row has learned."""

    seen: tuple[float, ...]
    """Tokens of every class of confidence that followed accepted ones, the prior included."""
    judged: tuple[float, ...]
    """Those that the target judged."""
    accepted: tuple[float, ...]
    """Those that it accepted."""
    pause: int
    """Rounds without a draft the next time that speculation loses."""
    cost: float = PRICE[0]
    """Of the rounds with a draft, in steps of the target; earlier rounds count less."""
    written: float = PRICE[1]
    """Tokens that those rounds wrote."""
    reach: int = REACH
    """The most tokens to draft, until windows of that length were accepted whole."""
    plain: int = 0
    """Rounds still to go without a draft."""

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
        read: Cost of a token that the draft has to read first: of the prompt, and of what the
            target wrote alone.
        tokens: The most a round.

    The default costs lie between those of CPUs and GPUs, and do well on either;
    `biglittle diagnose` measures a machine's own.

    All costs are those of one row. Beside others a pass over R rows of w tokens is taken to cost
    what one over R·w tokens would, and a draft step to become dearer alike: the fuller the batch,
    the fewer tokens are worth their place in it, and finally none is. Rows that draft bear what the
    padding of those that do not costs.
    """

    name: ClassVar[str] = "cost_aware"
    draft: float = 0.3
    verify: tuple[float, ...] = (1.1, 1.3, 1.8, 2.9)
    read: float = 0.01
    tokens: int = 16

    def __post_init__(self) -> None:
        check_tokens(self.name, self.tokens)
        for option in ("draft", "read"):
            value = getattr(self, option)
            check_number(self.name, option, value)
            if not 0 <= value < math.inf:
                raise PolicyError(f"{self.name}: {option}={value!r} must not be negative")
        costs = (1.0, *self.verify)
        rising = all(a <= b < math.inf for a, b in itertools.pairwise(costs))
        if len(self.verify) != len(WIDTHS) - 1 or not rising:
            shown = "/".join(map(str, self.verify))
            raise PolicyError(
                f"{self.name}: verify={shown} must be the costs of passes over 2, 4, 8 and 16 "
                "tokens, in passes over one: four numbers from 1 up that do not fall, such as "
                "1.1/1.3/1.8/2.9"
            )

    def initial(self, unread: int = 0) -> State:
        """A row that believes what is usual, and waits with a long prompt: see `WAIT`."""
        judged, often = (tuple(trust * share for share in SHARES) for trust in TRUST)
        accepted = tuple(count * rate for count, rate in zip(judged, RATES, strict=True))
        wait = math.floor(WAIT * self.read * unread)
        return State(often, judged, accepted, self._pauses[0], plain=wait)

    @property
    def _pauses(self) -> tuple[int, int]:
        """Plain tokens after speculation has lost: the first time, and at most."""
        times = RARE if self.read else 1
        return times * PAUSE[0], times * PAUSE[1]

    def budget(self, state: Any, rows: int = 1, drafting: int | None = None) -> int:
        """Little at first; nothing while speculation pauses, nor where so many rows leave no gain
        to be expected of it."""
        own: State = state
        if own.plain or (rows > 1 and not self._gains(own, rows, drafting or rows)):
            return 0
        return min(own.reach, self.tokens)

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Drop the token, keep it, or go on: what pays best."""
        window = torch.stack([*step.before, step.confidence], dim=1)
        return self._decide(window, states, step.rows, step.drafting or step.rows)[:, -1]

    def decide_window(
        self, confidence: Tensor, steps: Iterable[DraftStep], states: Sequence[Any]
    ) -> Tensor:
        """See `Lookahead.decide_window`: what a window's later tokens are does not matter to the
        earlier ones."""
        return self._decide(confidence, states)

    def _decide(
        self, confidence: Tensor, states: Sequence[Any], rows: int = 1, drafting: int = 1
    ) -> Tensor:
        """Decisions on windows' tokens, [windows, width] int8."""
        device, width = confidence.device, confidence.shape[1]  # whence nothing is fetched
        price, often, rates = _known([s or self.initial() for s in states], device)
        verify = _beside(self.verify, rows, drafting)
        dearer = _marginal(verify, max(self.tokens, width))[: width + 1]
        costs = torch.tensor(dearer, device=device)
        kinds = torch.bucketize(confidence, torch.tensor(EDGES, device=device), right=True)
        worth = price * rates.gather(1, kinds).cumprod(dim=1)  # nothing unless all are accepted
        stop = _gain(often, rates, worth, costs[1:]) <= self.draft * rows / drafting
        decisions = stop.to(torch.int8) * int(Decision.KEEP)
        return decisions.masked_fill(worth < costs[:-1], int(Decision.DROP))

    def _cost(self, seen: Round) -> float:
        """A round, in steps of the target: of all rows that ran together, if there were several."""
        verify = _beside(self.verify, seen.rows, seen.rows)
        return self.draft * seen.predicted + _pass(verify, 1 + seen.drafted)

    def _gains(self, state: State, rows: int = 1, drafting: int = 1) -> bool:
        """Whether a window's first token is expected to be worth its cost: see `_gain`."""
        dearer, gain = _marginal(_beside(self.verify, rows, drafting), self.tokens)[0], 0.0
        for often, judged, right in zip(state.seen, state.judged, state.accepted, strict=True):
            if right > dearer * judged:
                gain += often * (right / judged - dearer)
        return gain > self.draft * rows / drafting * sum(state.seen)

    def observe(self, state: Any, seen: Round) -> State:
        """Count what was accepted, and see whether speculation pays."""
        own: State = state
        if not seen.predicted:
            return replace(own, plain=max(0, own.plain - 1))
        often, judged, accepted = list(own.seen), list(own.judged), list(own.accepted)
        for at, sure in enumerate(seen.confidence[: seen.accepted + 1]):
            kind = bisect_right(EDGES, sure)
            often[kind] += 1
            judged[kind] += at < seen.drafted  # not a token that was given up
            accepted[kind] += at < seen.accepted
        found = replace(
            own,
            seen=tuple(often),
            judged=tuple(judged),
            accepted=tuple(accepted),
            cost=MEMORY * own.cost + self._cost(seen),
            written=MEMORY * own.written + seen.accepted + 1,
        )
        if seen.accepted == seen.drafted >= own.reach:
            found = replace(found, reach=own.reach * 2)
        lost = found.cost - found.written
        first, most = self._pauses
        if lost <= LOSS and self._gains(found):
            return replace(found, pause=first) if lost < -LOSS else found
        return replace(
            found,
            cost=min(found.cost, found.written + LOSS),
            reach=1,
            plain=own.pause,
            pause=min(2 * own.pause, most),
        )


def _known(states: Sequence[State], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Prices [rows, 1], and of every class of confidence how often it occurs and its acceptance,
    [rows, classes]; float32."""
    numbers = [(state.price, *state.seen, *state.judged, *state.accepted) for state in states]
    table = torch.from_numpy(np.array(numbers, np.float32)).to(device)
    price, often, judged, accepted = table.split([1, *[len(RATES)] * 3], dim=1)
    return price, often / often.sum(dim=1, keepdim=True), accepted / judged


def _gain(often: Tensor, rates: Tensor, worth: Tensor, dearer: Tensor) -> Tensor:
    """What one more token is expected to be worth beyond its verification, [rows, width].

    Args:
        often: How often each class of confidence occurs, [rows, classes].
        rates: Acceptance of each, [rows, classes].
        worth: What the next token is worth if it is certain to be accepted, [rows, width].
        dearer: What it adds to a pass, [width].
    """
    gains = rates[:, None] * worth[..., None] - dearer[:, None]  # [rows, width, classes]
    gains = gains.clamp(min=0)  # it is dropped where it is not worth it
    return (often[:, None] * gains).sum(dim=-1)


@lru_cache(maxsize=1024)
def _pass(verify: tuple[float, ...], width: int) -> float:
    """What a target pass costs, in passes over one token."""
    costs = (1.0, *verify)
    at = min(bisect_left(WIDTHS, width), len(WIDTHS) - 1) or 1
    (left, right), (low, high) = WIDTHS[at - 1 : at + 1], costs[at - 1 : at + 1]
    return low + (high - low) * (width - left) / (right - left)


@lru_cache(maxsize=4096)
def _beside(verify: tuple[float, ...], rows: int, drafting: int) -> tuple[float, ...]:
    """What passes over 2, 4, 8 and 16 tokens of each of so many rows cost, in passes over one token
    of each, and what they cost more shared among those that draft. A pass is as dear as one of a
    single row with as many tokens in all."""
    if rows == 1:
        return verify
    step = _pass(verify, rows)
    more = [_pass(verify, rows * width) / step - 1 for width in WIDTHS[1:]]
    return tuple(1 + rows / drafting * each for each in more)


@lru_cache(maxsize=1024)
def _marginal(verify: tuple[float, ...], tokens: int) -> list[float]:
    """What each further token adds to a pass, `tokens` + 1 of them.

    Where passes get dearer in leaps, what a leap costs is spread over the tokens that share it:
    the additions are the slopes of the largest convex function below the costs.
    """
    costs = (1.0, *verify)
    slopes: list[float] = []
    last = 0
    while last < len(WIDTHS) - 1:
        least, last = min(
            ((costs[i] - costs[last]) / (WIDTHS[i] - WIDTHS[last]), i)
            for i in range(last + 1, len(WIDTHS))
        )
        slopes += [least] * (WIDTHS[last] - 1 - len(slopes))
    slopes += [least] * (tokens + 1 - len(slopes))  # so beyond what was measured
    return slopes
