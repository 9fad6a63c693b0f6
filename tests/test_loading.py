"""Loading: folders, GGUF files, adapters, dtypes and devices; and what is refused, in a line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tests.identity.more_models import build
from tests.reports.helpers import bytes_tokenizer, plain, prompt, tokens
from tests.tiny_gguf import tokens_of, write_gguf

import biglittle
from biglittle import BiglittleError, LoadError, Pair, ParameterError, PolicyError
from biglittle.cache import cache_dir

TOKENIZER = bytes_tokenizer(merges=[("t", "h")])


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGLITTLE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def model() -> Any:
    return build("LlamaForCausalLM", vocab_size=len(TOKENIZER))


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its tokenizer, as the hub would have them."""
    path = tmp_path_factory.mktemp("models") / "big"
    model.save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


@pytest.fixture
def spoilt(folder: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "spoilt"))


def refused(call: Any, *words: str, error: type[BiglittleError] = LoadError) -> None:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


# What can be loaded.


def test_a_local_folder(folder: Path, model: Any) -> None:
    for source in (folder, str(folder)):
        pair = biglittle.load(source, "prompt-lookup", device="cpu")
        assert pair.tokenizer.get_vocab() == TOKENIZER.get_vocab()
        result = pair.generate(prompt(), max_new_tokens=8, ignore_eos=True)
        assert tokens(result) == plain(model, prompt(), 8)
    assert (
        repr(pair)
        == f"Pair({str(folder)!r}, draft=prompt-lookup:ngram=3, policy='cost-aware:draft=0,read=0')"
    )


def test_two_folders_and_a_folder_with_a_model_in_memory(folder: Path, model: Any) -> None:
    wanted = plain(model, prompt(), 8)
    for target, draft in ((folder, folder), (model, folder), (folder, model)):
        pair = biglittle.load(target, draft, device="cpu")
        result = pair.generate(prompt(), max_new_tokens=8)
        assert tokens(result) == wanted
        assert result.stats.acceptance_rate == 1.0


def test_an_encoder_decoder_folder(tmp_path: Path) -> None:
    made = build("T5ForConditionalGeneration", decoder_start_token_id=0)
    made.save_pretrained(tmp_path / "t5")
    pair = biglittle.load(tmp_path / "t5", tmp_path / "t5", device="cpu")
    assert type(pair.target).__name__ == "T5ForConditionalGeneration"
    assert pair.tokenizer is None
    assert len(pair.generate([5, 6, 7], max_new_tokens=4).token_ids) == 4


def test_an_audio_folder(tmp_path: Path) -> None:
    build(
        "WhisperForConditionalGeneration",
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=32,
    ).save_pretrained(tmp_path / "whisper")
    pair = biglittle.load(tmp_path / "whisper", device="cpu")
    assert type(pair.target).__name__ == "WhisperForConditionalGeneration"
    features = {"input_features": torch.randn(1, 8, 32)}
    assert len(pair.generate(features, max_new_tokens=4).token_ids) == 4


def test_a_gguf_file(model: Any, tmp_path: Path) -> None:
    write_gguf(model, tokens_of(TOKENIZER), tmp_path / "tiny.gguf")
    pair = biglittle.load(tmp_path / "tiny.gguf", dtype="float32", device="cpu")
    assert len(list((cache_dir() / "gguf").glob("tiny-*"))) == 1  # converted once
    assert pair.target.dtype == torch.float32
    result = pair.generate(prompt(), max_new_tokens=8, ignore_eos=True)
    assert tokens(result) == plain(model, prompt(), 8)
    assert pair.tokenizer("then").input_ids == TOKENIZER("then").input_ids


def test_dtypes(folder: Path) -> None:
    assert biglittle.load(folder, device="cpu").target.dtype == torch.float32  # the checkpoint's
    for name, kind in (("bf16", torch.bfloat16), ("float16", torch.float16)):
        pair = biglittle.load(folder, folder, dtype=name, draft_dtype="fp32", device="cpu")
        assert pair.target.dtype == kind
        assert pair.draft is not None
        assert pair.draft.dtype == torch.float32
    pair = biglittle.load(folder, folder, dtype=torch.float64, device="cpu")
    assert pair.draft is not None
    assert pair.draft.dtype == torch.float64


def test_a_float16_checkpoint_on_a_cpu(folder: Path, model: Any, tmp_path: Path) -> None:
    """Slow and coarse there: bfloat16 in its place."""
    tf.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float16).save_pretrained(tmp_path / "h")
    assert biglittle.load(tmp_path / "h", device="cpu").target.dtype == torch.bfloat16


def test_devices(folder: Path) -> None:
    pair = biglittle.load(folder, folder, device=torch.device("cpu"), draft_device="cpu")
    assert pair.target.device == torch.device("cpu")


@pytest.fixture(scope="module")
def adapter(model: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter of the folder's model, saved."""
    base = tf.LlamaForCausalLM.from_pretrained(folder)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    adapted: Any = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.5)
    path = tmp_path_factory.mktemp("adapter")
    adapted.save_pretrained(path)
    return path


def test_an_adapter_on_the_target(folder: Path, adapter: Path, model: Any) -> None:
    by_option = biglittle.load(folder, folder, adapter=adapter, device="cpu")
    by_folder = biglittle.load(adapter, folder, device="cpu")  # its base is named in it
    written = tokens(by_option.generate(prompt(), max_new_tokens=8))
    assert written != plain(model, prompt(), 8)
    assert tokens(by_folder.generate(prompt(), max_new_tokens=8)) == written
    assert by_folder.tokenizer is not None
    draft = Pair(by_option.draft)  # the little one did not get it
    assert tokens(draft.generate(prompt(), max_new_tokens=8)) == plain(model, prompt(), 8)


def test_an_adapter_that_drafts_is_merged(folder: Path, adapter: Path) -> None:
    pair = biglittle.load(folder, adapter, device="cpu", pack=False)
    target = biglittle.load(adapter, device="cpu", pack=False)  # as a target, it stays apart
    kinds = {type(module).__module__.split(".")[0] for module in pair.draft.modules()}
    assert "peft" not in kinds
    assert pair.draft_name == str(adapter)  # not its base's, for traces of the two differ
    written = tokens(Pair(pair.draft).generate(prompt(), max_new_tokens=8))
    assert written == tokens(target.generate(prompt(), max_new_tokens=8))
    choices: list[dict[str, Any]] = [{"draft_quantize": "int4"}, {"draft_dtype": "bfloat16"}]
    for options in choices:
        other = biglittle.load(folder, adapter, device="cpu", **options)
        assert other.draft_name == str(adapter)
        answer = other.generate(prompt(), policy="static:tokens=3", max_new_tokens=8)
        plain = other.generate(prompt(), policy="none", max_new_tokens=8)
        assert tokens(answer) == tokens(plain)


def test_a_folder_without_a_tokenizer(spoilt: Path, model: Any) -> None:
    for file in spoilt.glob("tokenizer*"):
        file.unlink()
    pair = biglittle.load(spoilt, device="cpu")
    assert tokens(pair.generate(prompt(), max_new_tokens=4)) == plain(model, prompt(), 4)
    refused(lambda: pair.generate("text"), "no tokenizer", "tokenizer=", error=ParameterError)
    given = biglittle.load(spoilt, tokenizer=TOKENIZER, device="cpu")
    assert len(given.generate("text", max_new_tokens=4).token_ids) == 4


def test_models_are_loaded_in_eval_mode(folder: Path) -> None:
    pair = biglittle.load(folder, folder, device="cpu")
    assert pair.draft is not None
    assert not pair.target.training
    assert not pair.draft.training


# What is broken.


@pytest.mark.parametrize("left", [-1000, 100, 4, 0])
def test_weights_that_are_cut_off(spoilt: Path, left: int) -> None:
    weights = spoilt / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:left] if left else b"")
    refused(lambda: biglittle.load(spoilt), str(spoilt), "damaged", "fetch them again")


def test_weights_that_are_something_else(spoilt: Path) -> None:
    (spoilt / "model.safetensors").write_bytes(b"<html>" * 1000)
    refused(lambda: biglittle.load(spoilt), str(spoilt), "damaged")


def test_no_weights(spoilt: Path) -> None:
    (spoilt / "model.safetensors").unlink()
    refused(lambda: biglittle.load(spoilt), str(spoilt), "model.safetensors")


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name, value in changes.items():
        weights.pop(name, None)
        if value is not None:
            weights[name] = value
    save_file(weights, file, metadata={"format": "pt"})


def test_a_weight_that_is_missing(spoilt: Path) -> None:
    """transformers would make it up and only warn."""
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(spoilt, **{name: None})
    refused(lambda: biglittle.load(spoilt), "1 of its weights are missing", name)


def test_a_weight_of_another_shape(spoilt: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(spoilt, **{name: torch.zeros(3, 3)})
    refused(lambda: biglittle.load(spoilt), name, "[3, 3]", "[48, 32]", "config.json")


def test_a_model_without_a_head(tmp_path: Path) -> None:
    bare = tf.LlamaModel(build("LlamaForCausalLM").config)
    bare.save_pretrained(tmp_path / "bare")
    refused(lambda: biglittle.load(tmp_path / "bare"), "lm_head.weight", "language-model head")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "no config.json"),
        ('{"model_type": "lla', "JSON"),
        ("{}", "model_type"),
        ('{"model_type": "llamma"}', "llamma"),
        ('{"model_type": "llama", "hidden_size": "big"}', "hidden_size"),
    ],
)
def test_a_broken_configuration(spoilt: Path, text: str | None, word: str) -> None:
    config = spoilt / "config.json"
    config.unlink()
    if text is not None:
        config.write_text(text)
    refused(lambda: biglittle.load(spoilt), str(spoilt), word)


def test_a_broken_tokenizer(spoilt: Path) -> None:
    (spoilt / "tokenizer.json").write_text('{"model":')
    refused(lambda: biglittle.load(spoilt), str(spoilt))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no model", b"GGUF\0\0"])
def test_a_broken_gguf_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    refused(lambda: biglittle.load(tmp_path / "broken.gguf"), "broken.gguf")


def test_a_gguf_file_that_is_cut_off(model: Any, tmp_path: Path) -> None:
    write_gguf(model, tokens_of(TOKENIZER), tmp_path / "cut.gguf")
    whole = (tmp_path / "cut.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    refused(lambda: biglittle.load(tmp_path / "cut.gguf"), "cut.gguf")


# What is not there.


def test_what_is_not_there(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(lambda: biglittle.load(tmp_path / "nowhere"), "nowhere", "no such file or folder")
    refused(lambda: biglittle.load("./nowhere.gguf"), "nowhere.gguf", "no such file")
    refused(lambda: biglittle.load(tmp_path / "empty"), "no config.json")
    refused(lambda: biglittle.load(folder / "config.json"), "not a GGUF file")
    refused(lambda: biglittle.load(""), "empty")
    refused(lambda: biglittle.load(folder, tmp_path / "nowhere"), "nowhere")
    refused(lambda: biglittle.load(folder, adapter=tmp_path / "empty"), "adapter_config.json")


def test_a_name_that_is_misspelt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biglittle.catalogue.hub_answers", lambda name: False)
    refused(lambda: biglittle.load("smollm2-135m-instrct"), "did you mean 'smollm2-135m-instruct'")
    refused(
        lambda: biglittle.load(folder, "promt-lookup"),
        "did you mean 'prompt-lookup'",
        error=ParameterError,
    )


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"dtype": "float8"}, ["float8", "did you mean 'float32'"]),
        ({"dtype": 3}, ["unknown dtype 3"]),
        ({"draft_dtype": "bfloat"}, ["did you mean 'bfloat16'"]),
        ({"device": "gpu"}, ["'gpu'", "try 'auto' or 'cpu'"]),
        ({"draft_device": "cuda:77"}, ["cuda:77", "not available"]),
        ({"device": 77}, ["77"]),
        ({"tokenizer": 3}, ["int is not a transformers tokenizer"]),
        ({"engine": "lama.cpp"}, ["unknown engine 'lama.cpp'", "did you mean 'llama.cpp'"]),
        ({"engine": "llama.cpp"}, ["runs GGUF files"]),
        ({"draft_engine": "llama.cpp"}, ["runs GGUF files"]),
        ({"llama": {"n_treads": 2}}, ["unknown option 'n_treads'", "did you mean 'n_threads'"]),
        ({"llama": {"n_threads": 0}}, ["n_threads=0"]),
        ({"llama": {"n_ctx": True}}, ["n_ctx=True"]),
        ({"llama": {"type_k": "q9"}}, ["type_k='q9'", "f16"]),
    ],
)
def test_options_that_cannot_be_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], words: list[str]
) -> None:
    """Found out before a model is read."""
    monkeypatch.setattr(
        "biglittle.engines.loading.Recipe.load", lambda self: pytest.fail("a model is read")
    )
    refused(lambda: biglittle.load(folder, folder, **option), *words, error=ParameterError)


def test_a_whole_number_as_dtype(folder: Path) -> None:
    refused(lambda: biglittle.load(folder, dtype=torch.int32), "int32")


def test_the_policy_is_read_first(tmp_path: Path) -> None:
    refused(
        lambda: biglittle.load(tmp_path / "nowhere", policy="dynamc"),
        "did you mean 'dynamic'",
        error=PolicyError,
    )


def test_early_exit_beyond_the_last_layer(folder: Path) -> None:
    refused(
        lambda: biglittle.load(folder, "early-exit:layers=3", device="cpu"),
        "has 3, so give a number from 1 to 2",
        error=ParameterError,
    )
