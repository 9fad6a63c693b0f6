"""Budgets: reading, printing, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.tune.common import task

from biglittle import ParameterError
from biglittle.bench.tasks import CodeTests, Task
from biglittle.tune import Budget, parse_budget
from biglittle.tune.budget import check_budgets


@pytest.mark.parametrize(
    ("text", "budget", "shown"),
    [
        ("bleu: -0.5", Budget("bleu", -0.5), "bleu: -0.5"),
        ("rougeL: -1%", Budget("rougeL", -1.0, relative=True), "rougeL: -1%"),
        ("rougeL:−1 %", Budget("rougeL", -1.0, relative=True), "rougeL: -1%"),  # a real minus
        ("exact_match: 0", Budget("exact_match", 0.0), "exact_match: 0"),
        ("pass@1: -0", Budget("pass@1", 0.0), "pass@1: 0"),
        (" agreement :-2% ", Budget("agreement", -2.0, relative=True), "agreement: -2%"),
        ("chrf: -1e-1", Budget("chrf", -0.1), "chrf: -0.1"),
    ],
)
def test_reading(text: str, budget: Budget, shown: str) -> None:
    assert parse_budget(text) == budget
    assert str(budget) == shown
    assert parse_budget(str(budget)) == budget
    assert parse_budget(budget) is budget


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bleu", "cannot be read; write 'bleu: -0.5'"),
        ("", "cannot be read"),
        ("bleu: half a point", "cannot be read"),
        ("bleu: -1.2.3", "-1.2.3 is no number"),
        ("blue: -1", "did you mean 'bleu'?"),
        ("bleu: 0.5", "asks for a gain: a budget is a loss, such as 'bleu: -0.5'"),
        ("bleu: 1%", "such as 'bleu: -1%'"),
        ("bleu: -100", "would allow anything"),
        ("bleu: -1e999", "would allow anything"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(ParameterError) as refused:
        parse_budget(text)
    assert words in str(refused.value)


def checked(*budgets: str, of: Task, run_code: bool = False) -> None:
    check_budgets([parse_budget(budget) for budget in budgets], of, run_code=run_code)


def test_what_a_task_can_be_judged_by() -> None:
    checked("bleu: -1", "agreement: 0", "exact_match: 0", of=task())
    bare = task(examples=tuple(replace(one, references=()) for one in task().examples))
    checked("agreement: -2%", of=bare)
    with pytest.raises(ParameterError, match="needs references.*'agreement: -2%'"):
        checked("bleu: -1", of=bare)
    with pytest.raises(ParameterError, match="two budgets are for 'bleu'"):
        checked("bleu: -1", "bleu: -2%", of=task())


def test_programs_run_only_when_asked() -> None:
    tests = CodeTests("def one():\n", "assert one() == 1\n")
    code = task(examples=tuple(replace(one, tests=tests) for one in task().examples))
    with pytest.raises(ParameterError, match=r"run_code=True \(--run-code\)"):
        checked("pass@1: 0", of=code)
    checked("pass@1: 0", of=code, run_code=True)
    with pytest.raises(ParameterError, match="needs tests"):
        checked("pass@1: 0", of=task(), run_code=True)
