"""The confirmation by the clock: systems in turn, kept as they come, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tune.test_lab import HEADER, make_lab

from biglittle.bench.systems import Answer, Ours
from biglittle.results import Stats
from biglittle.tune import Timed
from biglittle.tune.confirm import time_policies
from biglittle.tune.lab import OutOfTime

POLICY, LOSSLESS = "bild:fallback=0.5,rollback=2", "dynamic"
SECONDS = {"none": 5.0, LOSSLESS: 3.0, POLICY: 2.0}
READING = 1.0


def timed(
    folder: Path, policy: str = POLICY, check: Callable[[], None] = lambda: None, count: int = 3
) -> Timed:
    names = [str(index) for index in range(count)]
    lab = make_lab(folder)
    return time_policies(
        lab, policy, LOSSLESS, names, folder, HEADER, check, lambda done, total: None
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every system takes its time, of which reading the prompt is a second; who ran, in order."""
    ran: list[str] = []

    def answer(self: Ours, request: Any, params: Any) -> Answer:
        ran.append(self.name)
        tokens = (1, 2) if self.name == POLICY else (1, 2, 3, 4)  # it writes half as much
        stats = Stats(first_token_seconds=READING)
        return Answer("text", tokens, SECONDS[self.name], stats, ())

    monkeypatch.setattr(Ours, "answer", answer)
    return ran


def test_what_times_come_to(tmp_path: Path, clock: list[str]) -> None:
    found = timed(tmp_path)
    assert found.examples == 3
    # Seconds a token, without the reading: 4/4, 2/4 and 1/2; with it 5/4, 3/4 and 2/2.
    assert found.speedup.value == pytest.approx(2.0)
    assert found.whole.value == pytest.approx(1.25)
    assert found.over_lossless is not None
    assert found.over_lossless.value == pytest.approx(1.0)
    assert found.speedup.low == pytest.approx(2.0)
    assert found.speedup.high == pytest.approx(2.0)
    warm, measured = clock[:3], clock[3:]
    assert set(warm) == set(SECONDS)
    assert [measured[at] for at in (0, 3, 6)] == ["none", LOSSLESS, POLICY]  # turn by turn


def test_the_lossless_policy_itself(tmp_path: Path, clock: list[str]) -> None:
    found = timed(tmp_path, LOSSLESS)
    assert found.over_lossless is None
    assert found.speedup.value == pytest.approx(2.0)
    assert set(clock) == {"none", LOSSLESS}


def test_what_was_timed_is_kept(tmp_path: Path, clock: list[str]) -> None:
    left = 2

    def check() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OutOfTime

    found = timed(tmp_path, check=check)
    assert (found.examples, found.speedup.low) == (1, None)  # of one there is no interval
    clock.clear()
    assert timed(tmp_path).examples == 3
    assert len(clock) == 3 + 2 * 3  # a warm-up, and what was left
    clock.clear()
    assert timed(tmp_path).examples == 3
    assert not clock


def test_no_time(tmp_path: Path, clock: list[str]) -> None:
    def over() -> None:
        raise OutOfTime

    with pytest.raises(OutOfTime):
        timed(tmp_path, check=over)
    assert not clock
    timed(tmp_path)
    assert timed(tmp_path, check=over).examples == 3  # nothing is left to do


def test_with_the_pair_itself(tmp_path: Path) -> None:
    found = timed(tmp_path, count=2)
    assert found.examples == 2
    assert found.speedup.value > 0
    assert found.over_lossless is not None
