"""What a command says while it loads a pair, and that it checks before it fetches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from biglittle import catalogue
from biglittle.cache import cache_dir

if TYPE_CHECKING:
    from tests.cli.conftest import Run

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def unpacked(folders: dict[str, str]) -> Path:
    """A model of the catalogue, as if unpacked into the cache."""
    folder = cache_dir() / "models" / "smollm2-135m-instruct"
    return Path(shutil.copytree(folders["target"], folder))


def test_other_weights_than_the_hubs_are_told_of_once(run: Run, unpacked: Path) -> None:
    done = run("generate", "-t", HUB_ID, "-m", "4", "The little")
    notes = [line for line in done.stderr.splitlines() if "near the hub's weights" in line]
    assert len(notes) == 1
    assert notes[0].startswith(f"{HUB_ID}: unpacked from a Q4_1 file")
    assert str(unpacked) in notes[0]
    assert run("generate", "-t", HUB_ID, "-m", "4", "-q", "The little").stderr == ""
    done = run("generate", "-t", unpacked.name, "-m", "4", "The little")
    assert "near the hub's weights" not in done.stderr


def test_statistics_say_what_ran(run: Run, folders: dict[str, str]) -> None:
    draft = ["-d", folders["draft"], "--draft-dtype", "bfloat16"]
    done = run("generate", "-t", folders["target"], *draft, "-m", "4", "The little")
    assert " · float32 on cpu, the draft bfloat16 on cpu · ended by length" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-ctx", "64"], "--n-ctx is for the llama.cpp engine"),
        (["--dtype", "float31"], "did you mean 'float32'?"),
        (["-d", "none", "--draft-dtype", "float32"], "needs a draft model"),
    ],
)
def test_nothing_is_fetched_for_what_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setattr(catalogue, "fetch", lambda *_, **__: pytest.fail("it was fetched"))
    done = run("generate", *options, "The little")
    assert done.exit_code == 2
    assert message in done.stderr
