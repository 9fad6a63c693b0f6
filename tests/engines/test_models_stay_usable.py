"""A model that a pair has used is as good as before."""

from __future__ import annotations

import pickle

import pytest
import torch
from tests.models import build, encoder_inputs

from biglittle import Pair


@pytest.mark.parametrize("name", ["llama", "t5", "bart"])
def test_pickles_and_decodes_the_same_afterwards(name: str) -> None:
    model = build(name)
    prompts = [[5, 6, 7], [8, 9]]
    if (encoder := encoder_inputs(name, 6)) is not None:
        prompts = [encoder, encoder_inputs(name, 4, 1)]  # type: ignore[list-item]
    before = [result.token_ids for result in Pair(model).generate(prompts, max_new_tokens=8)]
    again = pickle.loads(pickle.dumps(model))
    assert [r.token_ids for r in Pair(again).generate(prompts, max_new_tokens=8)] == before


def test_adapters_loaded_for_inference_stay_so() -> None:
    peft = pytest.importorskip("peft")
    base = build("llama")
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    model = peft.get_peft_model(base, config)
    model.requires_grad_(False)
    Pair(model, base).generate([5, 6, 7], max_new_tokens=8, policy="static")
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with torch.inference_mode():  # and they act again
        ids = torch.tensor([[5, 6, 7]])
        with model.disable_adapter():
            plain = base(ids).logits
        assert not torch.allclose(model(ids).logits, plain)
