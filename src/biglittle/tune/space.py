"""What is searched: every lookahead with BiLD's acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnosis.predict import THRESHOLDS
from ..policy import Policy, parse_policy

if TYPE_CHECKING:
    from optuna import Trial

__all__ = ["Space"]

ROLLBACKS = (0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""In nats. Below ln 2 a token that stays has more than half of the probability: it is the target's
own choice."""
WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
STARTS = (1, 2, 3, 5, 8)
CAP = 20

FAMILIES: Mapping[str, Mapping[str, Sequence[float]]] = {
    "fallback": {"threshold": THRESHOLDS, "tokens": WINDOWS},
    "dynamic": {"threshold": THRESHOLDS, "tokens": WINDOWS},
    "self-adjusting": {"threshold": THRESHOLDS, "tokens": WINDOWS},
    "static": {"tokens": WINDOWS},
    "heuristic": {"start": STARTS},
    "cost-aware": {},
}
"""The options of every lookahead."""
ASK_CONFIDENCE = ("fallback", "dynamic", "self-adjusting")

FIRST = 2.0
"""A rollback threshold to begin with: with which the paper's tables lose nothing."""
PAPER = ((0.6, 2.0), (0.5, 3.0), (0.4, 3.0), (0.3, 5.0), (0.2, 6.0), (0.9, 3.0))
"""Fallback and rollback thresholds of Kim et al. 2023, tables 1 and 2."""


class Space:
    """Lossy policies, as choices by number, so that a search sees which values are neighbours.

    Args:
        cost_aware: The cost-aware lookahead's string, with what was measured.
        modelled: Whether a model drafts; copies have no confidence to ask for.
    """

    def __init__(self, cost_aware: str, *, modelled: bool) -> None:
        self._cost_aware = cost_aware
        self._families = [name for name in FAMILIES if modelled or name not in ASK_CONFIDENCE]

    def suggest(self, trial: Trial) -> str:
        """The policy of a trial."""
        name = trial.suggest_categorical("lookahead", self._families)
        options = {
            option: values[trial.suggest_int(option, 0, len(values) - 1)]
            for option, values in FAMILIES[name].items()
        }
        rollback = ROLLBACKS[trial.suggest_int("rollback", 0, len(ROLLBACKS) - 1)]
        return self._policy(name, options, rollback)

    def _policy(self, name: str, options: Mapping[str, float], rollback: float) -> str:
        if name == "cost-aware":
            ahead = self._cost_aware
        else:
            if name == "heuristic":
                options = {**options, "tokens": CAP}
            ahead = f"{name}:" + ",".join(f"{key}={value:g}" for key, value in options.items())
        return str(parse_policy(f"{ahead}+bild:rollback={rollback:g}"))

    def first(self, lossless: Sequence[str]) -> Iterator[dict[str, Any]]:
        """What is tried first: lookaheads that are best without loss, each with the same rollback
        threshold, then the paper's thresholds; as a trial's parameters."""
        for text in lossless:
            found = _family(parse_policy(text))
            if found is not None:
                yield _numbers(*found, FIRST)
        if "fallback" in self._families:
            for fallback, rollback in PAPER:
                yield _numbers("fallback", {"threshold": fallback, "tokens": 10}, rollback)


def _family(policy: Policy) -> tuple[str, dict[str, float]] | None:
    """The name and options of a lookahead of the space; None for one outside of it."""
    rule = policy.lookahead
    name = str(policy).partition(":")[0]
    if rule is None or name not in FAMILIES:
        return None
    options = {option: getattr(rule, option) for option in FAMILIES[name]}
    known = all(value in FAMILIES[name][option] for option, value in options.items())
    return (name, options) if known else None


def _numbers(name: str, options: Mapping[str, float], rollback: float) -> dict[str, Any]:
    """Choices by number."""
    chosen = {option: FAMILIES[name][option].index(value) for option, value in options.items()}
    return {"lookahead": name, **chosen, "rollback": ROLLBACKS.index(rollback)}
