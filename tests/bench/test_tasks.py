"""Tasks and examples refuse what could not be run."""

from __future__ import annotations

import pytest

from biglittle import ParameterError
from biglittle.bench.tasks import Example, Task


def test_ids_differ_within_a_task() -> None:
    twice = (Example("a", ("x",), True), Example("b", ("y",), True), Example("a", ("z",), True))
    with pytest.raises(
        ParameterError, match="task 't' has 2 examples with id 'a'; ids must differ"
    ):
        Task("t", twice)


def test_a_task_has_examples() -> None:
    with pytest.raises(ParameterError, match="no examples"):
        Task("t", ())


@pytest.mark.parametrize("turns", [(), ("",), ("x", "")])
def test_every_turn_has_text(turns: tuple[str, ...]) -> None:
    with pytest.raises(ParameterError, match="empty turn"):
        Example("a", turns, True)


def test_a_completion_has_one_turn() -> None:
    with pytest.raises(ParameterError, match="2 turns, which need a chat template"):
        Example("a", ("x", "y"), False)
