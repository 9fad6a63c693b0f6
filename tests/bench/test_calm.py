"""CALM: where tokens leave, and what later ones see of them."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from tests.bench.common import pair
from tests.cli.conftest import make_tokenizer
from tests.models import T5, build
from torch import Tensor
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from biglittle import Pair, PolicyError, UnsupportedModelError
from biglittle.bench.calm import Calm, CalmRule, ExitRunner, parse_calm
from biglittle.bench.systems import Answer
from biglittle.engines.base import Prompt
from biglittle.params import make_params

TEXT = "The little model writes"
Measure = Literal["gap", "similarity"]


def model(kind: str = "t5", seed: int = 0, layers: int = 4) -> Any:
    """A random model in float32, sure enough of some of its tokens."""
    torch.manual_seed(seed)
    settings = {**T5, "vocab_size": 340, "num_layers": layers}
    made: Any
    if kind == "t5":
        made = T5ForConditionalGeneration(T5Config(**settings))
    else:
        made = MT5ForConditionalGeneration(MT5Config(**settings, tie_word_embeddings=False))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)
        made.get_decoder().final_layer_norm.weight.mul_(20 if kind == "t5" else 4)
    made.generation_config.eos_token_id = None
    return made.eval()


def ask(system: Calm, new_tokens: int = 16, **params: Any) -> Answer:
    settings = make_params(None, {"temperature": 0.0, "max_new_tokens": new_tokens, **params})
    of = system.pair
    return system.answer(of.requests(TEXT, policy="none", params=settings)[0], settings)


@pytest.mark.parametrize("measure", ["gap", "similarity"])
@pytest.mark.parametrize("kind", ["t5", "mt5"])
def test_with_threshold_1_it_is_the_model_alone(kind: str, measure: Measure) -> None:
    of = Pair(model(kind), None, make_tokenizer())
    found = ask(Calm(of, CalmRule(1.0, measure)))
    inputs = of.tokenizer(TEXT, return_tensors="pt")
    plain = of.target.generate(
        input_ids=inputs.input_ids,
        attention_mask=torch.ones_like(inputs.input_ids),
        max_new_tokens=16,
        do_sample=False,
    )
    assert list(found.tokens) == plain[0, 1:].tolist()
    assert found.exits == (4,) * 16
    assert found.text == of.generate(TEXT, max_new_tokens=16, temperature=0).text
    stats = found.stats
    assert (stats.target_passes, stats.rounds, stats.new_tokens) == (16, 15, 16)
    assert found.rounds == ((0, 0),) * 15
    assert 0 < stats.target_seconds < found.seconds
    assert 0 < stats.first_token_seconds < stats.total_seconds <= found.seconds


def test_with_threshold_0_all_but_the_first_token_leave_at_once() -> None:
    of = Pair(model(), None, make_tokenizer())
    assert ask(Calm(of, CalmRule(0.0))).exits == (4, *[1] * 15)
    assert ask(Calm(of, CalmRule(0.0, exits=(2, 3)))).exits == (4, *[2] * 15)


def attend(layer: Any, states: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
    """One query [size] over memory [tokens, size], both normed: attention as in the T5 paper."""
    heads, size = layer.n_heads, layer.key_value_proj_dim
    query = layer.q(states).view(heads, size)
    keys = layer.k(memory).view(-1, heads, size)
    values = layer.v(memory).view(-1, heads, size)
    scores = torch.einsum("hd,thd->ht", query, keys)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    found: Tensor = layer.o(torch.einsum("ht,thd->hd", weights, values).reshape(-1))
    return found


class Slow:
    """CALM without a cache: `inputs[layer]` are the hidden states that the tokens brought to a
    layer, or left with before they came to it."""

    def __init__(self, model: Any, source: Tensor) -> None:
        self.model, self.decoder = model, model.get_decoder()
        self.encoded = model.get_encoder()(source).last_hidden_state[0]
        self.inputs: list[list[Tensor]] = [[] for _ in self.decoder.block]

    def step(self, token: int, rule: CalmRule, *, whole: bool = False) -> tuple[Tensor, int]:
        blocks = self.decoder.block
        hidden = self.decoder.embed_tokens(torch.tensor(token))
        own = blocks[0].layer[0].SelfAttention
        place = len(self.inputs[0])
        bias = own.compute_bias(place + 1, place + 1)[0, :, -1]  # [heads, keys]
        for index, block in enumerate(blocks):
            first, cross, last = block.layer
            before = hidden
            self.inputs[index].append(hidden)
            memory = first.layer_norm(torch.stack(self.inputs[index]))
            hidden = hidden + attend(first.SelfAttention, first.layer_norm(hidden), memory, bias)
            hidden = hidden + attend(
                cross.EncDecAttention, cross.layer_norm(hidden), self.encoded, None
            )
            hidden = last(hidden)
            logits = self.score(hidden)
            sure = self.confidence(rule, logits, hidden, before)
            if not whole and index + 1 < len(blocks) and sure > rule.threshold:
                for later in range(index + 1, len(blocks)):
                    self.inputs[later].append(hidden)
                break
        return logits, index + 1

    def confidence(self, rule: CalmRule, logits: Tensor, hidden: Tensor, before: Tensor) -> float:
        if rule.measure == "similarity":
            return float(hidden @ before / (hidden.norm() * before.norm()))
        first, second = logits.softmax(-1).sort(descending=True).values[:2].tolist()
        return float(first - second)

    def score(self, hidden: Tensor) -> Tensor:
        states = self.decoder.final_layer_norm(hidden)
        if getattr(self.model.config, "scale_decoder_outputs", False):
            states = states * self.model.model_dim**-0.5
        logits: Tensor = self.model.get_output_embeddings()(states)
        return logits


RULES = [
    CalmRule(0.3),
    CalmRule(0.5),
    CalmRule(0.6, "similarity"),
    CalmRule(0.8, "similarity"),
]


@pytest.mark.parametrize("kind", ["t5", "mt5"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_it_computes_what_the_paper_says(rule: CalmRule, kind: str) -> None:
    of = model(kind, seed=3, layers=5)
    source = torch.tensor([[5, 6, 7, 8, 9]])
    runner = ExitRunner(of, rule)
    depths = []
    with torch.inference_mode():
        slow = Slow(of, source)
        found = runner.begin(Prompt((0,), {"input_ids": source}))
        expected, _ = slow.step(0, rule, whole=True)
        for token in range(20, 60):
            assert torch.allclose(found, expected, atol=1e-3, rtol=1e-4)
            found, layers = runner.step(token, rule.threshold)
            expected, others = slow.step(token, rule)
            assert layers == others
            depths.append(layers)
    assert len(set(depths)) > 1  # else nothing was skipped, or everything


def test_a_skipped_layer_holds_its_own_projections_of_what_left() -> None:
    of = model(seed=3)
    runner = ExitRunner(of, CalmRule(0.0))
    with torch.inference_mode():
        runner.begin(Prompt((0,), {"input_ids": torch.tensor([[5, 6, 7]])}))
        left = []
        hook = (
            of.get_decoder()
            .block[0]
            .register_forward_hook(lambda block, args, output: left.append(output[0][0, 0]))
        )
        for token in (8, 9, 10):
            assert runner.step(token, 0.0)[1] == 1
        hook.remove()
        runner.step(11, 1.0)  # one that goes through all layers, and sees the others there
        states = torch.stack(left)
        for index in (1, 2, 3):
            first = of.get_decoder().block[index].layer[0]
            normed = first.layer_norm(states)
            slots = runner.cache.own.slots[index]
            for held, project in (
                (slots.keys, first.SelfAttention.k),
                (slots.values, first.SelfAttention.v),
            ):
                assert held is not None
                expected = project(normed).view(3, 4, 8).transpose(0, 1)
                assert torch.allclose(held[0, :, 1:4], expected, atol=1e-5)


def test_it_heeds_processors_stops_and_ends() -> None:
    of = Pair(model(seed=2), None, make_tokenizer())
    system = Calm(of, CalmRule(1.0))
    free = ask(system)
    plain = of.generate(TEXT, max_new_tokens=16, temperature=0, repetition_penalty=5.0)
    assert ask(system, repetition_penalty=5.0).tokens == plain.token_ids != free.tokens
    assert (
        ask(system, eos_token_ids=[free.tokens[3]]).tokens
        == free.tokens[: 1 + free.tokens.index(free.tokens[3])]
    )


def test_the_threshold_sinks() -> None:
    rule = CalmRule(0.8, decay=4.0)
    assert rule.at(0, 100) == pytest.approx(0.82)
    assert rule.at(50, 100) == pytest.approx(0.72 + 0.1 * math.exp(-2))
    assert CalmRule(0.8).at(50, 100) == 0.8


def test_every_token_has_its_own_threshold() -> None:
    of = Pair(model(seed=3), None, make_tokenizer())
    slow, fast, high, low = (
        ask(Calm(of, CalmRule(threshold, decay=decay))).exits
        for threshold, decay in ((0.0, 1e-9), (0.0, 1e9), (0.1, 0.0), (0.0, 0.0))
    )
    assert slow == high  # 0.1 all the time
    assert fast == low  # 0 from the second token on
    assert high != low


@pytest.mark.parametrize(
    ("text", "rule", "name"),
    [
        ("0.9", CalmRule(0.9), "calm:threshold=0.9"),
        ("0.9,decay=4", CalmRule(0.9, decay=4.0), "calm:threshold=0.9,decay=4"),
        (
            "threshold=0,measure=similarity,exits=1/3",
            CalmRule(0.0, "similarity", exits=(1, 3)),
            "calm:threshold=0,measure=similarity,exits=1/3",
        ),
    ],
)
def test_a_rule_in_words(text: str, rule: CalmRule, name: str) -> None:
    assert parse_calm(text) == rule
    assert str(rule) == name


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("two", "threshold=two is not a number"),
        ("1.1", "threshold=1.1 must be between 0 and 1"),
        ("nan", "threshold=nan must be between 0 and 1"),
        ("0.9,decay=-1", "decay=-1.0 must be at least 0"),
        ("0.9,decay=inf", "decay=inf must be at least 0"),
        ("0.9,exits=0", r"exits=\(0,\) must ascend from 1"),
        ("0.9,exits=2/1", r"exits=\(2, 1\) must ascend"),
        ("0.9,exits=a", "exits=a is not whole numbers"),
        ("0.9,measure=gup", "measure=gup must be one of gap, similarity"),
        ("0.9,decoy=4", "unknown option 'decoy'.*did you mean 'decay'"),
        ("0.9,4", "'4' is not of the form option=value"),
        ("decay=4", "has no threshold; write for example 0.9,decay=4"),
    ],
)
def test_a_rule_that_is_none(text: str, word: str) -> None:
    with pytest.raises(PolicyError, match=word) as caught:
        parse_calm(text)
    assert "\n" not in str(caught.value)


def test_other_models() -> None:
    with pytest.raises(UnsupportedModelError, match=r"\(t5, mt5\), and this one is llama; leave"):
        Calm(pair(), CalmRule(0.9))
    with pytest.raises(UnsupportedModelError, match="is bart"):
        Calm(Pair(build("bart")), CalmRule(0.9))
    with pytest.raises(PolicyError, match=r"exits=\(1, 4\): .* has 4 layers, so .* below 4"):
        Calm(Pair(model()), CalmRule(0.9, exits=(1, 4)))
