"""Quality beside the target alone: the metrics of draws of examples, and their bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from tests.tune.common import task

from biglittle.bench.metrics import score
from biglittle.bench.tasks import CodeTests, Example, Task
from biglittle.tune import Change, parse_budget, similarity
from biglittle.tune.quality import Judge, beyond
from biglittle.tune.runs import Output


def output(text: str, tokens: Sequence[int] = ()) -> Output:
    return Output(text, tuple(tokens), ())


def compared(of: Task, budget: str, ours: Sequence[str], theirs: Sequence[str]) -> Change:
    names = [example.id for example in of.examples]
    made, plain = (
        {name: output(text, list(text.encode())) for name, text in zip(names, texts, strict=True)}
        for texts in (ours, theirs)
    )
    (found,) = Judge(of, [parse_budget(budget)], run_code=True).compare(made, plain)
    return found


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 100.0),
        ([], [], 100.0),
        ([1, 2], [], 0.0),
        ([1, 2, 3, 4], [1, 9, 3, 4], 75.0),
        ([1, 2, 3, 4], [0, 1, 2, 3, 4], 80.0),  # a token more at the front costs one
        ([1, 2, 3, 4], [2, 3, 4], 75.0),
        ([1, 2], [3, 4, 5, 6], 0.0),
    ],
)
def test_similarity(a: list[int], b: list[int], expected: float) -> None:
    assert similarity(a, b) == pytest.approx(expected)
    assert similarity(b, a) == pytest.approx(expected)


def distance(a: Sequence[int], b: Sequence[int]) -> int:
    """By the definition."""
    if not a or not b:
        return len(a) + len(b)
    if a[0] == b[0]:
        return distance(a[1:], b[1:])
    return 1 + min(distance(a[1:], b), distance(a, b[1:]), distance(a[1:], b[1:]))


TOKENS = st.lists(st.integers(0, 2), max_size=6)


@given(TOKENS, TOKENS)
def test_similarity_is_by_the_edit_distance(a: list[int], b: list[int]) -> None:
    longer = max(len(a), len(b), 1)
    assert similarity(a, b) == pytest.approx(100 * (1 - distance(a, b) / longer))


def answers(count: int, wrong: int) -> list[str]:
    """The right answers of `task`, but for the first few."""
    return ["wrong" if index < wrong else f"the {index}" for index in range(count)]


def test_the_bound_of_a_mean_is_the_binomials() -> None:
    """A draw of n examples, a tenth of them lost, loses as many as the binomial distribution."""
    found = compared(task(100), "exact_match: -5", answers(100, 10), answers(100, 0))
    assert (found.plain, found.value, found.change, found.changed) == (100, 90, -10, 10)
    low, high = (-stats.binom.ppf(part, 100, 0.1) for part in (0.95, 0.05))
    assert found.low == pytest.approx(low, abs=1)
    assert found.high == pytest.approx(high, abs=1)
    assert found.outside == (high < -5)
    assert not found.inside


def test_the_bound_is_paired() -> None:
    """Half of the answers are wrong both times: only the differences count."""
    found = compared(task(100), "exact_match: -2", answers(100, 51), answers(100, 50))
    assert found.change == -1
    assert found.low == pytest.approx(-3, abs=1)


def test_identical_outputs_are_inside_no_loss_at_all() -> None:
    texts = [f"some words {index}" for index in range(12)]
    for budget in ("bleu: 0", "chrf: 0", "rougeL: 0", "exact_match: 0", "agreement: 0"):
        found = compared(task(), budget, texts, texts)
        assert (found.low, found.high, found.changed) == (0, 0, 0)
        assert found.inside
    worse = compared(task(), "agreement: 0", ["other", *texts[1:]], texts)
    assert not worse.inside


@pytest.mark.parametrize("metric", ["bleu", "chrf", "rougeL"])
def test_corpus_metrics_are_the_corpus_own(metric: str) -> None:
    """Not the mean over sentences; of every draw, too."""
    references = ["the cat sat on the mat today", "a dog ran in the park", "birds fly south early"]
    ours = ["the cat sat on a mat today", "a dog walked in the park", "birds fly far south"]
    theirs = ["the cat sat on the mat now", "a dog ran in the garden", "all birds fly south early"]
    examples = tuple(
        Example(str(index), ("x",), False, (text,)) for index, text in enumerate(references)
    )
    of = Task("t", examples, (metric,))
    found = compared(of, f"{metric}: -1", ours, theirs)
    for texts, value in ((ours, found.value), (theirs, found.plain)):
        expected = score(metric, of, {str(index): text for index, text in enumerate(texts)})
        assert value == pytest.approx(expected.value)
    drawn = []
    generator = np.random.default_rng(1)
    for _ in range(300):
        which = generator.integers(0, 3, 3)
        names = {str(at): int(one) for at, one in enumerate(which)}
        part = Task(
            "d", tuple(Example(n, ("x",), False, (references[i],)) for n, i in names.items())
        )
        values = [score(metric, part, {n: made[i] for n, i in names.items()}).value
                  for made in (ours, theirs)]  # fmt: skip
        drawn.append(values[0] - values[1])
    low, high = np.quantile(drawn, [0.05, 0.95])
    assert found.low == pytest.approx(low, abs=2.5)
    assert found.high == pytest.approx(high, abs=2.5)


def test_a_relative_budget_is_of_the_targets_own() -> None:
    found = compared(task(10), "exact_match: -20%", answers(10, 6), answers(10, 5))
    assert (found.plain, found.value) == (50, 40)
    assert found.change == pytest.approx(-20)
    assert found.unit == "%"
    nothing = compared(task(10), "exact_match: -20%", answers(10, 10), answers(10, 10))
    assert (nothing.change, nothing.low) == (0, 0)  # on a few examples only; refused on all


def test_programs_are_run_once() -> None:
    tests = CodeTests("", "assert one() == 1\n")
    of = Task("code", (Example("0", ("x",), True, tests=tests),))
    found = compared(of, "pass@1: 0", ["def one(): return 2"], ["def one(): return 1"])
    assert (found.plain, found.value, found.low) == (100, 0, -100)


def test_what_no_difference_says() -> None:
    """The rule of three."""
    assert beyond(100) == pytest.approx(3 / 100, abs=0.001)
    assert (1 - beyond(20)) ** 20 == pytest.approx(0.05)
