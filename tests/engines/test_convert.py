"""From a Hugging Face folder to a GGUF file: tiny models of every family, against transformers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as tf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from biglittle.engines.base import Prompt
from biglittle.engines.transformers import loading
from biglittle.errors import LoadError, ParameterError, UnsupportedModelError

pytest.importorskip("llama_cpp")

from biglittle.engines.llama_cpp import LlamaModel, read_tokenizer
from biglittle.engines.llama_cpp import context as contexts
from biglittle.engines.llama_cpp import convert as module
from biglittle.engines.llama_cpp.binding import library
from biglittle.engines.llama_cpp.conversion import architectures, checkpoint
from biglittle.engines.llama_cpp.conversion.comparison import closeness
from biglittle.engines.llama_cpp.conversion.vocabulary import SAMPLES
from biglittle.engines.llama_cpp.convert import convert

HEAD = 640  # entries; the tokenizers have fewer tokens
EXACT = {"type_k": "f32", "type_v": "f32", "flash_attn": False}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}"
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# --- Tokenizers ---------------------------------------------------------------------------------


def _byte_level(*before: Any, regex: bool = False) -> Any:
    """Byte-level BPE that splits as it is told before; by its own regular expression at last."""
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, last])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|bos|>", "<|end|>", "<|stop|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLES * 3, trainer)
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def _split(numbers: str) -> Any:
    return pre_tokenizers.Split(Regex(LETTERS + numbers + REST), "isolated")


SPLITS: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: _byte_level(_split(r"\p{N}")),
    "llama-bpe": lambda: _byte_level(_split(r"\p{N}{1,3}")),
    "smollm": lambda: _byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True),
    "gpt-2": lambda: _byte_level(regex=True),
}


def _sentencepiece(space: bool = False, metaspace: bool = False) -> Any:
    """BPE over characters, with bytes to fall back on."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    marks: list[Any] = [normalizers.Replace(" ", "▁")]
    if space:
        marks.insert(0, normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence(marks)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>", "<bos>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz▁"),
        limit_alphabet=90,
        show_progress=False,
    )
    words = [word for text in SAMPLES for word in text.split()]
    tokenizer.train_from_iterator(words * 3, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = data["added_tokens"][:3]  # bytes are ordinary tokens
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if metaspace:
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    return tokenizer


def _fast(tokenizer: Any, bos: str, end: str, template: Any = TEMPLATE) -> Any:
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=end)
    fast.chat_template = template
    return fast


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return _fast(SPLITS["qwen2"](), "<|bos|>", "<|end|>")


# --- Models -------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "vocab_size": HEAD,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-4,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LOCAL = {"rope_type": "default", "rope_theta": 100.0}
GEMMA = {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {"full_attention": LINEAR, "sliding_attention": LOCAL},
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 32}),
    "llama-3.1": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma3": ("Gemma3", GEMMA),
}


def _model(kind: str, **changes: Any) -> Any:
    """A random model whose logits are spread, and in which nothing is neutral."""
    family, settings = KINDS[kind]
    text = "Text" * (family == "Gemma3")
    config = getattr(tf, f"{family}{text}Config")(**{**SMALL, **settings, **changes})
    torch.manual_seed(0)
    model = getattr(tf, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * (0.5 if "bias" in name else 0.1))
    return model


def _save(folder: Path, model: Any, tokenizer: Any) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> dict[str, tuple[Any, Path]]:
    """Every kind: the model in memory, and what it was converted to in float32."""
    root = tmp_path_factory.mktemp("converted")
    found = {}
    for kind in KINDS:
        model = _model(kind)
        folder = _save(root / kind, model, tokenizer)
        report = convert(folder, root / f"{kind}.gguf", "f32")
        assert report.closeness is not None
        assert report.closeness.error < (5e-4 if kind == "gemma3" else 1e-4)  # its GELU is a table
        assert report.closeness.agreement == 1.0
        found[kind] = model, report.path
    return found


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Path:
    return _save(tmp_path / "model", _model("llama"), tokenizer)


def _change(folder: Path, **changes: Any) -> None:
    """Change a model's configuration, and nothing else."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# --- What llama.cpp computes --------------------------------------------------------------------


def _ids(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(3, 600, (length,), generator=generator).tolist()
    return found


@torch.inference_mode()
def _wanted(model: Any, tokens: list[int], last: int) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens])).logits[0, -last:]
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_rows_have_the_logits_of_the_original(
    made: dict[str, tuple[Any, Path]], kind: str
) -> None:
    model, path = made[kind]
    runner = LlamaModel(path, EXACT).runner()
    rows, more = [_ids(20, 1), _ids(7, 2)], [_ids(5, 3), _ids(2, 4)]
    for row in rows:
        first = runner.admit(Prompt(tuple(row)))
        assert closeness(_wanted(model, row, 1), first.view(1, -1)).error < 1e-3
    tokens = torch.tensor([more[0], more[1] + [0] * 3])
    logits = runner.forward(tokens, [5, 2])
    for at, (row, new) in enumerate(zip(rows, more, strict=True)):
        wanted = _wanted(model, row + new, len(new))
        assert closeness(wanted, logits[at, : len(new)]).error < 1e-3


@pytest.mark.parametrize("shared", [20, 290])
def test_what_a_sliding_window_hid_is_not_taken_for_what_was_read(
    made: dict[str, tuple[Any, Path]], monkeypatch: pytest.MonkeyPatch, shared: int
) -> None:
    monkeypatch.setattr(contexts, "FIRST_CELLS", 256)
    model, path = made["gemma3"]
    ids = _ids(290, 6)
    runner = LlamaModel(path, EXACT).runner()
    runner.admit(Prompt(tuple(ids[:250])))
    runner.forward(torch.tensor([ids[250:]]), [40])  # into a larger context
    saved = runner.save(0, ids)
    prompt = [*ids[:shared], 7]
    logits = runner.admit(Prompt(tuple(prompt)), saved)
    assert closeness(_wanted(model, prompt, 1), logits).error < 1e-3
    runner.truncate([251, shared])
    logits = runner.forward(torch.tensor([[8], [7]]), [1, 1])
    assert closeness(_wanted(model, prompt, 1), logits[1]).error < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_the_original(
    made: dict[str, tuple[Any, Path]], kind: str
) -> None:
    model, path = made[kind]
    prompt = _ids(12, 5)
    settings = tf.GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=0)
    wanted = model.generate(torch.tensor([prompt]), generation_config=settings)[0, 12:].tolist()
    runner = LlamaModel(path, EXACT).runner()
    token = int(runner.admit(Prompt(tuple(prompt))).view(-1).argmax())
    given = [token]
    while len(given) < len(wanted):
        token = int(runner.forward(torch.tensor([[token]]), [1])[0, 0].argmax())
        given.append(token)
    assert given == wanted


def _tensors(path: Path) -> dict[str, gguf.GGMLQuantizationType]:
    return {tensor.name: tensor.tensor_type for tensor in gguf.GGUFReader(path).tensors}


def _value(path: Path, key: str) -> Any:
    field = gguf.GGUFReader(path).get_field(key)
    return None if field is None else field.contents()


def test_a_tied_head_is_left_out_and_another_is_not(made: dict[str, tuple[Any, Path]]) -> None:
    assert "output.weight" not in _tensors(made["llama"][1])
    assert "output.weight" in _tensors(made["qwen2"][1])


def test_a_head_that_is_there_and_differs_is_not_tied(tmp_path: Path, tokenizer: Any) -> None:
    folder = _save(tmp_path / "model", _model("qwen3"), tokenizer)
    _change(folder, tie_word_embeddings=True)
    assert "output.weight" in _tensors(convert(folder, tmp_path / "a.gguf", "f32").path)


def test_weights_may_lie_in_several_files(tmp_path: Path, tokenizer: Any) -> None:
    model = _model("qwen2")
    model.save_pretrained(tmp_path / "model", max_shard_size="100KB")
    tokenizer.save_pretrained(tmp_path / "model")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    report = convert(tmp_path / "model", tmp_path / "a.gguf", "f32")
    assert report.closeness is not None
    assert report.closeness.error < 1e-4


# --- Types --------------------------------------------------------------------------------------


def test_an_adapter_is_merged_into_its_model(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(tf.AutoModelForCausalLM.from_pretrained(folder), config)
    adapted.peft_config["default"].base_model_name_or_path = str(folder)
    adapted.save_pretrained(tmp_path / "adapter")
    found = convert(tmp_path / "adapter", tmp_path / "out.gguf", "f32")
    whole = _save(tmp_path / "whole", adapted.merge_and_unload(), tokenizer)
    wanted = convert(whole, tmp_path / "whole.gguf", "f32")
    parts = [gguf.GGUFReader(made.path).tensors for made in (found, wanted)]
    for one, other in zip(*parts, strict=True):
        assert one.name == other.name
        assert np.array_equal(one.data, other.data)
    assert not list(tmp_path.glob(".out*"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A model whose rows are long enough for every type."""
    model = _model("qwen2", hidden_size=256, intermediate_size=512, num_hidden_layers=2)
    return _save(tmp_path_factory.mktemp("wide") / "model", model.bfloat16(), tokenizer)


@pytest.mark.parametrize(
    ("quantize", "bound"),
    [("bf16", 0.05), ("F16", 0.05), ("q8_0", 0.1), ("q6_k", 0.2), ("q4_k_m", 0.8), ("q4_0", 0.8)],
)
def test_types(wide: Path, tmp_path: Path, quantize: str, bound: float) -> None:
    report = convert(wide, tmp_path / "a.gguf", quantize)
    assert report.closeness is not None
    assert 0 < report.closeness.error < bound
    assert report.bytes == report.path.stat().st_size
    kind = quantize.lower().removesuffix("_m").upper()
    assert _tensors(report.path)["blk.0.ffn_up.weight"].name == kind
    assert _tensors(report.path)["blk.0.attn_norm.weight"].name == "F32"
    assert list(tmp_path.iterdir()) == [report.path]
    LlamaModel(report.path).runner().admit(Prompt((1, 2, 3)))


def test_coarser_types_are_smaller_and_farther(wide: Path, tmp_path: Path) -> None:
    reports = [convert(wide, tmp_path / f"{q}.gguf", q) for q in ("bf16", "q8_0", "q4_0")]
    sizes = [report.bytes for report in reports]
    errors = [report.closeness.error for report in reports if report.closeness]
    assert sizes == sorted(sizes, reverse=True)
    assert errors == sorted(errors)


# --- Tokenizers ---------------------------------------------------------------------------------


def _same_tokens(original: Any, path: Path) -> bool:
    converted = read_tokenizer(path)
    return all(
        converted.encode(text, add_special_tokens=special)
        == original(text, add_special_tokens=special)["input_ids"]
        for text in [*SAMPLES, "Something 12345 else, 3 times:\n\n  <|end|> done<tool>."]
        for special in (True, False)
    )


@pytest.mark.parametrize("pre", SPLITS)
def test_the_way_of_splitting_is_found(tmp_path: Path, pre: str) -> None:
    original = _fast(SPLITS[pre](), "<|bos|>", "<|end|>")
    folder = _save(tmp_path / "model", _model("llama"), original)
    report = convert(folder, tmp_path / "a.gguf", "f32")
    assert report.tokenizer == f"gpt2/{pre}"
    assert _same_tokens(original, report.path)


@pytest.mark.parametrize("space", [False, True])
def test_sentencepiece_like_tokenizers(tmp_path: Path, space: bool) -> None:
    original = _fast(_sentencepiece(space), "<bos>", "<end>")
    folder = _save(tmp_path / "model", _model("llama"), original)
    report = convert(folder, tmp_path / "a.gguf", "f32")
    assert report.tokenizer == "llama/default"
    assert _value(report.path, "tokenizer.ggml.add_space_prefix") is space
    assert _same_tokens(original, report.path)
    assert read_tokenizer(report.path).encode("a")[0] == original.bos_token_id
    kinds = _value(report.path, "tokenizer.ggml.token_type")
    assert kinds[original.convert_tokens_to_ids("<0x0A>")] == gguf.TokenType.BYTE
    assert kinds[original.convert_tokens_to_ids("<unk>")] == gguf.TokenType.UNKNOWN


def test_spaces_that_transformers_leaves_out(tmp_path: Path) -> None:
    """llama.cpp has one before every piece of a text, as SentencePiece; Metaspace not always."""
    original = _fast(_sentencepiece(metaspace=True), "<bos>", "<end>")
    folder = _save(tmp_path / "model", _model("llama"), original)
    report = convert(folder, tmp_path / "a.gguf", "f32")
    assert report.difference is not None
    assert report.difference.startswith("in '  two spaces")
    converted = read_tokenizer(report.path)
    for text in SAMPLES:
        same = converted.encode(text) == original(text)["input_ids"]
        assert same or text.startswith(" ")


def test_tokens_have_their_types_and_ids(made: dict[str, tuple[Any, Path]], tokenizer: Any) -> None:
    path = made["llama"][1]
    names, kinds = (_value(path, f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    assert len(names) == len(kinds) == HEAD
    assert names[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert set(kinds[len(tokenizer) :]) == {gguf.TokenType.UNUSED}
    assert kinds[tokenizer.eos_token_id] == gguf.TokenType.CONTROL
    assert kinds[tokenizer.convert_tokens_to_ids("<tool>")] == gguf.TokenType.USER_DEFINED
    assert read_tokenizer(path).get_vocab() == tokenizer.get_vocab()
    assert read_tokenizer(path).eos_token_id == tokenizer.eos_token_id
    assert read_tokenizer(path).chat_template == TEMPLATE


def test_all_that_ends_a_text_ends_it(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    ends = [tokenizer.convert_tokens_to_ids("<|stop|>"), tokenizer.eos_token_id]
    tf.GenerationConfig(eos_token_id=ends).save_pretrained(folder)
    path = convert(folder, tmp_path / "a.gguf").path
    assert set(ends) <= set(read_tokenizer(path).end_ids)
    assert read_tokenizer(path).eos_token_id == tokenizer.eos_token_id


def test_several_chat_templates(tmp_path: Path, tokenizer: Any) -> None:
    named = _fast(SPLITS["qwen2"](), "<|bos|>", "<|end|>", {"default": TEMPLATE, "tool_use": "x"})
    folder = _save(tmp_path / "model", _model("llama"), named)
    path = convert(folder, tmp_path / "a.gguf").path
    assert read_tokenizer(path).chat_template == TEMPLATE
    assert _value(path, "tokenizer.chat_template.tool_use") == "x"


def test_the_authors_sampling_is_kept(folder: Path, tmp_path: Path) -> None:
    assert _value(convert(folder, tmp_path / "a.gguf").path, "general.sampling.temp") is None
    settings = tf.GenerationConfig(do_sample=True, temperature=0.7, top_k=20, top_p=0.8)
    settings.save_pretrained(folder)
    config = LlamaModel(convert(folder, tmp_path / "b.gguf").path).generation_config
    assert config.do_sample
    assert (round(config.temperature, 3), config.top_k, round(config.top_p, 3)) == (0.7, 20, 0.8)


# --- What is refused ----------------------------------------------------------------------------


def _refused(folder: Path, tmp_path: Path, message: str, quantize: str = "bf16") -> None:
    """It is refused in a line, and nothing is left of it."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises((LoadError, UnsupportedModelError), match=message) as caught:
        convert(folder, tmp_path / "out.gguf", quantize)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("llama", {"rope_parameters": {**LLAMA3, "rope_type": "dynamic"}}, "scaling 'dynamic'"),
        ("llama", {"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantized weights"),
        ("qwen2", {"rope_parameters": LLAMA3}, "RoPE scaling 'llama3'"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
            "of 9",
        ),
        ("mistral", {"sliding_window": 100}, "sliding window of 100 tokens"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "capped attention scores"),
        ("gemma3", {"query_pre_attn_scalar": 16}, "scale of attention scores"),
        ("gemma3", {"use_bidirectional_attention": True}, "bidirectional"),
        ("llama", {"num_hidden_layers": 0}, "its 0 layers"),
        ("llama", {"max_position_embeddings": 1}, "its context of 1"),
    ],
)
def test_settings_that_llama_cpp_does_not_have(
    tmp_path: Path, tokenizer: Any, kind: str, changes: dict[str, Any], message: str
) -> None:
    folder = _save(tmp_path / "model", _model(kind), tokenizer)
    if kind == "qwen2":  # what follows from the changes
        file = folder / "config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps({k: v for k, v in config.items() if k != "layer_types"}))
    _change(folder, **changes)
    _refused(folder, tmp_path, message)


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path, tokenizer: Any) -> None:
    folder = _save(tmp_path / "model", _model("mistral", sliding_window=512), tokenizer)
    assert convert(folder, tmp_path / "a.gguf").architecture == "llama"


def test_another_architecture(tmp_path: Path, tokenizer: Any) -> None:
    model = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=HEAD, n_embd=32, n_layer=1, n_head=2))
    folder = _save(tmp_path / "model", model, tokenizer)
    known = r"Llama, Mistral, Qwen 2, Qwen 3, Gemma 3 \(text\)"
    _refused(folder, tmp_path, f"architecture 'gpt2'; known: {known}")


def test_a_way_of_splitting_that_llama_cpp_does_not_have(tmp_path: Path) -> None:
    original = _fast(_byte_level(pre_tokenizers.Split("e", "isolated")), "<|bos|>", "<|end|>")
    folder = _save(tmp_path / "model", _model("llama"), original)
    _refused(folder, tmp_path, "cannot tokenize as it does: in ")


def test_another_kind_of_tokenizer(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"<|bos|>": 0, "<|end|>": 1, "a": 2}, unk_token="a"))
    folder = _save(tmp_path / "model", _model("llama"), _fast(words, "<|bos|>", "<|end|>"))
    _refused(folder, tmp_path, r"its tokenizer \(WordLevel\); known: byte-level BPE")


def test_a_tokenizer_that_does_not_fit(tmp_path: Path, tokenizer: Any) -> None:
    folder = _save(tmp_path / "model", _model("llama", vocab_size=320), tokenizer)
    _refused(folder, tmp_path, "but its head has 320 entries")


def test_no_end_of_sequence(tmp_path: Path) -> None:
    bare = tf.PreTrainedTokenizerFast(tokenizer_object=SPLITS["qwen2"]())
    folder = _save(tmp_path / "model", _model("llama", eos_token_id=None), bare)
    _refused(folder, tmp_path, "end-of-sequence token")


def test_no_tokenizer(tmp_path: Path) -> None:
    _model("llama").save_pretrained(tmp_path / "model")
    _refused(tmp_path / "model", tmp_path, "the folder has no tokenizer")


def test_rows_that_cannot_be_quantized(tmp_path: Path, tokenizer: Any) -> None:
    folder = _save(tmp_path / "model", _model("llama", intermediate_size=80), tokenizer)
    _refused(folder, tmp_path, r"down_proj.weight has rows of 80 values, and q4_0 takes 32", "q4_0")


def test_weights_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    _change(folder, num_hidden_layers=4)
    _refused(folder, tmp_path, r"tensor model.layers.3.* is missing")
    _change(folder, num_hidden_layers=3, intermediate_size=128)
    _refused(folder, tmp_path, r"has shape \[96, 64\], but by config.json it is \[128, 64\]")
    (folder / "model.safetensors").write_bytes(b"\x10" + bytes(30))
    _refused(folder, tmp_path, "model.safetensors is damaged")
    (folder / "model.safetensors").unlink()
    _refused(folder, tmp_path, "there is no model.safetensors; weights must be safetensors")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("generation_config.json", "{", "is not a valid JSON file"),
        ("generation_config.json", "[1]", "cannot load .*not a mapping"),
        (
            "generation_config.json",
            '{"do_sample": true, "temperature": "hot"}',
            "in its generation_config.json, temperature='hot' must be a number",
        ),
        ("generation_config.json", '{"eos_token_id": 999}', "ends with id 999, but its head has"),
        ("model.safetensors.index.json", "{", "index.json is damaged"),
        ("model.safetensors.index.json", "{}", "index.json is damaged"),
        ("model.safetensors.index.json", "[]", "index.json is damaged"),
    ],
)
def test_files_that_are_damaged(
    folder: Path, tmp_path: Path, file: str, content: str, message: str
) -> None:
    (folder / file).write_text(content)
    _refused(folder, tmp_path, message)


def test_weights_that_may_not_be_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise FileNotFoundError("what safetensors says of a file without permission, too")

    monkeypatch.setattr(checkpoint, "safe_open", refuse)
    _refused(folder, tmp_path, "model.safetensors cannot be read")


def test_bytes_that_a_tokenizer_does_not_have(tmp_path: Path) -> None:
    data = json.loads(_sentencepiece().to_str())
    data["model"]["vocab"]["<another>"] = data["model"]["vocab"].pop("<0xF0>")
    original = _fast(Tokenizer.from_str(json.dumps(data)), "<bos>", "<end>")
    folder = _save(tmp_path / "model", _model("llama"), original)
    _refused(folder, tmp_path, "does not have all 256")


def test_what_is_no_model(tmp_path: Path) -> None:
    _refused(tmp_path / "nothing", tmp_path, "no such file or folder")
    (tmp_path / "empty").mkdir()
    _refused(tmp_path / "empty", tmp_path, "no config.json")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    _refused(tmp_path / "a.gguf", tmp_path, "a file; convert reads a Hugging Face folder")
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    _refused(tmp_path / "empty", tmp_path, "names no base model")


@pytest.mark.parametrize(
    ("out", "quantize", "message"),
    [
        ("out.bin", "bf16", r"must end in \.gguf"),
        ("out.gguf", "q4", "unknown quantization 'q4'; known: f32, bf16, .*; did you mean 'q4_"),
        ("out.gguf", None, "unknown quantization 'none'"),
        ("nowhere/out.gguf", "bf16", "nowhere: no such folder"),
        ("folder.gguf", "bf16", "is a folder"),
        ("there.gguf", "bf16", "exists; give another name, or force=True"),
    ],
)
def test_requests_that_cannot_be_met(
    folder: Path, tmp_path: Path, out: str, quantize: Any, message: str
) -> None:
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "there.gguf").write_bytes(b"precious")
    with pytest.raises((ParameterError, LoadError), match=message):
        convert(folder, tmp_path / out, quantize)
    assert (tmp_path / "there.gguf").read_bytes() == b"precious"


def test_force_replaces_what_is_there(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"old")
    report = convert(folder, tmp_path / "a.gguf", force=True, check=False)
    assert report.closeness is None
    assert LlamaModel(report.path).vocab == HEAD


def test_a_full_disk(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100_000))
    _refused(folder, tmp_path, r"needs 0\.0 GB of free disk space", "q8_0")


def test_a_folder_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "TemporaryDirectory", refuse)
    _refused(folder, tmp_path, r"cannot write there \(Permission denied\)")


def test_a_disk_that_is_full_in_the_middle(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", refuse)
    _refused(folder, tmp_path, r"cannot write there \(No space left on device\)")


def test_a_name_that_is_no_unicode(wide: Path, tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf"))
    assert LlamaModel(convert(wide, out, "q8_0").path).vocab == HEAD


def test_no_llama_cpp(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    _refused(folder, tmp_path, r"needs llama-cpp-python: pip install 'biglittle\[llama\]'")


def test_quantizing_that_fails_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.QUANTIZED, "q4_0", gguf.LlamaFileType.GUESSED)
    with pytest.raises(Exception, match="could not quantize to q4_0: .*invalid output file type"):
        convert(folder, tmp_path / "a.gguf", "q4_0")
    assert list(tmp_path.iterdir()) == [folder]


# --- What a wrong conversion would do -----------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "quantize"),
    [("llama", "f32"), ("llama", "bf16"), ("gemma3", "bf16"), ("mistral", "q4_0")],
)
def test_a_wrong_conversion_is_found_and_removed(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, kind: str, quantize: str
) -> None:
    """Heads are left as they are, norms without their 1."""
    folder = _save(tmp_path / "model", _model(kind).bfloat16(), tokenizer)
    monkeypatch.setattr(architectures, "_maker", lambda *_: lambda tensor: tensor)
    (tmp_path / "out.gguf").write_bytes(b"old")
    with pytest.raises(UnsupportedModelError, match="computes something else"):
        convert(folder, tmp_path / "out.gguf", quantize, force=True)
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out.gguf"]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("llama", {"rms_norm_eps": 0.5}),
        ("llama-linear", {"rope_parameters": {**LINEAR, "factor": 1.0}}),
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
        ("gemma3", {"sliding_window": 64}),
    ],
)
def test_wrong_metadata_is_found(
    tmp_path: Path,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    wrong: dict[str, Any],
) -> None:
    """In 16 bits too, where rounding must be told from mistakes."""
    folder = _save(tmp_path / "model", _model(kind).bfloat16(), tokenizer)
    right = architectures.write_config
    changed = _model(kind, **wrong).config
    monkeypatch.setattr(
        module, "write_config", lambda writer, _, family: right(writer, changed, family)
    )
    _refused(folder, tmp_path, "computes something else")


def test_wrong_frequencies_are_found(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _save(tmp_path / "model", _model("llama-3.1"), tokenizer)
    monkeypatch.setattr(architectures, "_frequency_factors", lambda config: torch.ones(8))
    _refused(folder, tmp_path, "computes something else", "f32")


# --- From elsewhere -----------------------------------------------------------------------------


def test_a_hub_id_is_downloaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    hub_id, locate = "someone/model", loading.locate
    monkeypatch.setattr(
        loading, "locate", lambda name, *_: name if name == hub_id else locate(name)
    )

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        return str(folder)

    monkeypatch.setattr(module, "snapshot_download", download)
    report = convert(hub_id, tmp_path / "a.gguf")
    assert asked == [hub_id]
    assert _value(report.path, "general.name") == "model"


def test_progress_is_told(folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    convert(folder, tmp_path / "a.gguf", "q8_0", progress=lambda *what: told.append(what))
    steps = list(dict.fromkeys(what for what, *_ in told))
    assert steps == ["reading", "fitting the tokenizer", "writing", "quantizing", "checking"]
    assert all(0 <= done <= total for what, done, total in told if what == "writing")


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["bf16", "q4_0"])
def test_smollm2(smollm2_dir: Path, tmp_path: Path, quantize: str) -> None:
    report = convert(smollm2_dir, tmp_path / "a.gguf", quantize)
    assert report.closeness is not None
    assert report.tokenizer == "gpt2/smollm"
    assert report.closeness.divergence < {"bf16": 0.01, "q4_0": 0.6}[quantize]
