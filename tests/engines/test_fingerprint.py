"""A model's weights are known again however they are loaded, and others are not taken for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.models import build

from biglittle import Pair
from biglittle.engines import open_model
from biglittle.engines.transformers.cut_head import cut_head
from biglittle.engines.transformers.packing import can_pack, pack_linears
from biglittle.engines.transformers.quantizing import can_quantize, quantize_linears
from biglittle.errors import ParameterError
from biglittle.traces.base import check_models, describe

NAMES = ["llama", "t5"]


def found(model: Any) -> str:
    return open_model(model).fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_the_same_weights_have_one(name: str) -> None:
    model = build(name)
    one = found(model)
    assert found(copy.deepcopy(model)) == one
    assert found(model.to(torch.bfloat16)) == one
    if can_pack():
        assert pack_linears(model)
        assert found(model) == one
        assert found(copy.deepcopy(model)) == one


def trained(model: Any) -> Any:
    weight = list(model.parameters())[-3]
    with torch.no_grad():
        weight.mul_(1.1)
    return model


def quantized(model: Any) -> Any:
    if not can_quantize():
        pytest.skip("this build of torch has no int4 kernel")
    quantize_linears(model)
    return model


def adapted(model: Any) -> Any:
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))


def cut(model: Any) -> Any:
    cut_head(model, range(3, 20))
    return model


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [trained, quantized, adapted, cut])
def test_other_weights_have_another(name: str, change: Callable[[Any], Any]) -> None:
    one = found(build(name))
    other = found(change(build(name)))
    assert other != one
    assert found(build(name, seed=9)) not in (one, other)


def test_a_trained_adapter_has_another() -> None:
    model = adapted(build("llama"))
    one = found(model)
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_B" in name).add_(0.1)
    assert found(model) != one


def test_a_pair_is_known_by_its_weights_and_not_by_their_names() -> None:
    models = describe(Pair(build("llama"), build("llama", seed=1)))
    moved = {**models, "target": "elsewhere", "draft": "there"}
    check_models(moved, Pair(build("llama"), build("llama", seed=1)), "it", "do it anew")
    for pair, words in (
        (Pair(build("llama"), build("llama", seed=2)), "other weights of the draft"),
        (Pair(build("llama", seed=2), build("llama", seed=1)), "other weights of the target"),
        (Pair(build("llama"), "prompt-lookup"), "another draft"),
    ):
        with pytest.raises(ParameterError, match=words):
            check_models(models, pair, "it", "do it anew")
    lookup = describe(Pair(build("llama"), "prompt-lookup:ngram=3"))
    check_models(lookup, Pair(build("llama"), "prompt-lookup:ngram=3"), "it", "do it anew")
    with pytest.raises(ParameterError, match="another draft"):
        check_models(lookup, Pair(build("llama"), "prompt-lookup:ngram=2"), "it", "do it anew")
