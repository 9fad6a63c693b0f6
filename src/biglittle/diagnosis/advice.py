"""What to do, and why, in words."""

from __future__ import annotations

from dataclasses import dataclass

from ..costs import Costs
from .agreement import Agreement, measure_agreement
from .predict import Comparison, Prediction

__all__ = ["WORTH", "Advice", "advise"]

WORTH = 1.05
"""A predicted speed-up below this is not worth a second model: the predictions err by as much."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The conclusion."""

    speculate: bool
    policy: str
    """The policy string to use; "none" where speculation does not pay."""
    draft: str
    """What should draft; "none" for nothing."""
    speedup: float
    """Predicted; 1 without speculation."""
    verdict: str
    """In a sentence."""
    reason: str
    """In a sentence: what it comes from."""
    limit: str
    """In a clause: what holds the speed back most."""


def advise(best: Prediction, comparison: Comparison, device: str) -> Advice:
    """Draw the conclusion.

    Args:
        best: The fastest policy that was found.
        comparison: Of the drafter that it has.
        device: For the words: "CPU" or "GPU".
    """
    costs, modelled = comparison.profile.costs[0], comparison.traces.header.chained
    words = _Words(costs, measure_agreement(comparison.traces), best, device, modelled)
    speculate = best.speedup >= WORTH
    if speculate:
        verdict = f"Speculation pays here: about {best.speedup:.2f} times the speed."
    elif best.speedup > 1:
        verdict = (
            f"Do not speculate here: the best policy would give {best.speedup:.2f} times the "
            "speed, which is within the error of the prediction."
        )
    else:
        verdict = "Do not speculate here: no policy would be faster than the target alone."
    return Advice(
        speculate=speculate,
        policy=best.policy if speculate else "none",
        draft=best.draft if speculate else "none",
        speedup=best.speedup if speculate else 1.0,
        verdict=verdict,
        reason=words.reason,
        limit=_limit(words, comparison),
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """The numbers that the speed follows from, as clauses."""

    costs: Costs
    measured: Agreement
    best: Prediction
    device: str
    modelled: bool
    """Whether a model drafts."""

    @property
    def agreement(self) -> str:
        share = f"{100 * self.measured.rate:.0f} % of tokens"
        if self.modelled:
            return f"the draft agrees with the target on {share}"
        return f"copying from the text so far gets {share} right"

    @property
    def draft(self) -> str:
        return f"a draft step costs {self.costs.draft / self.costs.step:.2f} of a target step"

    @property
    def verification(self) -> str:
        width = max(2, 1 + round(self.best.drafted_per_round))
        steps = self.costs.verify(width) / self.costs.step
        return f"verifying {width} tokens costs {steps:.1f} steps on this {self.device}"

    @property
    def reason(self) -> str:
        if not self.modelled:
            return f"{self.agreement}, and {self.verification}"
        return f"{self.agreement}, {self.draft}, and {self.verification}"


def _limit(words: _Words, comparison: Comparison) -> str:
    """Which of the numbers, if it were perfect, would make the best policy fastest."""
    profile, costs = comparison.profile, words.costs
    traces = comparison.traces
    tokens = sum(max(0, len(trace.tokens) - 1) for trace in traces)
    draft = costs.draft if words.modelled else 0.0
    per_token = [
        (k * draft + costs.verify(k + 1)) / (k + 1) for k in range(1, traces.header.cap + 1)
    ]
    perfect = {
        words.agreement: tokens * min(per_token),
        words.verification: comparison.fastest(profile.flat()),
    }
    if words.modelled:
        free = profile.with_costs(draft=0.0, catch_up=0.0, reading=0.0)
        perfect[words.draft] = comparison.fastest(free)
    return min(perfect, key=perfect.__getitem__)
