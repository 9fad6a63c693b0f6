"""How much memory is left: of the machine, and of the containers around the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from biglittle.engines.llama_cpp.memory import available_memory

MEMINFO = "MemTotal:       2000 kB\nMemAvailable:   1000 kB\nHugePages_Total:       0\n"
SYSTEM = 1000 * 1024


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(MEMINFO)
    (folder / "self" / "cgroup").write_text("4:memory:/old\n0::/outer/inner\n")
    return folder


def group(folder: Path, limit: str, used: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\nactive_file 5\n")


def test_without_containers(proc: Path, tmp_path: Path) -> None:
    assert available_memory(proc, tmp_path / "groups") == SYSTEM
    group(tmp_path / "groups" / "outer" / "inner", "max", 900_000)
    assert available_memory(proc, tmp_path / "groups") == SYSTEM


def test_the_narrowest_group_counts(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    group(groups / "outer" / "inner", "900000", 300_000, inactive=50_000)
    assert available_memory(proc, groups) == 650_000
    group(groups / "outer", "800000", 700_000)
    assert available_memory(proc, groups) == 100_000
    group(groups / "outer", "800000", 900_000)
    assert available_memory(proc, groups) == 0


def test_a_container_that_sees_its_own_group_as_the_root(proc: Path, tmp_path: Path) -> None:
    group(tmp_path / "groups", "500000", 100_000)
    assert available_memory(proc, tmp_path / "groups") == 400_000


def test_a_group_does_not_give_what_the_machine_has_not(proc: Path, tmp_path: Path) -> None:
    group(tmp_path / "groups" / "outer" / "inner", str(10**12), 1)
    assert available_memory(proc, tmp_path / "groups") == SYSTEM


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) is None
