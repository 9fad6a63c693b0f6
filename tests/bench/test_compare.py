"""Two runs side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.common import answer, record, recorded, task

from biglittle.bench.compare import compare_runs
from biglittle.bench.export import write_json
from biglittle.bench.summary import Interval, summarize
from biglittle.errors import ParameterError


def written(path: Path, seconds: float, *, system: str = "dynamic", count: int = 3) -> Path:
    run = recorded(
        *(record("words", str(i), "none", answer(4.0)) for i in range(count)),
        *(record("words", str(i), system, answer(seconds + i)) for i in range(count)),
    )
    write_json(summarize(run, [task(count=count)]), path)
    return path


def test_ratios_over_the_prompts_that_both_have(tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", 4.0)
    two = written(tmp_path / "b.json", 2.0, count=2)
    found = compare_runs(one, two)
    assert [(row.task, row.system, row.examples) for row in found.rows] == [
        ("words", "none", 2),
        ("words", "dynamic", 2),
    ]
    plain, dynamic = found.rows
    assert plain.ratio == Interval(1.0, 1.0, 1.0)
    assert dynamic.ms_per_token == (1000 * 9 / 8, 1000 * 5 / 8)
    assert dynamic.ratio.value == pytest.approx(9 / 5)
    assert dynamic.ratio.low is not None
    assert dynamic.ratio.low == pytest.approx(5 / 3)
    assert list(dynamic.speedups) == pytest.approx([12 / 15, 8 / 5])
    assert found.warnings == ()


def test_other_hardware_settings_and_systems_are_said(tmp_path: Path) -> None:
    one, two = written(tmp_path / "a.json", 4.0), written(tmp_path / "b.json", 2.0, system="x")
    data = json.loads(two.read_text())
    data["header"]["hardware"]["cores"] = 64
    data["header"]["settings"]["target"] = "huge"
    del data["header"]["versions"]["torch"]
    two.write_text(json.dumps(data))
    assert compare_runs(one, two).warnings == (
        "settings differ: target is 'big' and 'huge'",
        "hardware differ: cores is 2 and 64",
        "versions differ: torch is '1' and None",
        "only in the first run: dynamic on words",
        "only in the second run: x on words",
    )


def test_files_that_cannot_be_compared(tmp_path: Path) -> None:
    good = written(tmp_path / "a.json", 4.0)
    with pytest.raises(ParameterError, match=r"cannot read .*nowhere.json: No such file"):
        compare_runs(good, tmp_path / "nowhere.json")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    with pytest.raises(ParameterError, match=r"bad.json is not JSON; give the summary.json"):
        compare_runs(bad, good)
    bad.write_text('{"rows": []}')
    with pytest.raises(ParameterError, match=r"is not the summary of a bench"):
        compare_runs(good, bad)
    bad.write_text(json.dumps({**json.loads(good.read_text()), "version": 7}))
    with pytest.raises(ParameterError, match=r"is of version 7 of the format, and this is 1"):
        compare_runs(good, bad)


def test_runs_with_nothing_in_common(tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", 4.0)
    data = json.loads(one.read_text())
    data["examples"] = [{**item, "prompt": "another"} for item in data["examples"]]
    two = tmp_path / "b.json"
    two.write_text(json.dumps(data))
    with pytest.raises(ParameterError, match="no system and prompt in common"):
        compare_runs(one, two)


def test_a_repeated_run_is_as_fast(tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", 4.0)
    found = compare_runs(one, one)
    assert all(row.ratio == Interval(1.0, 1.0, 1.0) for row in found.rows)
    assert replace(found, rows=()).warnings == ()
