from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from biglittle import __version__, catalogue
from biglittle.cache import cache_dir
from biglittle.errors import LoadError

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """One model of the catalogue that is there already."""
    folder = cache_dir() / "models" / "smollm2-135m-instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0" * 1500)
    return folder


def test_list(run: Run, cached: Path) -> None:
    lines = run("models").stdout.splitlines()
    for entry in catalogue.entries():
        (at,) = (i for i, line in enumerate(lines) if line.startswith(entry.name))
        text = " ".join(lines[at : at + 5])
        here = entry.name == cached.name
        assert text.count("not fetched") == (1 if here else 2)
        assert f"for llama.cpp: GGUF, {entry.quantization}, " in text
        wanted = "bfloat16, unpacked from" if here else "bfloat16, the hub's own, or unpacked from"
        assert f"for transformers: {wanted} {entry.quantization}, " in text
        assert entry.licence in text
        assert entry.hub_id in text
        assert entry.packages[0] in text
    assert lines[-1] == f"cache: {cache_dir()}"


def test_json(run: Run, cached: Path) -> None:
    listed = json.loads(run("models", "--json").stdout)
    assert [one["name"] for one in listed] == [entry.name for entry in catalogue.entries()]
    there = {one["name"]: one["folder"] for one in listed if one["cached"]}
    assert there == {cached.name: str(cached)}
    (size,) = (one["folder_bytes"] for one in listed if one["cached"])
    assert size == 1502
    (quantized,) = (one for one in listed if one["cached"])
    assert (quantized["quantization"], quantized["unpacked"], quantized["gguf"]) == (
        "Q4_1",
        True,
        None,
    )


def test_gguf_files_are_listed_too(run: Run, cached: Path) -> None:
    file = cached.with_name(f"{cached.name}.gguf")
    file.write_bytes(b"0" * 2500)
    listed = json.loads(run("models", "--json").stdout)
    assert [one["gguf"] for one in listed if one["gguf"]] == [str(file)]
    assert f"{cached.name}.gguf (2 kB)" in run("doctor").stdout


def test_folders_of_the_hubs_own_say_so(run: Run, cached: Path) -> None:
    (cached / ".from-hub").touch()
    listed = json.loads(run("models", "--json").stdout)
    assert [one["unpacked"] for one in listed if one["cached"]] == [False]


def test_fetch_prints_the_folder(run: Run, cached: Path) -> None:
    done = run("models", "fetch", "HuggingFaceTB/SmolLM2-135M-Instruct", cached.name)
    assert done.exit_code == 0
    assert done.stdout == f"{cached}\n" * 2


def test_nothing_is_fetched_if_a_name_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "fetch", lambda entry: pytest.fail("it was fetched"))
    assert run("models", "fetch", "smollm2-135m-instruct", "smolm").exit_code == 2


def test_doctor(run: Run, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.5, 0.5))
    found = json.loads(run("doctor", "--json").stdout)
    assert found["versions"]["biglittle"] == __version__
    assert found["versions"]["torch"]
    assert found["compute"]["threads"] == 1
    assert found["compute"]["devices"][0] == "cpu"
    assert found["models"]["cached"] == {cached.name: 1502}
    assert (found["hub"]["offline"], found["hub"]["reachable"]) == (True, False)
    shown = run("doctor").stdout
    for text in (__version__, str(cache_dir()), f"{cached.name} (2 kB)", "offline"):
        assert text in shown
    for hint in found["hints"]:
        assert f"→ {hint}" in shown


def test_doctor_hints_at_what_is_missing(run: Run) -> None:
    hints = "\n".join(json.loads(run("doctor", "--json").stdout)["hints"])
    assert "biglittle models fetch qwen2.5-coder-1.5b-instruct qwen2.5-coder-0.5b-instruct" in hints
    assert "HF_HUB_OFFLINE" in hints


@pytest.mark.parametrize(("load", "busy"), [(6.9, True), (0.1, False)])
def test_doctor_warns_of_a_busy_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch, load: float, busy: bool
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    hints = "\n".join(json.loads(run("doctor", "--json").stdout)["hints"])
    assert ("load 6.9 on 2 cores" in hints) == busy
    assert ("OMP_WAIT_POLICY=passive" in hints) == busy
    assert ("torch uses 1 threads of 2 cores" in hints) == (not busy)


@pytest.mark.parametrize("built", [True, False])
def test_doctor_knows_a_build_whose_kernels_are_unused(
    run: Run, monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    pytest.importorskip("llama_cpp")
    monkeypatch.setattr("biglittle.engines.llama_cpp.binding.has_amx", lambda: built)
    hints = "\n".join(json.loads(run("doctor", "--json").stdout)["hints"])
    assert ("CXXFLAGS='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'" in hints) == built


def test_doctor_says_that_llama_cpp_cannot_be_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise LoadError("it does not fit")

    pytest.importorskip("llama_cpp")
    monkeypatch.setattr("biglittle.engines.llama_cpp.binding.has_amx", fail)
    assert "it does not fit" in json.loads(run("doctor", "--json").stdout)["hints"]


def test_version(run: Run) -> None:
    assert run("--version").stdout == f"biglittle {__version__}\n"


@pytest.mark.parametrize("command", ["", "generate", "chat", "demo", "doctor", "models"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(run: Run, command: str, option: str) -> None:
    done = run(*([command] if command else []), option)
    assert done.exit_code == 0
    assert "Usage: biglittle" in done.stdout.replace("root", "biglittle")


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    done = run()
    assert done.exit_code == 0
    assert 'biglittle generate "Write' in " ".join(done.stdout.split())
