from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import biglittle

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def models(folders: dict[str, str]) -> list[str]:
    return ["-t", folders["target"], "-d", folders["draft"], "-m", "8"]


@pytest.fixture
def turns(folders: dict[str, str]) -> list[str]:
    """Two answers of the library's own, the second one knowing the first."""
    chat = biglittle.load(folders["target"], folders["draft"]).chat("Be brief.", max_new_tokens=8)
    return [chat.send("The little").text, chat.send("The big").text]


def test_every_line_is_answered_until_the_input_ends(
    run: Run, models: list[str], turns: list[str]
) -> None:
    done = run("chat", *models, "--system", "Be brief.", stdin="The little\n\nThe big\n")
    assert done.exit_code == 0
    assert done.stdout == "".join(f"{text}\n" for text in turns)
    first, second = (line for line in done.stderr.splitlines() if "tokens in" in line)
    assert "from the cache" not in first
    assert "prompt tokens from the cache" in second
    assert "cut after 8 tokens" in done.stderr


def test_reset_forgets_all_but_the_system_message(
    run: Run, models: list[str], turns: list[str]
) -> None:
    lines = "The little\n/reset\nThe little\n"
    done = run("chat", *models, "-q", "--system", "Be brief.", stdin=lines)
    assert done.stdout == f"{turns[0]}\n" * 2
    assert done.stderr == ""


def test_exit_leaves(run: Run, models: list[str], turns: list[str]) -> None:
    done = run("chat", *models, "--system", "Be brief.", stdin="The little\n/exit\nThe big\n")
    assert done.exit_code == 0
    assert done.stdout == f"{turns[0]}\n"


def test_policy_is_shown_and_changed(run: Run, models: list[str]) -> None:
    lines = "/policy\n/policy bild\n/policy none\nThe\n/policy dinamic\n/policy\n"
    done = run("chat", *models, stdin=lines)
    assert done.exit_code == 0
    notes = done.stderr.splitlines()[1:]
    assert notes[:2] == ["policy cost-aware", "policy bild:fallback=0.6,rollback=3"]
    assert "lossy" in notes[2]
    assert notes[3] == "policy none"
    assert "0 draft passes" in notes[4]
    assert notes[6].startswith("error: unknown policy 'dinamic'")
    assert notes[7] == "policy none"


def test_stats_add_up(run: Run, models: list[str]) -> None:
    done = run("chat", *models, "--no-stats", stdin="The\nA\n/stats\n")
    (line,) = (line for line in done.stderr.splitlines() if "tokens in" in line)
    assert line.startswith("16 tokens in")


def test_a_bad_line_does_not_end_the_conversation(
    run: Run, models: list[str], turns: list[str]
) -> None:
    long = "little " * 300
    lines = f"/polcy\n{long}\nThe little\n"
    done = run("chat", *models, "--system", "Be brief.", stdin=lines)
    assert done.exit_code == 0
    assert done.stdout == f"{turns[0]}\n"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors[0] == "error: unknown command /polcy; did you mean '/policy'?"
    assert "context of 256" in errors[1]
    assert len(errors) == 2


def test_input_that_is_no_text(run: Run, models: list[str]) -> None:
    done = run("chat", *models, "-q", stdin="Größe".encode("latin-1"))
    assert done.exit_code == 2
    assert done.stderr == "error: standard input is not UTF-8 text; convert it first\n"
