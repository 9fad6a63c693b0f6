"""What was found, in words and as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.tune.common import change, setting
from tests.tune.test_profile import LOSSY, profile

from biglittle.bench.summary import Interval
from biglittle.tune import Rejected, Setting, Timed
from biglittle.tune.plots import draw, front
from biglittle.tune.words import notes, verdict

BASE = setting("dynamic", ms=6.25, changes=[change(0.0, value=30.0)])
LOST = setting(LOSSY, changes=[change()])


def test_a_lossy_verdict() -> None:
    timed = Timed(5, Interval(1.9, 1.8, 2.0), Interval(1.7), Interval(1.1))
    assert verdict(LOST, BASE, LOST, timed) == (
        f"{LOSSY} is LOSSY: 2.00 times the speed of the target alone predicted, "
        "1.90 timed (5 examples, 95 % interval 1.80 – 2.00); dynamic, the best that is lossless, "
        "1.60. Quality: bleu 29.50 for 30.00 (−0.50, at worst −1.00) where it was searched, bleu "
        "29.50 for 30.00 (−0.50, at worst −1.00) on 6 other examples."
    )


def test_a_lossless_verdict() -> None:
    assert verdict(BASE, BASE, None, None) == (
        "dynamic is lossless: 1.60 times the speed of the target alone."
    )
    one = Timed(1, Interval(1.5), Interval(1.4), None)
    assert verdict(BASE, BASE, None, one).endswith("predicted, 1.50 timed (1 example).")
    assert "do not speculate" in verdict(setting("none", ms=10), BASE, None, None)


def told(answer: Setting, *settings: Setting, **more: Any) -> list[str]:
    given: dict[str, Any] = {"found": None, "rejected": (), "out_of_time": False, **more}
    rejected, out_of_time = given["rejected"], given["out_of_time"]
    return list(notes(answer, BASE, given["found"], settings, rejected, out_of_time=out_of_time))


def test_why_nothing_lossy() -> None:
    hopeful = replace(LOST, outcome="not shown to be inside")
    (note,) = told(BASE, hopeful)
    assert note == (
        f"{LOSSY} is faster than dynamic and may be inside the budget, but 6 examples cannot show "
        "it: bleu 29.50 for 30.00 (−0.50, at worst −1.00); more could tell"
    )
    outside = replace(hopeful, changes=(change(value=20.0),))
    assert told(BASE, outside) == ["of 1 lossy settings that are faster, none is inside the budget"]
    slow = replace(hopeful, ms_per_token=9.0)
    assert told(BASE, slow) == ["no lossy setting is faster than dynamic"]
    assert told(BASE, hopeful, rejected=[Rejected(LOSSY, "a reason")])[0] == (
        f"{LOSSY} was given up: a reason"
    )
    assert told(LOST, hopeful) == []


def test_what_no_difference_leaves_open() -> None:
    same = replace(LOST, changes=(replace(change(0.0, value=30.0), changed=0, examples=20),))
    (note,) = told(LOST, LOST, found=same)
    assert note.startswith("bleu is the same in each of 20 examples, and up to 14 % of others may")
    assert told(LOST, LOST, out_of_time=True)[-1].startswith("the time was over")


def test_the_front() -> None:
    points = [(5.0, 30.0), (4.0, 29.0), (4.5, 28.0), (6.0, 30.0), (4.0, 28.5), (3.0, 10.0)]
    assert front(points) == [(3.0, 10.0), (4.0, 29.0), (5.0, 30.0)]


@pytest.mark.parametrize("lossless", [False, True])
def test_the_picture(tmp_path: Path, lossless: bool) -> None:
    plain = setting("none", ms=10.0, changes=[change(0.0, value=30.0)])
    few = replace(setting("static+bild:rollback=3", changes=[change()]), examples=3)
    found = profile(settings=(LOST, few), lossless=lossless, best_lossless=BASE)
    draw(found, plain, tmp_path / "picture.svg")
    assert [file.name for file in tmp_path.iterdir()] == ["picture.svg"]
    text = (tmp_path / "picture.svg").read_text()
    assert "<svg" in text
    draw(replace(found, budgets=()), plain, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()
