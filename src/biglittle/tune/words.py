"""What was found, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..bench.words import interval
from .lab import PLAIN, Setting
from .quality import Change, beyond
from .search import OPEN

if TYPE_CHECKING:
    from .confirm import Timed
    from .profile import Rejected

__all__ = ["changes", "notes", "verdict"]


def verdict(answer: Setting, base: Setting, found: Setting | None, timed: Timed | None) -> str:
    """The answer in a sentence or two."""
    if answer.policy == PLAIN:
        return (
            "No policy is expected to be faster than the target alone here: do not speculate, or "
            "find a better draft."
        )
    speed = f"{answer.speedup:.2f} times the speed of the target alone"
    if timed is not None:
        bounds = f", 95 % interval {interval(timed.speedup)}" if timed.examples > 1 else ""
        examples = f"{timed.examples} example{'s' * (timed.examples > 1)}"
        speed += f" predicted, {timed.speedup.value:.2f} timed ({examples}{bounds})"
    if answer.lossless:
        return f"{answer.policy} is lossless: {speed}."
    text = f"{answer.policy} is LOSSY: {speed}; {base.policy}, the best that is lossless, "
    text += f"{base.speedup:.2f}. Quality: {changes(answer.changes)} where it was searched"
    if found is not None:
        text += f", {changes(found.changes)} on {found.examples} other examples"
    return f"{text}."


def changes(found: Sequence[Change]) -> str:
    """`bleu 31.2 for 31.5 (−0.30, at worst −0.48)`."""
    return ", ".join(
        f"{change.budget.partition(':')[0]} {change.value:.2f} for {change.plain:.2f} "
        f"({_signed(change.change)}{change.unit}, at worst {_signed(change.low)}{change.unit})"
        for change in found
    )


def _signed(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def notes(
    answer: Setting,
    base: Setting,
    found: Setting | None,
    settings: Sequence[Setting],
    rejected: Sequence[Rejected],
    *,
    out_of_time: bool,
) -> Iterator[str]:
    """What a user should know of how far the answer can be relied on."""
    for one in rejected:
        yield f"{one.policy} was given up: {one.reason}"
    if answer.lossless and settings:
        yield from _why_lossless(base, settings)
    for change in found.changes if found is not None and not answer.lossless else ():
        if not change.changed:
            yield (
                f"{change.budget.partition(':')[0]} is the same in each of {change.examples} "
                f"examples, and up to {100 * beyond(change.examples):.0f} % of others may still "
                "differ; more examples would tell"
            )
    if out_of_time:
        yield "the time was over before all was tried: the same command goes on"


def _why_lossless(base: Setting, settings: Sequence[Setting]) -> Iterator[str]:
    """Why no lossy setting is the answer."""
    faster = [one for one in settings if one.ms_per_token < base.ms_per_token]
    hopeful = [
        one
        for one in faster
        if one.outcome == OPEN and all(c.change >= c.allowed for c in one.changes)
    ]
    if hopeful:
        best = max(hopeful, key=lambda one: min(c.low - c.allowed for c in one.changes))
        yield (
            f"{best.policy} is faster than {base.policy} and may be inside the budget, but "
            f"{best.examples} examples cannot show it: {changes(best.changes)}; more could tell"
        )
    elif faster:
        yield f"of {len(faster)} lossy settings that are faster, none is inside the budget"
    else:
        yield f"no lossy setting is faster than {base.policy}"
