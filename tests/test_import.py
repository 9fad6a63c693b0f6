"""Public names come lazily: the command line must not wait for torch to say how it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import biglittle


def test_every_public_name_is_there() -> None:
    for name in biglittle.__all__:
        assert getattr(biglittle, name).__name__ == name
    assert set(biglittle.__all__) <= set(dir(biglittle))


@pytest.mark.parametrize("name", ["audit", "tune"])
def test_modules_that_need_no_import_of_their_own(name: str) -> None:
    code = f"import biglittle as b; print(b.{name}.{name}.__name__, {name!r} in dir(b))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{name} True\n"


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        biglittle.laod  # noqa: B018


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from biglittle.cli.main import app\n"
        "done = CliRunner().invoke(app, ['generate', '--help']); print(done.exit_code)\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["0", "[]"]


def test_the_package_is_a_program() -> None:
    command = [sys.executable, "-m", "biglittle", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"biglittle {biglittle.__version__}\n"
