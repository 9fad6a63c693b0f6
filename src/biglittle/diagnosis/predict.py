"""Predicted speed of every policy, from its exact rounds and the measured costs of passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..costs import Costs
from ..lookahead import CostAware, cost_aware
from ..policy import parse_policy
from ..traces import Replay, Traces, oracle, replay
from .profile import Profile

__all__ = ["THRESHOLDS", "Candidate", "Comparison", "Prediction", "settings", "windows_up_to"]

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
STARTS = (1, 2, 3, 5, 8)
FIRST = (0.2, 0.4, 0.6, 0.8)  # thresholds that adjust themselves afterwards
WINDOWS = (2, 3, 4, 6, 8, 12, 16, 20)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A setting of a policy over one drafter, and the rounds that follow from it."""

    family: str
    """What it is a setting of: "constant", "dynamic", "disco", …, "prompt lookup"."""
    draft: str
    """What drafts, as the traces name it."""
    policy: str
    replay: Replay
    models: bool
    """Whether a model drafts, which costs time."""

    def seconds(self, traces: Traces, profile: Profile) -> Floats:
        """Predicted seconds of every prompt, [prompts]."""
        if not self.models:
            profile = profile.with_costs(draft=0.0, catch_up=0.0, reading=0.0)
        return profile.seconds(traces, self.replay)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one policy is expected to give."""

    family: str
    draft: str
    policy: str
    speedup: float
    """Of all prompts together, after their first tokens, over the target alone."""
    of_oracle: float
    """Its speed over the oracle's with the same drafter."""
    ms_per_token: float
    acceptance_rate: float
    drafted_per_round: float
    accepted_per_round: float
    target_passes: int
    draft_passes: int
    by_prompt: tuple[float, ...]
    """Speed-up of every prompt; 1 for one that ended with its first token."""


def settings(cap: int, costs: Costs, *, modelled: bool = True) -> dict[str, list[str]]:
    """The policies that are compared, by family.

    Args:
        cap: No window is longer.
        costs: What the cost-aware rule is told.
        modelled: Whether a model drafts. Copies are all of the same confidence, so rules that ask
            for it are left out, and a draft step costs nothing.
    """
    families = {
        "constant": [f"static:tokens={k}" for k in range(1, min(cap, 12) + 1)],
        "heuristic": [f"heuristic:start={k},tokens={cap}" for k in STARTS if k <= cap],
        "cost-aware": [_cost_aware(cap, costs, modelled=modelled)],
    }
    if modelled:
        windows = windows_up_to(cap)
        thresholds = {"dynamic": THRESHOLDS, "fallback": THRESHOLDS, "self-adjusting": FIRST}
        for name, values in thresholds.items():
            families[name] = [f"{name}:threshold={t},tokens={k}" for t in values for k in windows]
    return families


def windows_up_to(cap: int) -> list[int]:
    """The windows that rules with a threshold are tried with."""
    return [window for window in WINDOWS if window <= cap]


def _cost_aware(cap: int, costs: Costs, *, modelled: bool) -> str:
    draft = costs.draft / costs.step if modelled else 0.0
    read = costs.reading / max(1, costs.context) / costs.step if modelled else 0.0
    verify = [costs.verify(width) / costs.step for width in cost_aware.WIDTHS[1:]]
    told = "/".join(f"{value:.3g}" for value in verify)
    tokens = min(cap, CostAware().tokens)
    return f"cost-aware:draft={draft:.3g},verify={told},read={read:.3g},tokens={tokens}"


def candidates(traces: Traces, families: Mapping[str, Sequence[str]]) -> Iterator[Candidate]:
    """Every setting of every family, replayed on the traces of one drafter."""
    draft = traces.header.models["draft"]
    for name, policies in families.items():
        for text in policies:
            policy = str(parse_policy(text))
            rounds = replay(traces, policy)
            yield Candidate(name, draft, policy, rounds, traces.header.chained)


class Comparison:
    """Every candidate over one drafter.

    Args:
        traces: Of that drafter.
        profile: The costs.
        families: As from `settings`.
        more: Candidates that were replayed elsewhere.
    """

    def __init__(
        self,
        traces: Traces,
        profile: Profile,
        families: Mapping[str, Sequence[str]],
        more: Sequence[Candidate] = (),
    ) -> None:
        self.traces = traces
        self.profile = profile
        self.found = [*candidates(traces, families), *more]
        self._bound = Candidate(
            "oracle",
            traces.header.models["draft"],
            "oracle",
            oracle(traces),
            traces.header.chained,
        )
        self._plain = profile.seconds(traces, replay(traces, "none"))

    def seconds(self, candidate: Candidate, profile: Profile | None = None) -> float:
        """Predicted seconds of all prompts, with other costs if they are given."""
        return float(candidate.seconds(self.traces, profile or self.profile).sum())

    def fastest(self, profile: Profile | None = None) -> float:
        """Seconds of the fastest candidate, with other costs if they are given."""
        return min(self.seconds(candidate, profile) for candidate in self.found)

    @property
    def oracle(self) -> Prediction:
        """The lookahead that drafts exactly what will be accepted: none takes fewer passes of the
        target, and none that takes as few takes fewer of the draft."""
        return self.predict(self._bound)

    def best(self) -> list[Prediction]:
        """The fastest setting of every family."""
        least: dict[str, Candidate] = {}
        for candidate in sorted(self.found, key=self.seconds):
            least.setdefault(candidate.family, candidate)
        return [self.predict(candidate) for candidate in least.values()]

    def predict(self, candidate: Candidate) -> Prediction:
        """Put a candidate's rounds and the costs together."""
        seconds = candidate.seconds(self.traces, self.profile)
        rounds = candidate.replay
        count = max(1, len(rounds.prompt))
        by_prompt = np.divide(self._plain, seconds, out=np.ones_like(seconds), where=seconds > 0)
        return Prediction(
            family=candidate.family,
            draft=candidate.draft,
            policy=candidate.policy,
            speedup=_ratio(self._plain.sum(), seconds.sum()),
            of_oracle=_ratio(self.seconds(self._bound), seconds.sum()),
            ms_per_token=1000 * float(seconds.sum()) / max(1, rounds.new_tokens - rounds.prompts),
            acceptance_rate=rounds.acceptance_rate,
            drafted_per_round=float(rounds.drafted.sum()) / count,
            accepted_per_round=float(rounds.accepted.sum()) / count,
            target_passes=rounds.target_passes,
            draft_passes=rounds.draft_passes if candidate.models else 0,
            by_prompt=tuple(by_prompt.tolist()),
        )


def _ratio(a: float, b: float) -> float:
    """A / b; 1 where there is nothing to compare."""
    return float(a / b) if b else 1.0
