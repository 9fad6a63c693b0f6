"""Metrics against values worked out by hand or published, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biglittle import ParameterError
from biglittle.bench.metrics import check, exact_match, final_number, score
from biglittle.bench.tasks import CodeTests, Example, Task

needs_packages = pytest.mark.skipif(
    find_spec("sacrebleu") is None or find_spec("rouge_score") is None,
    reason="needs biglittle[bench]",
)


def task(references: Mapping[str, tuple[str, ...]], *metrics: str) -> Task:
    examples = [Example(name, ("x",), True, texts) for name, texts in references.items()]
    return Task("t", tuple(examples), metrics)


# Text.


@needs_packages
def test_bleu_is_that_of_the_paper() -> None:
    """Papineni et al. 2002: geometric mean of n-gram precisions 5/6, 3/5, 1/4 and a smoothed
    1/(2·3), without a brevity penalty, for these sentences."""
    judged = score("bleu", task({"a": ("the cat is on the mat",)}), {"a": "the cat sat on the mat"})
    precisions = (5 / 6, 3 / 5, 1 / 4, 1 / 6)
    assert judged.value == pytest.approx(100 * math.prod(precisions) ** 0.25)
    assert judged.per_example == pytest.approx((judged.value,))
    assert judged.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@needs_packages
def test_bleu_is_the_corpus_s_and_not_the_mean_of_sentences() -> None:
    references = {"a": ("one two three four five",), "b": ("six seven eight nine",)}
    judged = score("bleu", task(references), {"a": "one two three four five", "b": "six"})
    assert judged.per_example[0] == pytest.approx(100)
    assert judged.per_example[1] == pytest.approx(100 * math.exp(1 - 4))  # no 4-grams needed
    # Every n-gram is right, of 6 words against 9: the brevity penalty alone.
    assert judged.value == pytest.approx(100 * math.exp(1 - 9 / 6))


@needs_packages
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_references_may_differ_in_number(metric: str) -> None:
    references = {"a": ("a b c d e", "one two three four"), "b": ("five six seven eight",)}
    outputs = {"a": "one two three four", "b": "five six seven eight"}
    judged = score(metric, task(references), outputs)
    assert judged.value == pytest.approx(100)
    assert judged.per_example == pytest.approx((100, 100))
    assert "nrefs:var" in judged.signature


@needs_packages
def test_chrf_of_nothing_in_common() -> None:
    judged = score("chrf", task({"a": ("abc",)}), {"a": "xyz"})
    assert (judged.value, judged.per_example) == (0.0, (0.0,))
    assert judged.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


@needs_packages
def test_rouge_l() -> None:
    """Longest common subsequence "police kill … gunman" of Lin 2004, and stemming."""
    references = {"a": ("police killed the gunman",), "b": ("police killed the gunman", "dogs run")}
    outputs = {"a": "police kill the gunman", "b": "a dog runs"}
    judged = score("rougeL", task(references), outputs)
    one = 100 * 2 * (2 / 3) * 1 / (2 / 3 + 1)  # "dog run": precision 2/3, recall 1
    assert judged.per_example == pytest.approx((100, one))
    assert judged.value == pytest.approx((100 + one) / 2)
    assert judged.signature.startswith("rougeL|f1|stemmer:porter|references:best|version:")


@needs_packages
@pytest.mark.parametrize("metric", ["bleu", "chrf", "rougeL", "exact_match"])
def test_an_empty_answer_scores_nothing(metric: str) -> None:
    judged = score(metric, task({"a": ("five six",)}), {"a": ""})
    assert (judged.value, judged.per_example) == (0.0, (0.0,))


# Answers.


@pytest.mark.parametrize(
    "answer",
    [
        "18",
        "She makes $18.",
        "9 * 2 = **18** dollars",
        r"\boxed{18}",
        "first 5, then 18.00",
        "#### 18",
        "The answer is 18.\n",
    ],
)
def test_the_last_number_is_the_answer(answer: str) -> None:
    assert exact_match(answer, "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\n#### 18")


def test_a_reference_may_have_a_typographic_minus() -> None:
    assert exact_match("It is -7.", "−7")
    assert not exact_match("It is 7.", "−7")


@pytest.mark.parametrize("answer", ["", "none", "18 of 20", "180", "1.8", "-18", "x18"])
def test_another_number_is_wrong(answer: str) -> None:
    assert not exact_match(answer, "#### 18")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234,567.50", "1234567.5"),
        ("$385,000.", "385000"),
        ("-7", "-7"),
        ("−7 degrees", "-7"),
        ("-$5", "-5"),
        ("5-3", "3"),  # a minus between numbers, or a range
        ("pages 3-4", "4"),
        ("50%", "50"),
        ("1, 2, 3", "3"),
        ("1,2,3", "3"),
        ("1,2345", "2345"),
        ("v2", None),
        ("nothing", None),
    ],
)
def test_numbers_as_people_write_them(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Decimal(number))


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:,}", "= {}.", "**{:,}**", "{}%"]))
def test_every_whole_number_is_found(number: int, form: str) -> None:
    assert final_number(f"12 and {form.format(number)}") == number


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [
        ("The Eiffel Tower.", "eiffel tower", True),
        ("the  Eiffel\nTower", "An Eiffel Tower", True),
        ("Eiffel", "Eiffel Tower", False),
        ("It is the Eiffel Tower", "Eiffel Tower", False),
        ("42 apples", "42 apples", True),
        ("42", "42 apples", False),  # not a number, so the texts must be the same
    ],
)
def test_texts_are_compared_as_in_squad(answer: str, reference: str, same: bool) -> None:
    assert exact_match(answer, reference) is same


def test_exact_match_takes_any_reference() -> None:
    references = {"a": ("two", "2"), "b": ("3",), "left out": ("4",)}
    judged = score("exact_match", task(references), {"b": "It is 4", "a": "It is 2."})
    assert judged.per_example == (100.0, 0.0)  # in the task's order
    assert judged.value == 50.0


# Code.

ONE = Example("one", ("x",), False, tests=CodeTests("def f():\n", "assert f() == 1", "f"))
TWO = Example("two", ("x",), True, tests=CodeTests("", "assert f() == 2", "f"))
PROGRAMS = Task("p", (ONE, TWO), ("pass@1",), stop=("\nprint",))


def test_pass_at_1() -> None:
    outputs = {"one": "    return 1\n\nprint(f() / 0)", "two": "```\ndef f(): return 3\n```"}
    judged = score("pass@1", PROGRAMS, outputs, run_code=True)
    assert judged.per_example == (100.0, 0.0)
    assert judged.value == 50.0
    assert judged.signature.startswith("pass@1|samples:1|seconds:10|python:3.")


def test_code_runs_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biglittle.bench.code.run", lambda *given: pytest.fail("it ran"))
    with pytest.raises(ParameterError, match=r"run_code=True \(--run-code\)"):
        score("pass@1", PROGRAMS, {"one": "    return 1"})


# What they refuse.


@pytest.mark.parametrize("metric", ["bleu", "chrf", "rougeL", "exact_match"])
@needs_packages
def test_references_are_needed(metric: str) -> None:
    one = task({"a": ("x",), "b": ()}, metric)
    with pytest.raises(ParameterError, match=f"'{metric}' needs references, but example 'b'"):
        check(one)


def test_tests_are_needed() -> None:
    with pytest.raises(ParameterError, match="'pass@1' needs tests, but example 'a' of task 't'"):
        check(task({"a": ("x",)}, "pass@1"))


def test_an_unknown_metric() -> None:
    with pytest.raises(ParameterError, match=r"'rouge' is none of bleu, .*did you mean 'rougeL'"):
        check(task({"a": ("x",)}, "rouge"))


def test_no_output() -> None:
    with pytest.raises(ParameterError, match="task 't' has no outputs"):
        score("exact_match", task({"a": ("x",)}), {"b": "x"})


@pytest.mark.parametrize("metric", ["bleu", "chrf", "rougeL"])
def test_a_missing_package(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biglittle.bench.metrics.find_spec", lambda name: None)
    with pytest.raises(ParameterError, match=r"pip install 'biglittle\[bench\]'"):
        check(task({"a": ("x",)}, metric))
