"""What rounds cost at any length of the text, from costs that were measured at a few."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..costs import Costs, measure_costs
from ..traces import Replay, Traces

if TYPE_CHECKING:
    from ..pair import Pair
    from ..prompts import PromptLike

__all__ = ["CONTEXTS", "Profile", "measure_profile"]

CONTEXTS = (128, 512)
WIDTHS = tuple(range(1, 17))

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs at one context length or at several, ascending."""

    costs: tuple[Costs, ...]

    def seconds(self, traces: Traces, replay: Replay) -> Floats:
        """Predicted seconds of every prompt after its first token, [prompts]; see `after`."""
        return self.after([len(trace.prompt) for trace in traces], replay)

    def after(self, prompts: Sequence[int], replay: Replay) -> Floats:
        """Predicted seconds of rounds after prompts of these lengths, [prompts].

        A round that drafts k tokens takes as many draft steps and a pass over k + 1 tokens; the
        draft's reading of the prompt counts for the first round in which it drafts.
        """
        lengths = np.array(prompts, np.int64)
        at = lengths[replay.prompt] + replay.start
        drafting = replay.predicted > 0
        rounds = (
            self._between(self._verify(1 + replay.drafted), at)
            + replay.predicted * self._between(self._each("draft", at), at)
            + drafting * (_unread(replay) - 1) * self._between(self._each("catch_up", at), at)
        )
        total = np.zeros(replay.prompts)
        np.add.at(total, replay.prompt, rounds)
        drafted = np.isin(np.arange(replay.prompts), replay.prompt[drafting])
        return total + drafted * self._reading(lengths)

    def with_costs(self, **changes: Any) -> Profile:
        """The same with other costs, at every context."""
        return Profile(tuple(dataclasses.replace(costs, **changes) for costs in self.costs))

    def flat(self) -> Profile:
        """The same where a pass over several tokens costs a single step."""
        return Profile(
            tuple(
                dataclasses.replace(costs, widths=(1,), seconds=(costs.step,))
                for costs in self.costs
            )
        )

    def _verify(self, widths: Ints) -> list[Floats]:
        """Seconds of passes of these widths, at every measured context."""
        longest = int(widths.max(initial=1))
        tables = [
            np.array([costs.verify(width) for width in range(1, longest + 1)])
            for costs in self.costs
        ]
        return [table[widths - 1] for table in tables]

    def _each(self, name: str, at: Ints) -> list[Floats]:
        return [np.full(len(at), getattr(costs, name)) for costs in self.costs]

    def _between(self, values: Sequence[Floats], at: Ints) -> Floats:
        """Linear between the measured contexts and on beyond them; below the first, its own."""
        found = values[0]
        contexts = [costs.context for costs in self.costs]
        for i in range(len(contexts) - 1):
            share = (at - contexts[i]) / (contexts[i + 1] - contexts[i])
            line = values[i] + (values[i + 1] - values[i]) * share
            found = np.where(at > contexts[i], line, found)
        return found

    def _reading(self, lengths: Ints) -> Floats:
        """Seconds of the draft's reading of prompts of these lengths: nothing for none, linear
        between the measured lengths, in proportion beyond."""
        contexts = [0, *[costs.context for costs in self.costs]]
        seconds = [0.0, *[costs.reading for costs in self.costs]]
        beyond = np.maximum(1.0, lengths / max(1, contexts[-1]))
        return np.interp(lengths, contexts, seconds) * beyond


def measure_profile(
    pair: Pair,
    *,
    contexts: Sequence[int] = CONTEXTS,
    repeats: int = 3,
    prompt: PromptLike | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Measure a pair's costs at several context lengths; see `measure_costs`.

    Where a model has less room, at the most that it has, once.
    """
    found: dict[int, Costs] = {}
    turns = (repeats + 1) * len(contexts)
    for index, context in enumerate(sorted(contexts)):
        before = (repeats + 1) * index

        def say(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, turns)

        costs = measure_costs(
            pair, context=context, widths=WIDTHS, repeats=repeats, prompt=prompt, progress=say
        )
        found.setdefault(costs.context, costs)
    return Profile(tuple(found.values()))


def _unread(replay: Replay) -> Ints:
    """Tokens that the draft has to read in a round's first step, at least 1; [rounds].

    A draft reads what it proposed but for its last token; and what the target wrote alone it reads
    when it drafts again. Before a prompt's first draft it reads everything.
    """
    predicted = replay.predicted
    after = replay.start + np.minimum(predicted - 1, replay.accepted)
    prompt = replay.prompt * (1 + int(after.max(initial=0)))  # keeps prompts apart in a maximum
    known = np.maximum.accumulate(np.where(predicted > 0, prompt + after, 0))
    before = np.concatenate([[0], known[:-1]]) - prompt
    return np.where(before > 0, replay.start - before, 1)
