"""Where settings are tried: outputs in batches, and from their rounds the speed of a single row.

What a row writes, and in which rounds, does not depend on its neighbours. So many examples decode
side by side, which is quick and needs no quiet machine; what the same rounds cost a row alone
follows from passes that were timed once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bench.runner import data_hash, next_prompt
from ..bench.tasks import Example, Task
from ..diagnosis.profile import Profile as PassCosts
from ..drafters import ModelDrafter
from ..errors import BiglittleError, ParameterError
from ..params import GenerationParams
from ..policy import parse_policy
from ..traces import Replay
from .quality import Change, Judge
from .runs import Output, Runs

if TYPE_CHECKING:
    from ..decoding import Request
    from ..pair import Pair

__all__ = ["PLAIN", "ROWS", "Clock", "Lab", "OutOfTime", "Setting", "Split", "split"]

PLAIN = "none"
ROWS = 16
LEAST = 10
"""Examples of a task, at least: half of them are kept for the confirmation."""

Progress = Callable[[str, int, int], None]
"""What is being done, how many steps of it are done, and how many there are."""


class OutOfTime(Exception):
    """The time is over: what was found so far is the answer."""


class Clock:
    """The time that a run may take.

    Args:
        limit: Seconds; None is no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self._started = time.monotonic()
        self._limit = limit

    def check(self, share: float = 1.0) -> None:
        """Raise `OutOfTime` if so much of the time is over."""
        if self._limit is not None and time.monotonic() - self._started >= share * self._limit:
            raise OutOfTime


@dataclass(frozen=True, slots=True)
class Split:
    """Ids of examples that the search may look at, and of those that confirm what it found."""

    search: tuple[str, ...]
    held_out: tuple[str, ...]


def split(task: Task, seed: int, *, halves: bool) -> Split:
    """In two halves, by the seed and the data; without `halves`, all are searched and none are
    held out.

    Raises:
        ParameterError: Too few examples for two halves.
    """
    names = [example.id for example in task.examples]
    if not halves:
        return Split(tuple(names), ())
    if len(names) < LEAST:
        raise ParameterError(
            f"task {task.name!r} has {len(names)} examples, and a budget needs at least {LEAST}: "
            "half of them are kept to confirm what was found on the others; give more, or no budget"
        )
    digest = hashlib.sha256(f"{data_hash(task)}/{seed}".encode()).digest()
    order = np.random.default_rng(int.from_bytes(digest[:8])).permutation(len(names))
    shuffled = [names[at] for at in order]
    return Split(tuple(shuffled[: len(names) // 2]), tuple(shuffled[len(names) // 2 :]))


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy on some examples."""

    policy: str
    lossless: bool
    examples: int
    ms_per_token: float
    """Predicted for one text at a time, after its prompt was read."""
    speedup: float
    """Predicted, over the target alone on the same examples."""
    acceptance_rate: float
    fallback_rate: float
    rollback_rate: float
    """Both of predicted tokens, as in `Stats`."""
    changes: tuple[Change, ...]
    """One a budget."""
    outcome: str = ""
    """What became of it."""

    @property
    def inside(self) -> bool:
        """Whether it is shown to be inside every budget."""
        return self.lossless or all(change.inside for change in self.changes)

    @property
    def outside(self) -> bool:
        """Whether it is shown to be outside one."""
        return not self.lossless and any(change.outside for change in self.changes)


class Lab:
    """A pair, a task, and what was measured.

    Args:
        pair: With a draft.
        task: Of one turn an example.
        params: How answers are written; greedy, with a trace.
        runs: Where outputs are kept.
        judge: Of their quality.

    Raises:
        ParameterError, ContextError: An example that the pair cannot take, by its name.
    """

    def __init__(
        self, pair: Pair, task: Task, params: GenerationParams, runs: Runs, judge: Judge
    ) -> None:
        self.pair, self.task, self.params = pair, task, params
        self.requests = {example.id: self._request(example) for example in task.examples}
        self.modelled = isinstance(pair.engine().drafter, ModelDrafter)
        """Whether a model drafts: copies have no confidence, and cost nothing."""
        self.costs: PassCosts | None = None
        """To be measured before the first `setting`."""
        self._runs, self._judge = runs, judge
        self._known: dict[tuple[str, tuple[str, ...]], Setting] = {}

    def _request(self, example: Example) -> Request:
        try:
            prompt = next_prompt(self.pair, example)
            return self.pair.requests(prompt, policy=PLAIN, params=self.params)[0]
        except BiglittleError as error:
            raise type(error)(f"{self.task.name}, example {example.id}: {error}") from error

    def prompts(self, names: Sequence[str]) -> list[Any]:
        """What `Pair.generate` takes for examples."""
        examples = {example.id: example for example in self.task.examples}
        return [next_prompt(self.pair, examples[name]) for name in names]

    def outputs(
        self, policy: str, names: Sequence[str], check: Callable[[], None] | None = None
    ) -> dict[str, Output]:
        """What a policy writes for examples: from the file, or by running what is missing.

        `check` is called before every batch, and may raise.
        """
        missing = [name for name in names if name not in self._runs.of(policy)]
        for first in range(0, len(missing), ROWS):
            if check is not None:
                check()
            self._run(policy, missing[first : first + ROWS])
        known = self._runs.of(policy)
        return {name: known[name] for name in names}

    def _run(self, policy: str, names: Sequence[str]) -> None:
        chosen = parse_policy(policy)
        requests = [dataclasses.replace(self.requests[name], policy=chosen) for name in names]
        results = self.pair.run(requests)
        for result in results:
            if result.error is not None:
                raise result.error
        self._runs.add(policy, dict(zip(names, map(Output.of, results), strict=True)))

    def setting(
        self, policy: str, names: Sequence[str], check: Callable[[], None] | None = None
    ) -> Setting:
        """A policy on examples, beside the target alone on the same."""
        key = policy, tuple(names)
        if key not in self._known:
            plain, made = (self.outputs(one, names, check) for one in (PLAIN, policy))
            self._known[key] = self._setting(policy, made, plain)
        return self._known[key]

    def _setting(
        self, policy: str, made: Mapping[str, Output], plain: Mapping[str, Output]
    ) -> Setting:
        chosen = parse_policy(policy)
        rounds = self._rounds(policy, made)
        predicted = max(1, int(rounds.predicted.sum()))
        ms, before = self._ms(made, rounds), self._ms(plain, self._rounds(PLAIN, plain))
        return Setting(
            policy=policy,
            lossless=chosen.lossless,
            examples=len(made),
            ms_per_token=ms,
            speedup=before / ms if ms else 1.0,  # nothing after the first tokens
            acceptance_rate=rounds.acceptance_rate,
            fallback_rate=float(rounds.fallback.sum()) / predicted,
            rollback_rate=float((rounds.accepted < rounds.drafted).sum()) / predicted,
            changes=self._judge.compare(made, plain),
        )

    def _ms(self, made: Mapping[str, Output], rounds: Replay) -> float:
        assert self.costs is not None
        lengths = [len(self.requests[name].prompt.tokens) for name in made]
        return 1000 * float(self.costs.after(lengths, rounds).sum()) / max(1, rounds.new_tokens)

    def _rounds(self, policy: str, made: Mapping[str, Output]) -> Replay:
        chosen = parse_policy(policy)
        # The target's first token comes with the reading of the prompt; a draft's does not.
        first = int(chosen.lookahead is None or chosen.acceptance.first == "target")
        rows: list[tuple[int, ...]] = []
        for number, output in enumerate(made.values()):
            at = first
            for proposed, kept, dropped in output.rounds:
                rows.append((number, at, proposed, kept, int(dropped)))
                at += kept + 1
        table = np.array(rows, np.int64).reshape(-1, 5)
        prompt, start, drafted, accepted, fallback = table.T
        return Replay(
            prompt=prompt,
            start=start,
            drafted=drafted,
            accepted=accepted,
            fallback=fallback,
            prompts=len(made),
            new_tokens=sum(len(output.tokens) for output in made.values()),
            modelled=self.modelled,
        )
