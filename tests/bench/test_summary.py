"""What records say, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.bench.common import answer, record, recorded, task

from biglittle.bench.metrics import Score, score
from biglittle.bench.operations import Shape, Shapes, Weights
from biglittle.bench.records import Difference, Record, Recorded
from biglittle.bench.summary import (
    ALL,
    Exactness,
    Interval,
    Row,
    Summary,
    acceptance_by_position,
    bootstrap,
    speedup,
    summarize,
)
from biglittle.bench.tasks import Example, Task
from biglittle.bench.words import exactness, interval, ratio, share, title, verdict

FAST = ((3, 3), (3, 2))


def row(summary: Summary, system: str, of: str = "words") -> Row:
    found = summary.row(of, system)
    assert found is not None
    return found


def twice_as_fast(count: int = 3) -> Recorded:
    """Plain decoding, and a system that takes half the time on every example."""
    return recorded(
        *(record("words", str(i), "none", answer(1.0 + i)) for i in range(count)),
        *(
            record("words", str(i), "dynamic", answer((1.0 + i) / 2, rounds=FAST))
            for i in range(count)
        ),
    )


def test_speed_up_and_times() -> None:
    summary = summarize(twice_as_fast(), [task()])
    assert summary.systems == ["none", "dynamic"]
    assert summary.tasks == ["words"]
    found = row(summary, "dynamic")
    assert (found.examples, found.answers, found.seconds) == (3, 3, 3.0)
    assert found.speedup == Interval(2.0, 2.0, 2.0)
    assert found.ms_per_token == pytest.approx(3000 / 12)
    assert found.ms_per_later_token == pytest.approx(1500 / 9)
    assert found.tokens_per_pass == 12 / 9
    assert found.stats.acceptance_rate == 15 / 18
    assert found.stats.accepted_per_round == 15 / 6
    assert row(summary, "none").speedup == Interval(1.0, 1.0, 1.0)


def test_the_interval_is_of_paired_examples() -> None:
    """Examples differ a hundredfold; drawn apart, the two systems' times would hide the ratio."""
    rng = np.random.default_rng(1)
    plain = 10.0 ** rng.uniform(-1, 1, 40)
    ours = plain / rng.normal(2.0, 0.1, 40)
    runs = recorded(
        *(record("words", str(i), "none", answer(s)) for i, s in enumerate(plain)),
        *(record("words", str(i), "dynamic", answer(s)) for i, s in enumerate(ours)),
    )
    found = row(summarize(runs, [task(count=40)]), "dynamic").speedup
    assert found.low is not None
    assert found.high is not None
    assert 1.9 < found.low < found.value < found.high < 2.1
    assert found.high - found.low > 0.01


def test_tokens_are_weighed_not_examples() -> None:
    one = np.array([1.0, 9.0]), np.array([1.0, 9.0])
    other = np.array([1.0, 3.0]), np.array([1.0, 9.0])
    assert speedup(*one, *other) == pytest.approx(2.5)


def test_one_example_has_no_interval() -> None:
    found = row(summarize(twice_as_fast(1), [task(count=1)]), "dynamic").speedup
    assert found == Interval(2.0, None, None)
    assert bootstrap(np.mean, [3.0]) == Interval(3.0)


def test_a_bootstrap_covers_what_it_says() -> None:
    """Of many samples, about 95 % of the intervals hold the true mean."""
    rng = np.random.default_rng(0)
    found = [bootstrap(np.mean, rng.normal(5.0, 1.0, 40)) for _ in range(100)]
    held = sum(one.low <= 5.0 <= one.high for one in found if one.low and one.high)
    assert 88 <= held <= 99


def test_only_what_all_systems_answered_is_compared() -> None:
    run = twice_as_fast()
    unfinished = replace(run, records=run.records[:-1])
    summary = summarize(unfinished, [task()])
    assert row(summary, "dynamic").examples == row(summary, "none").examples == 2
    nothing = replace(run, records=run.records[:3])
    assert summarize(nothing, [task()]).rows == ()


def test_rows_over_all_tasks_come_last() -> None:
    first, second = (
        [record(name, "0", system, answer(s)) for system, s in (("none", 4.0), ("dynamic", 2.0))]
        for name in ("a", "b")
    )
    summary = summarize(recorded(*first, *second), [task("a", 1), task("b", 1)])
    assert [one.task for one in summary.rows] == ["a", "a", "b", "b", ALL, ALL]
    assert summary.tasks == ["a", "b"]
    assert row(summary, "dynamic", ALL).seconds == 4.0
    assert row(summary, "dynamic", ALL).examples == 2


def test_shares_of_the_time() -> None:
    run = recorded(
        record("words", "0", "none", answer(1.0, target_seconds=0.9)),
        record("words", "0", "dynamic", answer(1.0, target_seconds=0.5, draft_seconds=0.3)),
    )
    summary = summarize(run, [task(count=1)])
    assert row(summary, "dynamic").shares == pytest.approx((0.3, 0.5, 0.2))
    assert row(summary, "none").shares == pytest.approx((0.0, 0.9, 0.1))


def test_operations_a_token() -> None:
    shape = Shape(Weights(100, 200), Weights(0, 0), windows=(0,), queries=0, cache=0)
    summary = summarize(twice_as_fast(1), [task(count=1)], shapes=Shapes(shape, shape))
    found = row(summary, "dynamic").operations
    assert found is not None
    # Four tokens: the target reads 10, 4 and 4, the draft 10 and six times 1.
    assert found.flops == 200 * (18 + 16) / 4
    assert found.bytes == 200 * (3 + 7) / 4
    assert found.intensity == 200 * 34 / 2000
    assert row(summarize(twice_as_fast(1), [task(count=1)]), "dynamic").operations is None


def test_acceptance_by_position() -> None:
    rounds = [(3, 3), (3, 1), (1, 0), (0, 0)]
    found = acceptance_by_position([record("words", "0", "dynamic", answer(1.0, rounds=rounds))])
    assert found == [2 / 3, 1 / 2, 1 / 2]
    assert acceptance_by_position([]) == []


# Exactness.


def differing() -> Recorded:
    other = replace(twice_as_fast(), records=twice_as_fast().records[:3])
    texts = [(1, 2, 3, 4), (1, 2, 3, 5), (1, 9)]
    runs = [record("words", str(i), "dynamic", answer(0.5, t)) for i, t in enumerate(texts)]
    lossy = [record("words", str(i), "bild", answer(0.5, t)) for i, t in enumerate(texts)]
    ties = [
        Difference("words", "1", "dynamic", 0, 3, ("a", "b"), (1.0, 1.0), True),
        Difference("words", "2", "dynamic", 0, 1, ("a", "b"), (9.0, 1.0), False),
    ]
    made = recorded(*other.records, *runs, *lossy)
    return replace(made, differences=tuple(ties))


def test_exactness_counts_near_ties_and_faults() -> None:
    summary = summarize(differing(), [task()])
    assert row(summary, "dynamic").exactness == Exactness(1, 3, 1, 1)
    assert row(summary, "none").exactness == Exactness(3, 3, 0, 0)
    assert row(summary, "bild").exactness is None
    assert not row(summary, "bild").lossless


def test_samples_are_not_compared() -> None:
    run = differing()
    sampled = replace(run.header, settings={**run.header.settings, "temperature": 0.7})
    summary = summarize(replace(run, header=sampled), [task()])
    assert row(summary, "dynamic").exactness is None


# Quality.


def answers(system: str, texts: list[str]) -> list[Record]:
    return [
        record("sums", str(i), system, answer(1.0, text=text), answer(1.0, text="more"))
        for i, text in enumerate(texts)
    ]


SUMS = Task(
    "sums",
    tuple(Example(str(i), (f"{i} and {i}?",), True, (str(2 * i),)) for i in range(4)),
    ("exact_match",),
)


def test_quality_is_of_first_answers_and_its_difference_is_paired() -> None:
    plain = answers("none", ["It is 0.", "It is 2.", "It is 4.", "It is 7."])
    better = answers("dynamic", ["0", "2", "4", "6"])
    worse = answers("bild", ["0", "3", "3", "3"])
    summary = summarize(recorded(*plain, *better, *worse), [SUMS])
    (found,) = row(summary, "none", "sums").quality
    assert (found.metric, found.value) == ("exact_match", 75.0)
    assert found.difference == Interval(0.0, 0.0, 0.0)
    (found,) = row(summary, "dynamic", "sums").quality
    assert found.value == 100.0
    assert found.difference.value == 25.0
    assert found.difference.low == 0.0
    assert found.signature.startswith("exact_match")
    (found,) = row(summary, "bild", "sums").quality
    assert found.difference.value == -50.0


def test_answers_that_are_the_same_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def count(*given: Any, **options: Any) -> Score:
        asked.append(given)
        return score(*given, **options)

    monkeypatch.setattr("biglittle.bench.summary.score", count)
    texts = ["0", "2", "4", "6"]
    summarize(recorded(*answers("none", texts), *answers("dynamic", texts)), [SUMS])
    assert len(asked) == 1


def test_programs_do_not_run_unasked() -> None:
    code = replace(task(), metrics=("pass@1",))
    assert row(summarize(twice_as_fast(), [code]), "dynamic").quality == ()


# In words.


def test_the_verdict() -> None:
    assert verdict(summarize(twice_as_fast(), [task()])) == (
        "dynamic writes 2.00× as fast as the target alone (95 % interval 2.00 – 2.00), over 3 "
        "examples. Its output is the same, token by token."
    )
    slow = recorded(
        *(record("words", str(i), "none", answer(1.0)) for i in range(3)),
        *(record("words", str(i), "dynamic", answer(2.0)) for i in range(3)),
        *(record("words", str(i), "transformers plain", answer(0.5)) for i in range(3)),
        *(record("words", str(i), "bild", answer(0.1)) for i in range(3)),
    )
    text = verdict(summarize(slow, [task()]))
    assert text.startswith("No lossless policy is faster than the target alone over 3 examples")
    assert "dynamic, has 0.50× its speed" in text
    assert text.endswith("Do not speculate here.")
    unsure = recorded(
        *(record("words", str(i), "none", answer(1.0)) for i in range(3)),
        *(record("words", str(i), "dynamic", answer(s)) for i, s in enumerate((0.2, 1.3, 1.2))),
    )
    assert "The interval includes 1" in verdict(summarize(unsure, [task()]))
    assert verdict(summarize(recorded(record("words", "0", "none", answer(1.0))), [task()])) == ""
    lost = summarize(differing(), [task()])
    assert "Outputs that are the same: 1 of 3, 1 near-tie, 1 FAULT." in verdict(lost)


def test_numbers_as_they_are_written() -> None:
    assert ratio(1.618) == "1.62×"
    assert ratio(None) == ""
    assert [share(x) for x in (0.871, 0.0, 0.0042, None)] == ["87 %", "0 %", "0.4 %", ""]
    assert interval(Interval(1.0, 0.5, 1.5)) == "0.50 – 1.50"
    assert interval(Interval(1.0)) == ""
    assert exactness(Exactness(2, 2, 0, 0)) == "identical"
    assert exactness(Exactness(0, 5, 2, 3)) == "0 of 5, 2 near-ties, 3 FAULTS"
    assert exactness(None) == ""
    assert title("none") == "plain"
    assert title("dynamic") == "dynamic"
