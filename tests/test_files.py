"""Files that a kill at any moment leaves whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biglittle.files import GrowingFile, write_whole


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


def test_half_a_character_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    GrowingFile(path).append({"text": "\ud83d"})
    assert kept(path) == [{"text": "\ud83d"}]
