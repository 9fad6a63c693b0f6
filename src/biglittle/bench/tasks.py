"""What a benchmark asks of a model, and how an answer is judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..errors import ParameterError

__all__ = ["CodeTests", "Example", "Task"]


@dataclass(frozen=True, slots=True)
class CodeTests:
    """How a program is checked: it runs, then its tests run in the same module."""

    prompt: str
    """Code that a completion goes on from; empty where the answer is the whole program."""
    tests: str
    """Code that raises if the program is wrong."""
    entry_point: str | None = None
    """The function under test, by which it is found in a chat model's answer; None if unnamed."""
    language: str = "python"

    def __post_init__(self) -> None:
        if self.language != "python":
            raise ParameterError(f"tests in {self.language!r} cannot be run, only in 'python'")


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation, or one text to go on from."""

    id: str
    """Unique within its task."""
    turns: tuple[str, ...]
    """What the user says, turn by turn; one for a single-turn task."""
    chat: bool
    """Whether a turn goes through the chat template; else the text is completed as it is."""
    references: tuple[str, ...] = ()
    """Texts that would be right as the first answer."""
    tests: CodeTests | None = None
    """For code: how the first answer is checked."""
    source: str | None = None
    """The text to translate or to summarize, without instructions."""

    def __post_init__(self) -> None:
        if not self.turns or not all(self.turns):
            raise ParameterError(f"example {self.id!r} has an empty turn; give every turn a text")
        if len(self.turns) > 1 and not self.chat:
            raise ParameterError(
                f"example {self.id!r} has {len(self.turns)} turns, which need a chat template; "
                "use a chat model, or keep one turn"
            )


@dataclass(frozen=True, slots=True)
class Task:
    """Examples of one kind."""

    name: str
    examples: tuple[Example, ...]
    metrics: tuple[str, ...] = ()
    """Names for `biglittle.bench.metrics.score`; may be empty."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer."""

    def __post_init__(self) -> None:
        if not self.examples:
            raise ParameterError(f"task {self.name!r} has no examples")
        ids = Counter(example.id for example in self.examples)
        example, count = ids.most_common(1)[0]
        if count > 1:
            raise ParameterError(
                f"task {self.name!r} has {count} examples with id {example!r}; ids must differ"
            )
