"""Every example through every system, side by side.

The systems take turns on each example, in an order that turns from example to example, so that a
slow moment of the machine meets all alike. Each is warmed up first, on a prompt of its own, and no
system sees a prompt twice, so that nothing it kept can help. Every system goes on from its own
answers in a conversation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from ..audit import compare
from ..decoding import Request
from ..errors import BiglittleError, ContextError, ParameterError
from ..pair import Pair
from ..params import GenerationParams
from .records import Difference, Log, Record
from .systems import PLAIN, Answer, System
from .tasks import Example, Task

__all__ = ["Bench", "Step", "data_hash", "next_prompt"]

WARM_UP = "Name three rivers, and say of each in which sea it ends."
WARM_UP_TOKENS = 24


def data_hash(task: Task) -> str:
    """A hash of a task's examples and of what ends its answers."""
    return _digest(dataclasses.asdict(task))


def next_prompt(pair: Pair, example: Example, answers: Sequence[str] = ()) -> Any:
    """What `Pair.generate` takes for the turn of an example after those that have answers.

    Raises:
        ParameterError: An example of several turns, and a pair without a chat template.
    """
    if example.chat and getattr(pair.tokenizer, "chat_template", None):
        turns = example.turns[: len(answers) + 1]
        asked = [{"role": "user", "content": turn} for turn in turns]
        said = [{"role": "assistant", "content": answer} for answer in answers]
        messages = [message for both in zip(asked, said, strict=False) for message in both]
        return [*messages, asked[-1]]
    if len(example.turns) > 1:
        raise ParameterError(
            f"it has {len(example.turns)} turns, and {pair.name} has no chat template; "
            "use a chat model, or examples of one turn"
        )
    return example.turns[0]


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Step:
    """One example through one system: what a run is made of."""

    task: Task
    example: Example
    system: System

    @property
    def key(self) -> tuple[str, str, str]:
        """As `Record.key`."""
        return self.task.name, self.example.id, self.system.name


class Bench:
    """A run.

    Args:
        pair: The pair; its tokenizer reads the prompts.
        systems: What runs; the first is plain decoding.
        tasks: What is asked.
        params: How answers are written. A seed is changed from example to example.
        log: Where results are kept; what it holds already is not measured again.

    Raises:
        ParameterError, ContextError: An example that the pair cannot take, by name.
    """

    def __init__(
        self,
        pair: Pair,
        systems: Sequence[System],
        tasks: Sequence[Task],
        params: GenerationParams,
        log: Log,
    ) -> None:
        self.pair, self.systems, self.tasks, self.params = pair, systems, tasks, params
        self.log = log
        self.repeated = 0
        """Examples left out because an earlier one asks the same."""
        self.steps = list(self._plan())
        for task in tasks:
            for example in task.examples:
                self._check(task, example)

    def _check(self, task: Task, example: Example) -> None:
        """Refuse an example that will not fit, the answers of its earlier turns included."""
        turns = len(example.turns)
        request, _ = self._request(task, example)
        if turns == 1:
            return
        whole, _ = self._request(task, example, [""] * (turns - 1))
        longest = len(whole.prompt.tokens) + (turns - 1) * request.max_new_tokens
        context = self.pair.runner().limits.context
        if context is not None and longest >= context:
            raise ContextError(
                f"{task.name}, example {example.id}: its {turns} turns and their answers may take "
                f"{longest} tokens, of which {self.pair.name} has {context}; allow shorter "
                "answers, or leave the example out"
            )

    def _plan(self) -> Iterator[Step]:
        """All steps, in the order in which they run: tasks take turns, so that a run that is
        stopped early tells of each."""
        seen: set[tuple[bool, tuple[str, ...]]] = set()
        turn = 0
        columns = ([(task, example) for example in task.examples] for task in self.tasks)
        for task, example in filter(None, chain.from_iterable(zip_longest(*columns))):
            asks = example.chat, example.turns
            if asks in seen:
                self.repeated += 1
                continue
            seen.add(asks)
            first = turn % len(self.systems)
            for system in [*self.systems[first:], *self.systems[:first]]:
                yield Step(task, example, system)
            turn += 1

    @property
    def left(self) -> list[Step]:
        """Steps that the log does not hold yet."""
        return [step for step in self.steps if step.key not in self.log.records]

    def run(self) -> Iterator[Record]:
        """Warm up, and take the steps that are left; results are kept as they come."""
        left = self.left
        self._warm_up({step.system.name: step.system for step in left}.values())
        for step in left:
            record = self._take(step)
            self.log.add(record)
            yield record

    def _warm_up(self, systems: Iterable[System]) -> None:
        params = dataclasses.replace(self.params, max_new_tokens=WARM_UP_TOKENS)
        for system in systems:
            system.answer(self.pair.requests(WARM_UP, policy=PLAIN, params=params)[0], params)

    def _take(self, step: Step) -> Record:
        answers: list[Answer] = []
        source = 0
        for _ in step.example.turns:
            said = [answer.text for answer in answers]
            request, params = self._request(step.task, step.example, said)
            answers.append(step.system.answer(request, params))
            source += request.prompt.source_length
        asked = _digest([step.example.chat, step.example.turns, step.task.stop])
        return Record(*step.key, tuple(answers), asked, source)

    def _request(
        self, task: Task, example: Example, answers: Sequence[str] = ()
    ) -> tuple[Request, GenerationParams]:
        """The next turn's request, after the turns that have answers."""
        params = dataclasses.replace(self.params, stop=task.stop, seed=self._seed(task, example))
        try:
            prompt = next_prompt(self.pair, example, answers)
            return self.pair.requests(prompt, policy=PLAIN, params=params)[0], params
        except BiglittleError as error:
            raise type(error)(f"{task.name}, example {example.id}: {error}") from error

    def _seed(self, task: Task, example: Example) -> int | None:
        """Another seed for every example, the same for all systems."""
        if self.params.seed is None:
            return None
        digest = hashlib.sha256(f"{task.name}/{example.id}".encode()).digest()
        return self.params.seed + int.from_bytes(digest[:4])

    # Exactness.

    @property
    def unexplained(self) -> list[Step]:
        """Steps whose greedy output should be plain decoding's, and is not, and was not looked at
        yet."""
        if self.params.temperature:
            return []
        records, known = self.log.records, self.log.differences
        return [
            step
            for step in self.steps
            if step.system.lossless and step.key in records and step.key not in known
            if (plain := records.get((*step.key[:2], PLAIN))) is not None
            if records[step.key].tokens != plain.tokens
        ]

    def explain(self, step: Step) -> Difference:
        """Look at the first difference of an unexplained step, and keep what was found."""
        plain = self.log.records[*step.key[:2], PLAIN]
        other = self.log.records[step.key]
        turn = next(
            turn
            for turn, (ours, theirs) in enumerate(zip(plain.tokens, other.tokens, strict=True))
            if ours != theirs
        )
        said = [answer.text for answer in plain.answers[:turn]]
        request, _ = self._request(step.task, step.example, said)
        tokens = plain.tokens[turn], other.tokens[turn]
        found = compare(self.pair, request, *tokens).difference
        assert found is not None, "their tokens differ"
        # One output may end where the other goes on.
        shown = self.pair.tokenizer.decode([found.plain])
        ends = (shown, "(end)") if len(tokens[0]) > len(tokens[1]) else ("(end)", shown)
        difference = Difference(
            *step.key,
            turn,
            found.position,
            found.texts or ends,
            found.narrow,
            found.near_tie,
        )
        self.log.add_difference(difference)
        return difference
