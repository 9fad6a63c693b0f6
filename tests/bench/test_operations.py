"""Operations and bytes, against counts made by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from tests.bench.common import folders, pair
from tests.models import T5, build

from biglittle import Pair
from biglittle.bench.operations import Operations, Shape, Shapes, Weights, operations, shapes_of
from biglittle.engines.transformers.exit_adapter import ExitAdapter
from biglittle.engines.transformers.quantizing import GROUP, can_quantize

# tests.cli.conftest.save_model: width 32, 4 heads of 8, 2 of them with keys and values, 48 inside.
ATTENTION = 2 * 32 * 32 + 2 * 32 * 16
LAYER = ATTENTION + 3 * 32 * 48 + 2 * 32
FLOAT = 4


def vocab() -> int:
    return int(pair().target.config.vocab_size)


def test_the_shape_of_a_llama() -> None:
    shapes = shapes_of(pair())
    assert shapes is not None
    assert shapes.draft is not None
    count = 2 * LAYER + 32  # two layers and the last norm
    assert shapes.target.layers == Weights(count, FLOAT * count)
    assert shapes.target.head == Weights(vocab() * 32, FLOAT * vocab() * 32)
    assert shapes.target.windows == (0, 0)
    assert shapes.target.queries == 32
    assert shapes.target.cache == 2 * 16 * FLOAT
    assert shapes.target.encoder == Weights()
    assert shapes.draft.layers.count == LAYER + 32
    assert not shapes.early_exit


def test_a_tied_head_counts_and_an_embedding_does_not() -> None:
    model = build("llama")
    model.tie_weights()
    shapes = shapes_of(Pair(model))
    assert shapes is not None
    inside = sum(p.numel() for n, p in model.model.named_parameters() if "embed" not in n)
    assert shapes.target.layers.count == inside
    assert shapes.target.head.count == model.lm_head.weight.numel()


def test_sliding_windows_are_no_longer_than_they_are() -> None:
    shapes = shapes_of(Pair(build("gemma3")))
    assert shapes is not None
    assert shapes.target.windows == (8, 0, 8)
    near, far = (shapes.target.run(cached, 1, 1).bytes for cached in (20, 120))
    assert far - near == 100 * shapes.target.cache  # of the one layer that sees all


@pytest.mark.parametrize("name", ["gpt2", "opt", "gpt_neox", "falcon", "phi", "qwen2"])
def test_other_architectures(name: str) -> None:
    model = build(name)
    shapes = shapes_of(Pair(model))
    assert shapes is not None
    looked_up = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    head = model.get_output_embeddings()
    parameters = {id(p): p for p in model.parameters()}
    own = sum(p.numel() for i, p in parameters.items() if i not in looked_up)
    own += 0 if id(head.weight) not in looked_up else head.weight.numel()
    assert shapes.target.layers.count + shapes.target.head.count == own


def test_an_encoder_is_counted_by_itself() -> None:
    model: Any = tf.T5ForConditionalGeneration(tf.T5Config(**T5))
    shapes = shapes_of(Pair(model))
    assert shapes is not None
    encoder = sum(p.numel() for n, p in model.encoder.named_parameters() if "embed" not in n)
    bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.numel()
    assert shapes.target.encoder.count == encoder - bias
    assert shapes.target.encode(7).flops == 2 * 7 * shapes.target.encoder.count


def test_four_bits_are_fewer_bytes() -> None:
    if not can_quantize():
        pytest.skip("no kernel")
    shapes = shapes_of(pair(draft_quantize="int4"))
    whole = shapes_of(pair())
    assert shapes is not None
    assert whole is not None
    assert shapes.draft is not None
    assert whole.draft is not None
    assert shapes.draft.layers.count == whole.draft.layers.count
    assert shapes.draft.layers.bytes < whole.draft.layers.bytes * (0.5 / FLOAT + 4 / GROUP) * 1.5


def test_an_early_exit_is_a_part_of_the_target() -> None:
    shapes = shapes_of(pair("early-exit:layers=1"), 1)
    assert shapes is not None
    assert shapes.early_exit
    assert shapes.draft is not None
    assert shapes.draft.layers.count == shapes.target.layers.count / 2
    assert shapes.draft.head == shapes.target.head
    assert len(shapes.draft.windows) == 1


def test_a_trained_exit_is_multiplied_with_too(tmp_path: Path) -> None:
    plain = shapes_of(pair("early-exit:layers=1"), 1)
    ExitAdapter.of(pair().target, 1).save(tmp_path)
    adapted = shapes_of(pair(f"early-exit:adapter={tmp_path}"), 1)
    assert plain is not None
    assert adapted is not None
    assert plain.draft is not None
    assert adapted.draft is not None
    assert adapted.draft.layers.count == plain.draft.layers.count + 32 * 32 + 32


def test_a_mixture_of_experts_is_not_guessed_at() -> None:
    config = tf.MixtralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=2,
    )  # fmt: skip
    assert shapes_of(Pair(tf.MixtralForCausalLM(config))) is None


def test_a_gguf_file_has_the_shape_of_its_original(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from biglittle import LlamaModel
    from biglittle.engines.llama_cpp.convert import convert

    file = tmp_path / "target.gguf"
    convert(folders()["target"], file, "f32", check=False)
    in_llama: Any = SimpleNamespace(target=LlamaModel(file), draft=None)
    found, original = shapes_of(in_llama), shapes_of(pair())
    assert found is not None
    assert original is not None
    assert found.target.layers.count == original.target.layers.count - 32  # without the last norm
    assert found.target.head == original.target.head
    assert found.target.queries == original.target.queries
    assert found.target.windows == original.target.windows
    assert found.target.cache == original.target.cache / 2  # it caches in float16


# Passes.

SHAPE = Shape(Weights(100, 200), Weights(10, 20), windows=(0, 4), queries=3, cache=5)


def test_a_pass_over_one_token() -> None:
    found = SHAPE.run(cached=9, width=1, scored=1)
    assert found.flops == 2 * (100 + 10 + 2 * 3 * (10 + 4))
    assert found.bytes == 200 + 20 + 5 * (10 + 4) + 5 * 2


def test_a_pass_over_several_reads_the_weights_once() -> None:
    one, four = SHAPE.run(100, 1, 1), SHAPE.run(100, 4, 4)
    assert 3.9 < four.flops / one.flops < 4.1
    assert four.bytes < 1.2 * one.bytes
    assert four.intensity > 3 * one.intensity
    assert Operations().intensity == 0


def test_plain_decoding_is_a_pass_a_token() -> None:
    total = operations(
        Shapes(SHAPE, None), prompt=10, rounds=[(0, 0), (0, 0)], target_passes=3, draft_passes=0
    )
    passes = [SHAPE.run(0, 10, 1), SHAPE.run(10, 1, 1), SHAPE.run(11, 1, 1)]
    assert total == sum(passes, Operations())


def test_a_draft_reads_the_prompt_and_runs_its_passes() -> None:
    little = Shape(Weights(7, 14), Weights(2, 4), windows=(0,), queries=1, cache=1)
    run: dict[str, Any] = {"prompt": 10, "rounds": [(3, 2), (3, 3)], "target_passes": 3}
    total = operations(Shapes(SHAPE, little), draft_passes=6, **run)
    alone = operations(Shapes(SHAPE, little), draft_passes=0, **run)
    expected = [SHAPE.run(0, 10, 1), SHAPE.run(10, 4, 4), SHAPE.run(13, 4, 4)]
    assert alone == sum(expected, Operations())
    drafted = [little.run(0, 10, 0), little.run(10, 1, 1) * 3, little.run(13, 1, 1) * 3]
    assert total.flops == sum([*expected, *drafted], Operations()).flops
    assert total.bytes == sum([*expected, *drafted], Operations()).bytes
    exits = operations(Shapes(SHAPE, little, early_exit=True), draft_passes=6, **run)
    assert exits.bytes == total.bytes - little.run(0, 10, 0).bytes


def test_a_prompt_that_is_read_with_the_first_draft_is_no_pass_of_its_own() -> None:
    apart = operations(
        Shapes(SHAPE, None), prompt=10, rounds=[(0, 0)], target_passes=2, draft_passes=0
    )
    together = operations(
        Shapes(SHAPE, None), prompt=10, rounds=[(0, 0), (0, 0)], target_passes=2, draft_passes=0
    )
    assert together.bytes - apart.bytes < SHAPE.cache * 30  # not the weights once more
    assert together.flops == pytest.approx(apart.flops, rel=0.1)
