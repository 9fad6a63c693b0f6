"""Calibration data: what the target answers, kept as it comes (Kim et al. 2023, §3.5)."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.runner import next_prompt
from ..bench.tasks import Example, Task
from ..errors import BiglittleError, ContextError, ParameterError
from ..files import alone
from ..params import make_params
from ..policy import Policy
from ..traces.base import describe
from .data import Sample
from .files import Records, writing
from .rows import ROWS, run_fastest

if TYPE_CHECKING:
    from ..decoding import Request, Row
    from ..pair import Pair

__all__ = ["Answer", "Calibration", "opened"]

VERSION = 1

Progress = Callable[[int, int, int], None]
"""Answers that are there, answers in all, and tokens written by this run."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The target's answer to one turn."""

    task: str
    example: str
    turn: int
    sample: Sample
    text: str


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is asked next of a conversation."""

    task: Task
    example: Example
    answers: tuple[str, ...] = ()
    """The target's, to the turns before."""

    @property
    def conversation(self) -> str:
        """The key of the conversation: what is asked, not where it is from."""
        asked = [self.example.chat, list(self.example.turns), list(self.task.stop)]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    @property
    def key(self) -> str:
        return f"{self.conversation}:{len(self.answers)}"

    @property
    def keys(self) -> list[str]:
        """Of all turns of the conversation."""
        return [f"{self.conversation}:{turn}" for turn in range(len(self.example.turns))]

    def answered(self, text: str) -> _Turn | None:
        """The turn after this one; None if it is the last."""
        if len(self.answers) + 1 == len(self.example.turns):
            return None
        return _Turn(self.task, self.example, (*self.answers, text))


class Calibration:
    """The target's greedy answers to the prompts of tasks, in a file.

    A conversation goes on from the target's own answers, and every turn makes a sample. Prompts
    that occur twice are asked once. Texts that do not fit in the target's context are left out.

    Args:
        pair: The target; with a draft, speculation is on where that is faster. Its policy must be
            lossless.
        tasks: What is asked.
        max_new_tokens: Most tokens of an answer.
        rows: Answers that are written beside each other.

    Raises:
        ParameterError: A prompt that the pair cannot take, a lossy policy, or nothing that fits.
    """

    def __init__(
        self,
        pair: Pair,
        tasks: Sequence[Task],
        *,
        max_new_tokens: int = 256,
        rows: int = ROWS,
    ) -> None:
        if not pair.policy.lossless:
            raise ParameterError(
                f"policy {str(pair.policy)!r} is lossy, and what the target itself would answer is "
                "wanted; choose a lossless one"
            )
        self._pair, self._rows = pair, rows
        self._max_new_tokens = max_new_tokens
        self.too_long = 0
        """Conversations that do not fit, or not to their end."""
        self._first: dict[str, _Turn] = {}
        for task in tasks:
            for example in task.examples:
                self._plan(_Turn(task, example))
        if not self._first:
            raise ParameterError("no prompt fits in the target's context; give shorter ones")

    @property
    def conversations(self) -> int:
        """How many there are."""
        return len(self._first)

    def _plan(self, turn: _Turn) -> None:
        if turn.conversation in self._first:
            return
        try:
            self._request(turn, self._pair.policy)
        except ContextError:
            self.too_long += 1
            return
        self._first[turn.conversation] = turn

    def _request(self, turn: _Turn, policy: Policy) -> Request:
        params = make_params(
            None,
            {"temperature": 0.0, "max_new_tokens": self._max_new_tokens, "stop": turn.task.stop},
        )
        try:
            prompt = next_prompt(self._pair, turn.example, turn.answers)
            return self._pair.requests(prompt, policy=policy, params=params)[0]
        except BiglittleError as error:
            where = f"{turn.task.name}, example {turn.example.id}"
            raise type(error)(f"{where}: {error}") from error

    def run(self, path: str | Path, progress: Progress | None = None) -> list[Answer]:
        """Ask what is not answered yet; all answers, in the order of the tasks.

        Args:
            path: Every answer is in this file when it is there, so that a killed run goes on. New,
                or of the same target, tokenizer and settings.
            progress: Told how far it is.

        Raises:
            ParameterError: A file of something else, or one that cannot be written.
        """
        with opened(self._pair, path, self._max_new_tokens) as file:
            return self._run(file, progress)

    def _run(self, file: Records, progress: Progress | None) -> list[Answer]:
        all_turns = {key for first in self._first.values() for key in first.keys}
        done = len(all_turns & file.done.keys())
        waiting = deque(
            turn for first in self._first.values() if (turn := _unanswered(first, file)) is not None
        )
        tokens = 0
        if progress is not None:
            progress(done, len(all_turns), tokens)
        for turn, row in run_fastest(self._pair, waiting, self._fitting, self._rows):
            file.add(turn.key, _record(row))
            tokens, done = tokens + len(row.new_tokens), done + 1
            if (following := turn.answered(row.result().text)) is not None:
                waiting.appendleft(following)
            if progress is not None:
                progress(done, len(all_turns), tokens)
        return [answer for first in self._first.values() for answer in _answers(first, file)]

    def _fitting(self, turn: _Turn, policy: Policy) -> Request | None:
        """The request of a turn; None where the conversation has grown too long."""
        try:
            return self._request(turn, policy)
        except ContextError:
            self.too_long += 1
            return None


@contextmanager
def opened(pair: Pair, path: str | Path, max_new_tokens: int) -> Iterator[Records]:
    """The file of a target's answers, for this process alone.

    Raises:
        ParameterError: See `Calibration.run`.
    """
    path = Path(path)
    models = describe(pair)
    own = {name: models[name] for name in ("target", "target weights", "tokenizer")}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path):
        yield Records(path, "answers", VERSION, {**own, "max_new_tokens": max_new_tokens})


def _unanswered(first: _Turn, file: Records) -> _Turn | None:
    """The first turn of a conversation that has no answer yet."""
    turn: _Turn | None = first
    while turn is not None and turn.key in file.done:
        turn = turn.answered(file.done[turn.key]["text"])
    return turn


def _answers(first: _Turn, file: Records) -> Iterator[Answer]:
    """The answers of a conversation, as far as it goes."""
    turn: _Turn | None = first
    while turn is not None and (record := file.done.get(turn.key)) is not None:
        source = record["source"]
        sample = Sample(
            tuple(record["prompt"]),
            tuple(record["output"]),
            None if source is None else tuple(source),
        )
        yield Answer(turn.task.name, turn.example.id, len(turn.answers), sample, record["text"])
        turn = turn.answered(record["text"])


def _record(row: Row) -> dict[str, Any]:
    prompt = row.request.prompt
    source = None if prompt.encoder is None else prompt.encoder["input_ids"][0].tolist()
    return {
        "prompt": list(prompt.tokens),
        "output": row.new_tokens,
        "source": source,
        "text": row.result().text,
    }
