"""Four-bit drafts: near the weights they stand for, and no token of the target's changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tests.models import build
from torch import nn

import biglittle
from biglittle.engines.transformers.quantizing import (
    GROUP,
    Int4Linear,
    can_quantize,
    quantize_linears,
)

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this build of torch has no int4 kernel")
PROMPT = [5, 9, 11, 40, 2, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 3, 17])
@pytest.mark.parametrize(("outputs", "bias"), [(160, False), (160, True), (97, True)])
def test_a_layer_computes_its_levels(
    dtype: torch.dtype, width: int, outputs: int, bias: bool
) -> None:
    torch.manual_seed(width)
    linear = nn.Linear(96, outputs, bias=bias).to(dtype)
    inputs = torch.randn(2, width, 96, dtype=dtype)
    with torch.inference_mode():
        found = Int4Linear(linear)(inputs).float()
        # What the grid can be off by: half a step at each of a group's inputs.
        groups = linear.weight.float().unflatten(1, (-1, GROUP))
        step = (groups.amax(2) - groups.amin(2)) / 15
        reach = inputs.float().abs().unflatten(2, (-1, GROUP)).sum(3) @ step.T
        rounding = {torch.float32: 0.51, torch.float16: 0.52, torch.bfloat16: 0.6}[dtype]
        exact = nn.functional.linear(
            inputs.float(), linear.weight.float(), linear.bias.float() if bias else None
        )
        assert found.shape == (2, width, outputs)
        assert torch.all((found - exact).abs() <= rounding * reach + 0.02)
        assert (found - exact).std() < 0.1 * exact.std()


def test_weights_of_sixteen_levels_are_kept() -> None:
    linear = nn.Linear(64, 32, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randint(0, 16, (32, 64)) * 0.25 - 1)
        linear.weight[:, ::GROUP] = -1  # every group uses its ends
        linear.weight[:, 1::GROUP] = 2.75
    inputs = torch.randn(3, 64).bfloat16().float()  # what the kernel computes in
    torch.testing.assert_close(Int4Linear(linear)(inputs), linear(inputs), atol=0.05, rtol=0.01)


def test_inputs_that_are_a_part_of_others() -> None:
    """The last position of every row, in the kernel's own type."""
    layer = Int4Linear(nn.Linear(96, 64).bfloat16())
    inputs = torch.randn(3, 5, 96).bfloat16()
    assert not inputs[:, -1:].reshape(-1, 96).is_contiguous()
    torch.testing.assert_close(layer(inputs[:, -1:]), layer(inputs)[:, -1:])


def test_a_constant_group_is_kept() -> None:
    linear = nn.Linear(GROUP, 16, bias=False)
    nn.init.constant_(linear.weight, 0.5)
    inputs = torch.ones(1, GROUP)
    torch.testing.assert_close(Int4Linear(linear)(inputs), linear(inputs))


def test_the_draft_alone_is_quantized_and_the_output_is_the_targets(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path)
    plain = biglittle.load(tmp_path)
    pair = biglittle.load(tmp_path, tmp_path, draft_quantize="int4")
    assert pair.draft is not None
    assert not any(isinstance(module, Int4Linear) for module in pair.target.modules())
    assert any(isinstance(module, Int4Linear) for module in pair.draft.modules())
    expected = plain.generate([PROMPT, PROMPT[:2]], max_new_tokens=24)
    for policy in ("dynamic", "static", "heuristic"):
        found = pair.generate([PROMPT, PROMPT[:2]], policy=policy, max_new_tokens=24)
        assert [row.token_ids for row in found] == [row.token_ids for row in expected]
        assert all(row.stats.drafted for row in found)


def test_layers_that_do_not_fit_are_left_alone() -> None:
    model: Any = nn.Module()
    model.odd, model.even = nn.Linear(40, 16), nn.Linear(64, 16)
    model.get_input_embeddings = lambda: nn.Embedding(1, 1)
    assert quantize_linears(model) == 1
    assert type(model.odd) is nn.Linear
    assert type(model.even) is Int4Linear


def test_a_tied_head_is_quantized_and_its_embedding_is_not() -> None:
    model = build("llama")
    model.lm_head.weight = model.model.embed_tokens.weight
    before = model.model.embed_tokens.weight.clone()
    quantize_linears(model)
    assert type(model.lm_head) is Int4Linear
    assert torch.equal(model.model.embed_tokens.weight, before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft_quantize": "int5"}, ["unknown draft_quantize 'int5'", "did you mean 'int4'"]),
        ({"draft_quantize": "int4", "draft": None}, ["needs a draft model"]),
        ({"draft_quantize": "int4", "draft": "prompt-lookup"}, ["needs a draft model"]),
        ({"draft_quantize": "int4", "draft_device": "meta"}, ["is for a draft on a CPU", "meta"]),
    ],
)
def test_what_cannot_be_quantized_is_refused(
    tmp_path: Path, options: dict[str, Any], words: list[str]
) -> None:
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(biglittle.ParameterError) as caught:
        biglittle.load(tmp_path, **{"draft": tmp_path, **options})
    assert all(word in str(caught.value) for word in words)


def test_a_model_in_memory_is_not_quantized_behind_its_owners_back() -> None:
    with pytest.raises(biglittle.ParameterError, match="a model in memory is used as it is"):
        biglittle.load(build("llama"), build("llama"), draft_quantize="int4")


def test_a_model_without_layers_that_fit_is_refused_by_name(tmp_path: Path) -> None:
    config = tf.LlamaConfig(
        vocab_size=97,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    tf.LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(biglittle.LoadError, match="no linear layer"):
        biglittle.load(tmp_path, tmp_path, draft_quantize="int4")
