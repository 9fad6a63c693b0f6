"""Files that a kill at any moment leaves whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biglittle.align.files import Records
from biglittle.bench.records import Header as BenchHeader
from biglittle.bench.records import Log
from biglittle.errors import ParameterError
from biglittle.files import GrowingFile, alone, opening, write_whole
from biglittle.traces.file import Writer
from biglittle.tune.runs import Runs


def kept(path: Path) -> list[object]:
    return [json.loads(line) for line in GrowingFile(path).lines()]


def test_write_whole_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for text in ("first", "zweite ä"):
        write_whole(path, text)
        assert path.read_text(encoding="utf8") == text
    assert [one.name for one in tmp_path.iterdir()] == ["file.json"]


def test_a_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    file = GrowingFile(path)
    file.append({"n": 1}, {"n": 2})
    file.append()
    file.append({"text": "ein\nÄrger"})
    assert kept(path) == [{"n": 1}, {"n": 2}, {"text": "ein\nÄrger"}]


def test_there_may_be_no_file(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "none.jsonl")
    file.mend()
    assert not file.path.exists()
    with pytest.raises(FileNotFoundError):
        file.lines()


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers(), max_size=2), max_size=4))
def test_a_kill_at_any_byte_loses_the_last_line_alone(
    tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("grown") / "items.jsonl"
    GrowingFile(path).append(*items)
    data = path.read_bytes()
    for cut in {0, 1, len(data) // 2, max(0, len(data) - 1), len(data)}:
        path.write_bytes(data[:cut])
        whole = data[:cut].count(b"\n")
        assert kept(path) == items[:whole]
        GrowingFile(path).append({"next": 1})
        assert kept(path) == [*items[:whole], {"next": 1}]


FOREIGN = (b"notes, without a newline", b'{"format": "of another program"}', b"\xff")


@pytest.mark.parametrize("text", FOREIGN)
def test_a_single_line_of_somebody_else_is_there(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(text)
    first = {"format": "ours", "version": 1}
    file = GrowingFile(path, opening(**first))
    assert file.lines() == [text]
    for cut in (b"", b'{"for', b'{"format":"ours","version":1,"mo'):  # killed, writing our own
        path.write_bytes(cut)
        assert file.lines() == []


BENCH = BenchHeader({}, {}, {}, {}, "")
OPENED: dict[str, Callable[[Path], object]] = {
    "align": lambda path: Records(path, "answers", 1, {}),
    "bench": lambda path: Log(path, BENCH),
    "traces": lambda path: Writer(path, None),  # type: ignore[arg-type]
    "tune": lambda path: Runs(path, BENCH),
}


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("kind", OPENED)
def test_what_is_not_ours_is_refused_and_stays(tmp_path: Path, kind: str, text: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(text)
    with pytest.raises(ParameterError, match="notes"):
        OPENED[kind](path)
    assert path.read_bytes() == text


def test_a_file_that_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    refused = pytest.raises(ParameterError, match="another process writes to .*items")
    with alone(path), refused, alone(path):
        pass
    with alone(path):
        GrowingFile(path).append({"n": 1})
    assert [one.name for one in tmp_path.iterdir()] == ["items.jsonl"]


def test_half_a_character_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    GrowingFile(path).append({"text": "\ud83d"})
    assert kept(path) == [{"text": "\ud83d"}]
