"""A little model cut out of a big one: the layers that were asked for, and all around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tests.models import ALL, ENCODER_DECODER, build, encoder_inputs

from biglittle import Pair, ParameterError
from biglittle.align import Cut, Sample, cut_model, parse_cut
from biglittle.align.cut import chosen_layers, frequent_tokens
from biglittle.engines.transformers.capability import shallow_model

IDS = torch.tensor([[1, 5, 9, 4]])


def logits(model: Any, name: str) -> torch.Tensor:
    inputs = encoder_inputs(name, 5)
    with torch.no_grad():
        if inputs is None:
            found: torch.Tensor = model(IDS, use_cache=False).logits
        else:
            found = model(**inputs, decoder_input_ids=IDS, use_cache=False).logits
    return found


@pytest.mark.parametrize("name", ALL)
def test_the_first_layers(name: str) -> None:
    model = build(name)
    cut = cut_model(model, parse_cut("layers=0+1"))
    assert torch.equal(logits(cut, name), logits(shallow_model(model, 2), name))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "t5", "bart"])
def test_any_layers_saved_and_loaded(name: str, tmp_path: Path) -> None:
    """The whole model with its other layer taken out gives the same."""
    model = build(name)
    cut = cut_model(model, Cut(layers=(1, 2) if name in ENCODER_DECODER else (0, 2)))
    cut.save_pretrained(tmp_path)
    kind: Any = tf.AutoModelForSeq2SeqLM if name in ENCODER_DECODER else tf.AutoModelForCausalLM
    again = kind.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, name), logits(cut, name))
    Pair(model, again)  # fits its target
    layers = model.get_decoder()
    if name == "t5":
        moved = layers.block[1].layer[0].SelfAttention
        moved.relative_attention_bias = (
            layers.block[0].layer[0].SelfAttention.relative_attention_bias
        )
        moved.has_relative_attention_bias = True
        del layers.block[0]
    elif name == "gpt2":
        del layers.h[1]
    else:
        del layers.layers[0 if name == "bart" else 1]
        if name == "gemma3":
            kinds = list(model.config.layer_types)  # other models of the tests have this list
            model.config.layer_types = kinds
            kinds.pop(1)
            model.config.num_hidden_layers = 2
    assert torch.allclose(logits(again, name), logits(model, name), atol=1e-5)


def test_the_encoders_layers() -> None:
    model = build("t5")
    cut = cut_model(model, parse_cut("layers=1,encoder=2"))
    assert (cut.config.num_decoder_layers, cut.config.num_layers) == (1, 2)
    assert cut_model(model, parse_cut("layers=1")).config.num_layers == 3
    assert len(model.encoder.block) == 3  # is as it was


def test_layers_are_spread_evenly() -> None:
    assert chosen_layers(4, 24, "it") == (0, 8, 15, 23)
    assert chosen_layers(1, 24, "it") == (0,)
    assert chosen_layers(3, 3, "it") == (0, 1, 2)
    assert chosen_layers((0, 7), 8, "it") == (0, 7)


@pytest.mark.parametrize("text", ["layers=4", "layers=0+7+15+23,encoder=2", "layers=4,head=8000"])
def test_a_cut_reads_back(text: str) -> None:
    assert str(parse_cut(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer=4", "unknown option 'layer'.*did you mean 'layers'"),
        ("encoder=2", "does not say how many layers"),
        ("layers=four", "layers=four is no number"),
        ("layers=0", "layers must be at least 1"),
        ("layers=3+1", "layers=3[+]1 must ascend"),
        ("layers=4,head=1+2", "head is how many tokens"),
    ],
)
def test_cuts_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        parse_cut(text)


def test_layers_that_are_not_there() -> None:
    model = build("llama")
    for cut in (Cut(4), Cut((0, 3))):
        with pytest.raises(ParameterError, match="has 3 layers, of which"):
            cut_model(model, cut)
    with pytest.raises(ParameterError, match="has no encoder"):
        cut_model(model, Cut(1, encoder=1))


def test_frequent_tokens() -> None:
    samples = [Sample((9,), (5, 5, 3)), Sample((9,), (5, 3, 7))]
    assert frequent_tokens(samples, 2) == [3, 5]
    assert frequent_tokens(samples, 9) == [3, 5, 7]
