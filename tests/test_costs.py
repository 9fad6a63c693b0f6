"""What passes cost: the table, what lies between its entries, and measuring it with any drafter."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import ENCODER_DECODER, VOCAB, build, encoder_inputs
from tests.reports.helpers import text_model
from tests.tiny_gguf import made_up, write_gguf

from biglittle import Pair, ParameterError
from biglittle.costs import Costs, measure_costs
from biglittle.engines.llama_cpp import LlamaModel

COSTS = Costs(0.25, (1, 2, 4, 8), (1.0, 1.5, 1.5, 3.5), 0.125, 2.0, 256, 0.0625)


@pytest.mark.parametrize(
    ("width", "seconds"),
    [(1, 1.0), (1.5, 1.25), (2, 1.5), (3, 1.5), (4, 1.5), (6, 2.5), (8, 3.5), (10, 4.5)],
)
def test_linear_between_the_widths_and_on_beyond(width: float, seconds: float) -> None:
    assert COSTS.verify(width) == pytest.approx(seconds)


def test_one_width_is_all_that_is_known() -> None:
    assert Costs(0.0, (1,), (2.0,)).verify(7) == 2.0


def test_a_step_is_a_pass_over_one_token() -> None:
    assert COSTS.step == COSTS.verify(1) == 1.0


def test_json_there_and_back() -> None:
    assert Costs.from_dict(json.loads(json.dumps(COSTS.as_dict()))) == COSTS
    old = {name: value for name, value in COSTS.as_dict().items() if name != "head"}
    assert Costs.from_dict(old) == dataclasses.replace(COSTS, head=0.0)


@pytest.mark.parametrize(
    "data",
    [{}, {**COSTS.as_dict(), "draft": "x"}, {**COSTS.as_dict(), "widths": 3}],
)
def test_something_else_is_refused(data: Any) -> None:
    with pytest.raises(ParameterError, match="costs"):
        Costs.from_dict(data)


@pytest.mark.parametrize(
    ("draft", "widths", "seconds"),
    [
        (0.1, (), ()),
        (0.1, (2, 3), (1.0, 2.0)),
        (0.1, (1, 3, 2), (1.0, 2.0, 3.0)),
        (0.1, (1, 2), (1.0,)),
        (0.1, (1, 2), (2.0, 1.0)),
        (0.1, (1, 2), (0.0, 1.0)),
        (-0.1, (1, 2), (1.0, 2.0)),
        (float("nan"), (1,), (1.0,)),
    ],
)
def test_impossible_tables(draft: float, widths: Any, seconds: Any) -> None:
    with pytest.raises(ParameterError, match="costs"):
        Costs(draft, widths, seconds)


@pytest.mark.parametrize(("catch_up", "reading"), [(-1.0, 0.0), (0.0, -1.0)])
def test_impossible_seconds(catch_up: float, reading: float) -> None:
    with pytest.raises(ParameterError, match="costs"):
        Costs(0.1, (1,), (1.0,), catch_up, reading)


def measured(pair: Pair, **options: Any) -> Costs:
    return measure_costs(pair, context=20, widths=(1, 2, 5), repeats=1, **options)


@pytest.mark.parametrize("draft", ["model", "early-exit:layers=1", "prompt-lookup", None])
def test_any_drafter(draft: str | None) -> None:
    big = build("llama")
    pair = Pair(big, build("qwen2", seed=1) if draft == "model" else draft)
    costs = measured(pair)
    assert costs.widths == (1, 2, 5)
    modelled = draft not in ("prompt-lookup", None)
    assert (costs.draft > 0) == modelled
    assert (costs.reading > 0) == modelled
    assert costs.context == 20
    assert (0 < costs.head < costs.draft) == modelled
    assert not big.get_output_embeddings()._forward_hooks


def test_the_text_of_a_pair_with_a_tokenizer() -> None:
    big, tokenizer = text_model("Roses are red.")
    assert measured(Pair(big, big, tokenizer)).draft > 0


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_encoder_decoder_pairs(name: str) -> None:
    assert name in ENCODER_DECODER
    big = build(name)
    prompt = encoder_inputs(name, 9)
    assert measured(Pair(big, build(name, seed=1)), prompt=prompt).draft > 0


def test_both_models_in_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    for name, seed in (("big", 0), ("little", 1)):
        write_gguf(build("llama", seed), made_up(VOCAB), tmp_path / f"{name}.gguf")
    big, little = (LlamaModel(tmp_path / f"{name}.gguf") for name in ("big", "little"))
    costs = measured(Pair(big, little))
    assert costs.draft > 0
    assert costs.head == 0.0  # llama.cpp runs a model whole
    assert costs.widths == (1, 2, 5)


def test_audio_needs_a_prompt() -> None:
    with pytest.raises(ParameterError, match="input_features"):
        measured(Pair(build("whisper")))


def test_widths_that_do_not_fit_are_left_out() -> None:
    costs = measure_costs(Pair(build("llama")), context=1000, widths=(1, 127, 128), repeats=1)
    assert costs.context == 128
    assert costs.widths == (1, 127)  # half of 256 tokens is for the rounds


def test_models_are_left_as_they_were() -> None:
    pair = Pair(build("llama"), build("qwen2", seed=1))
    prompt = torch.arange(3, 20)
    before = pair.generate(prompt, max_new_tokens=16)
    measured(pair)
    assert pair.generate(prompt, max_new_tokens=16).token_ids == before.token_ids


def test_progress_counts_the_turns() -> None:
    told: list[tuple[int, int]] = []
    measured(Pair(build("llama")), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize("options", [{"widths": (2, 3)}, {"repeats": 0}])
def test_options_that_cannot_be_used(options: Any) -> None:
    with pytest.raises(ParameterError):
        measure_costs(Pair(build("llama")), **options)
