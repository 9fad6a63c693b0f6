"""`biglittle convert`, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from biglittle import catalogue

if TYPE_CHECKING:
    from tests.cli.conftest import Run

pytest.importorskip("llama_cpp")

from biglittle.engines.llama_cpp import LlamaModel


def test_the_file_is_printed_and_runs(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    result = run("convert", folders["target"], str(out))
    assert result.exit_code == 0
    assert result.stdout == f"{out}\n"
    assert LlamaModel(out).tokenizer.encode("The model") != []
    assert "bf16, " in result.stderr
    assert "architecture llama, tokenizer gpt2/" in result.stderr
    assert "100 % the same most likely token" in result.stderr
    steps = ["reading", "fitting the tokenizer", "writing", "checking"]
    assert result.stderr.splitlines()[:4] == steps


def test_what_it_wrote_generates_what_the_original_does(
    run: Run, folders: dict[str, str], tmp_path: Path
) -> None:
    out, ask = str(tmp_path / "a.gguf"), ["The big", "-m", "8", "--raw", "-d", "none"]
    assert run("convert", folders["target"], out, "-q", "f32").exit_code == 0
    texts = [
        run("generate", "-t", target, *ask, *more).stdout
        for target, more in ((folders["target"], ["--dtype", "float32"]), (out, []))
    ]
    assert texts[0] == texts[1] != ""


def test_without_the_check(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    result = run("convert", folders["draft"], str(tmp_path / "a.gguf"), "-q", "f16", "--no-check")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[:3] == ["reading", "fitting the tokenizer", "writing"]
    assert "f16, " in result.stderr
    assert "most likely" not in result.stderr


def test_an_existing_file_needs_force(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    out.write_bytes(b"precious")
    result = run("convert", folders["draft"], str(out))
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"error: {out} exists; give another name, or --force to replace it"
    ]
    assert out.read_bytes() == b"precious"
    assert run("convert", folders["draft"], str(out), "--force").exit_code == 0
    assert out.read_bytes().startswith(b"GGUF")


def test_errors_are_a_line(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    result = run("convert", folders["target"], str(tmp_path / "a.gguf"), "--quantize", "q9_0")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: unknown quantization 'q9_0'; known: f32, bf16, ")
    assert len(result.stderr.splitlines()) == 1
    result = run("convert", str(tmp_path / "nowhere"), str(tmp_path / "a.gguf"))
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'nowhere'}: no such file or folder\n"


@pytest.mark.parametrize("quantize", ["q3_k", "q4_k", "Q5_K"])
def test_a_type_without_its_mixture(run: Run, tmp_path: Path, quantize: str) -> None:
    """The medium one is what most people mean, though others are spelt more alike."""
    result = run("convert", "./model", str(tmp_path / "a.gguf"), "-q", quantize)
    assert result.stderr.endswith(f"; did you mean '{quantize.lower()}_m'?\n")


def test_a_name_that_no_file_can_have(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    from biglittle import ParameterError
    from biglittle.engines.llama_cpp.convert import convert

    name = str(tmp_path / f"{'x' * 300}.gguf")
    result = run("convert", folders["draft"], name)
    assert result.exit_code == 2
    assert result.stderr == f"error: {name}: File name too long\n"
    with pytest.raises(ParameterError, match="File name too long; give another name"):
        convert(folders["draft"], name)
    longest = tmp_path / f"{'x' * 250}.gguf"  # the longest that one can
    assert run("convert", folders["draft"], str(longest), "--no-check").exit_code == 0


def test_a_bad_request_is_refused_before_a_model_is_fetched(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(catalogue, "fetch", lambda entry, **_: fetched.append(entry.name))
    result = run("convert", "gemma-3-270m", str(tmp_path / "a.bin"))
    assert result.exit_code == 2
    assert "must end in .gguf" in result.stderr
    assert fetched == []
