from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import biglittle
from biglittle.cli.screen import STYLES, VISIBLE, Colours, Screen
from biglittle.results import Chunk, Origin

if TYPE_CHECKING:
    from tests.cli.conftest import Run

STYLE = re.compile(r"\x1b\[([\d;]*)m")
GREEN, RED, CYAN = "32", "1;31", "36"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the program believe that it writes to a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def arguments(folders: dict[str, str]) -> list[str]:
    return ["generate", "-t", folders["target"], "-m", "12", "--raw", "The little", "-d"]


@pytest.fixture
def plain(run: Run, arguments: list[str]) -> str:
    return run(*arguments, "none").stdout.translate(VISIBLE)


def test_colours_follow_the_origins(
    run: Run, folders: dict[str, str], arguments: list[str], plain: str, terminal: None
) -> None:
    pair = biglittle.load(folders["target"], folders["target"])
    result = pair.generate("The little", max_new_tokens=12)
    colours = {Origin.ACCEPTED: GREEN, Origin.CORRECTED: RED, Origin.TARGET: CYAN}
    done = run(*arguments, folders["target"])
    assert STYLE.sub("", done.stdout) == plain
    assert set(STYLE.findall(done.stdout)) - {"0"} == {colours[o] for o in result.origins}
    assert "■ drafted and accepted" in done.stderr


def test_an_unrelated_draft_is_corrected(
    run: Run, folders: dict[str, str], arguments: list[str], plain: str, terminal: None
) -> None:
    done = run(*arguments, folders["draft"], "-p", "static:tokens=3")
    assert STYLE.sub("", done.stdout) == plain
    assert RED in STYLE.findall(done.stdout)


@pytest.mark.parametrize("how", ["--no-color", "NO_COLOR", "a pipe"])
def test_colours_are_off(
    run: Run,
    folders: dict[str, str],
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: None,
    how: str,
) -> None:
    if how == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    if how == "a pipe":
        monkeypatch.delenv("FORCE_COLOR")
    options = [how] if how.startswith("-") else []
    done = run(*arguments, folders["draft"], *options)
    assert done.exit_code == 0
    assert not STYLE.findall(done.stdout)
    assert "■" not in done.stderr


def test_control_characters_are_shown_in_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: None
) -> None:
    text = "a\tb\x1b[31mc\r\x07\x9b2J\n"
    Screen(color=False).write(text)
    assert capsys.readouterr().out == "a\tb␛[31mc␍␇\ufffd2J\n"
    monkeypatch.delenv("FORCE_COLOR")
    Screen().write(text)
    assert capsys.readouterr().out == text


class Letters:
    """A tokenizer of letters and of halves of a letter: ids 1 and 2 together are `é`."""

    def decode(self, ids: list[int], **options: Any) -> str:
        data = b"".join({1: b"\xc3", 2: b"\xa9"}.get(i, chr(i).encode()) for i in ids)
        return data.decode(errors="replace")


def chunk(text: str, ids: list[int], origins: list[Origin]) -> Chunk:
    return Chunk(index=0, text=text, token_ids=tuple(ids), origins=tuple(origins))


def test_text_that_lags_behind_its_tokens_keeps_its_colour() -> None:
    """As it does for stop strings, which hold text back, and letters in several tokens."""
    accepted, target = Origin.ACCEPTED, Origin.TARGET
    colours = Colours(Letters(), [])
    green, cyan = STYLES["accepted"], STYLES["target"]
    a, b, c = map(ord, "abc")
    assert list(colours.split(chunk("a", [a, b], [accepted, target]))) == [("a", green)]
    assert list(colours.split(chunk("", [1], [accepted]))) == []
    late = [piece for piece in colours.split(chunk("béc", [2, c], [target, accepted])) if piece[0]]
    assert late == [("b", cyan), ("é", cyan), ("c", green)]


def test_text_past_all_tokens_is_plain() -> None:
    colours = Colours(Letters(), [])
    pieces = list(colours.split(chunk("a\ufffd", [ord("a"), 1], [Origin.ACCEPTED] * 2)))
    assert [piece for piece in pieces if piece[0]] == [("a", STYLES["accepted"]), ("\ufffd", "")]
