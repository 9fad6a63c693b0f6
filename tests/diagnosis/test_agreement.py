"""Agreement, acceptance by position, calibration."""

from __future__ import annotations

import pytest
from tests.diagnosis.conftest import NEW, PROMPTS, Recorded, make_pair, periodic, written

from biglittle.diagnosis import Agreement
from biglittle.diagnosis.agreement import measure_agreement
from biglittle.diagnosis.lookup import lookup_traces


def test_rate_and_bins() -> None:
    found = measure_agreement(written([9, 3, 4, 5, 6], [3, 4, 7, 6], [0.95, 0.91, 0.93, 0.32]))
    assert (found.rate, found.positions) == (0.75, 4)
    assert [part.count for part in found.bins] == [1, 3]
    assert [part.confidence for part in found.bins] == pytest.approx([0.32, 0.93])
    assert [part.agreement for part in found.bins] == pytest.approx([1.0, 2 / 3])
    assert found.calibration_error == pytest.approx((0.68 + 3 * abs(0.93 - 2 / 3)) / 4)


def test_nothing_was_compared() -> None:
    assert Agreement(0.0, 0, (), ()).calibration_error == 0.0


def test_a_draft_that_is_the_target(recorded: Recorded) -> None:
    _, traces = recorded("itself")
    found = measure_agreement(traces)
    assert found.rate == 1.0
    assert found.positions == len(PROMPTS) * (NEW - 1)
    assert found.by_position == (1.0,) * 12


def test_by_position() -> None:
    """Windows start at 1 (right, wrong; the target writes 4), at 3 (right, right)."""
    found = measure_agreement(written([9, 3, 4, 5, 6], [3, 0, 5, 6], [0.9] * 4))
    assert found.by_position[:2] == (1.0, 0.5)


def test_copies_have_no_confidence() -> None:
    """A circle of seven can be copied once it has been gone round: from position 8 on."""
    pair, traces = make_pair("other"), periodic()
    requests = pair.requests(PROMPTS[:1], policy="none", temperature=0, max_new_tokens=99)
    found = measure_agreement(lookup_traces(traces, requests, pair, 3))
    assert found.bins == ()
    assert found.positions == 39
    assert found.rate == 32 / 39
