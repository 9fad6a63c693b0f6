"""Packed weights: the same bits, held once."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from tests.models import VOCAB, build, encoder_inputs
from torch import nn

import biglittle
from biglittle.engines.transformers.packing import PackedLinear, can_pack, pack_linears

pytestmark = pytest.mark.skipif(not can_pack(), reason="this CPU has no bfloat16 in oneDNN")


@pytest.mark.parametrize("width", [1, 2, 7, 16, 33, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_returns_the_same_bits(width: int, bias: bool) -> None:
    torch.manual_seed(width)
    linear = nn.Linear(96, 160, bias=bias, dtype=torch.bfloat16)
    inputs = torch.randn(2, width, 96, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(PackedLinear(linear)(inputs), linear(inputs))


@pytest.mark.parametrize("name", ["llama", "gemma3", "opt", "t5", "bart"])
def test_a_model_returns_the_same_bits(name: str) -> None:
    model = build(name).to(torch.bfloat16)
    ids = torch.arange(3, 20)[None]
    inputs = {"input_ids": ids}
    if (encoder := encoder_inputs(name, 6)) is not None:
        inputs = {**encoder, "decoder_input_ids": ids}
    with torch.inference_mode():
        before = model(**inputs).logits
        assert pack_linears(model) > 0
        assert torch.equal(model(**inputs).logits, before)


def test_a_packed_model_is_saved_as_it_was() -> None:
    model = build("llama").to(torch.bfloat16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pack_linears(model)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_tied_and_other_weights_are_left_alone() -> None:
    model = build("llama").to(torch.bfloat16)
    model.lm_head.weight = model.model.embed_tokens.weight
    pack_linears(model)
    assert type(model.lm_head) is nn.Linear
    assert pack_linears(build("llama")) == 0  # float32


def test_load_packs_unless_told_not_to(tmp_path: Path) -> None:
    build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    packed = biglittle.load(tmp_path)
    dense = biglittle.load(tmp_path, pack=False)
    kinds = [type(pair.target.model.layers[0].mlp.up_proj) for pair in (packed, dense)]
    assert kinds == [PackedLinear, nn.Linear]
    prompt = [5, 9, 11]
    ours, theirs = (pair.generate(prompt, max_new_tokens=12) for pair in (packed, dense))
    assert ours.token_ids == theirs.token_ids
    assert packed.vocab == VOCAB


def test_models_in_memory_are_left_as_they_are() -> None:
    model = build("llama").to(torch.bfloat16)
    biglittle.load(model)
    assert type(model.model.layers[0].mlp.up_proj) is nn.Linear


def test_early_exit_and_adapters_over_packed_weights(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    build("llama").to(torch.bfloat16).save_pretrained(base)
    config = peft.LoraConfig(target_modules=["q_proj", "up_proj"], r=2, init_lora_weights=False)
    peft.get_peft_model(build("llama").to(torch.bfloat16), config).save_pretrained(adapter)
    found = []
    for pack in (True, False):
        pair = biglittle.load(base, "early-exit:layers=2", adapter=adapter, pack=pack)
        found.append(pair.generate([5, 9, 11], policy="static", max_new_tokens=12).token_ids)
    assert found[0] == found[1]


def test_a_packed_model_can_be_copied() -> None:
    model = build("opt").to(torch.bfloat16)
    pack_linears(model)
    ids = torch.arange(3, 20)[None]
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(model)(ids).logits, model(ids).logits)
