"""Policies, sampling, statistics and refusals inside `model.generate`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from scipy.stats import chisquare  # type: ignore[import-untyped]
from tests.integrations.common import NEW, eos_for, generate, inputs, noisy, pair
from tests.models import build
from torch import Tensor

import biglittle
from biglittle.integrations.transformers import policy_of

# The draft's generation_config.


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({}, "dynamic"),
        (
            {"assistant_confidence_threshold": 0.7, "num_assistant_tokens": 9},
            "dynamic:threshold=0.7,tokens=9",
        ),
        ({"assistant_confidence_threshold": 0}, "static:tokens=20"),
        ({"assistant_confidence_threshold": 0.0, "num_assistant_tokens": 3}, "static:tokens=3"),
        ({"num_assistant_tokens_schedule": "constant"}, "dynamic"),
        ({"num_assistant_tokens_schedule": "heuristic"}, "heuristic:start=20,threshold=0.4"),
        (
            {
                "num_assistant_tokens_schedule": "heuristic_transient",
                "num_assistant_tokens": 70,
                "assistant_confidence_threshold": 0,
            },
            "heuristic:start=70,tokens=70",
        ),
    ],
)
def test_what_the_draft_asks_for(settings: dict[str, Any], policy: str) -> None:
    assert policy_of(tf.GenerationConfig(**settings)) == biglittle.parse_policy(policy)


def test_defaults_are_those_of_transformers() -> None:
    """They may move with its version."""
    _, draft = pair("llama")
    wanted = tf.GenerationConfig._get_default_generation_params()
    names = (
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
    )
    explicit = tf.GenerationConfig(**{name: wanted[name] for name in names})
    assert policy_of(draft.generation_config) == policy_of(explicit)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            {"num_assistant_tokens_schedule": "heuristc"},
            "'heuristc' is unknown.*did you mean 'heuristic'",
        ),
        ({"num_assistant_tokens": 0}, "tokens=0"),
        ({"assistant_confidence_threshold": 2.0}, "threshold=2.0"),
    ],
)
def test_what_the_draft_cannot_ask_for(settings: dict[str, Any], error: str) -> None:
    model, draft = pair("llama")
    for name, value in settings.items():
        setattr(draft.generation_config, name, value)
    with pytest.raises(biglittle.ParameterError, match=error):
        generate(model, **inputs("llama"), custom_generate=biglittle.assisted(draft))


def widths(model: Any) -> list[int]:
    """Filled with the width of every pass of the model."""
    found: list[int] = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: found.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    return found


@pytest.mark.parametrize("tokens", [1, 3])
def test_no_window_is_wider_than_the_draft_allows(tokens: int) -> None:
    model, draft = build("llama"), noisy(build("llama"), 0.01)
    draft.generation_config.num_assistant_tokens = tokens
    draft.generation_config.assistant_confidence_threshold = 0.0
    found = widths(model)
    generate(model, **inputs("llama"), custom_generate=biglittle.assisted(draft))
    assert found[:3] == [9, 5, 7]
    assert max(found[3:]) == 1 + tokens


def test_early_exit_asks_the_target() -> None:
    model = build("llama")
    model.generation_config.num_assistant_tokens = 2
    custom = biglittle.assisted("early-exit:layers=2")
    generate(model, **inputs("llama"), custom_generate=custom)
    assert custom.last[0].policy == "dynamic:tokens=2"


@pytest.mark.parametrize(
    ("schedule", "after"), [("heuristic", 7), ("heuristic_transient", 3), ("constant", 3)]
)
def test_a_heuristic_goes_on_in_the_next_call(schedule: str, after: int) -> None:
    model = build("gpt2")
    draft = build("gpt2")
    config = draft.generation_config
    config.num_assistant_tokens, config.assistant_confidence_threshold = 3, 0.0
    config.num_assistant_tokens_schedule = schedule
    custom = biglittle.assisted(draft)
    # The first token comes with the prompt; 3 + 1 and 5 + 1 follow, all accepted.
    generate(model, **inputs("gpt2"), custom_generate=custom, max_new_tokens=11)
    assert config.num_assistant_tokens == after
    explicit = biglittle.assisted(draft, "heuristic:start=4")
    generate(model, **inputs("gpt2"), custom_generate=explicit)
    assert config.num_assistant_tokens == after


def passes(model: Any) -> list[int]:
    """Filled with an entry a pass of the model."""
    found: list[int] = []
    model.register_forward_hook(lambda *_: found.append(1))
    return found


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("tokens", [1, 3, 5])
@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_passes_beside_transformers_own_assistance(name: str, tokens: int, noise: float) -> None:
    """One more at most: transformers verifies a first window in the pass that reads the prompt."""
    model, draft = build(name), noisy(build(name), noise)
    config = draft.generation_config
    config.num_assistant_tokens, config.assistant_confidence_threshold = tokens, 0.0
    config.num_assistant_tokens_schedule = "constant"
    batch = inputs(name, (9,))
    found = passes(model)
    theirs = generate(model, **batch, assistant_model=draft, max_new_tokens=40)
    count = len(found)
    custom = biglittle.assisted(draft)
    ours = generate(model, **batch, custom_generate=custom, max_new_tokens=40)
    assert ours.tolist() == theirs.tolist()
    assert custom.last[0].stats.target_passes == len(found) - count <= count + 1


# Sampling.

SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 4}


def test_samples_follow_the_seed() -> None:
    model, draft = pair("llama")
    batch = inputs("llama")
    options = SAMPLING | eos_for(model, batch)
    custom = biglittle.assisted(draft)

    def sample(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        output = generate(model, **batch, **options, num_return_sequences=3, custom_generate=custom)
        found: list[list[int]] = output.tolist()
        return found

    first = sample(1)
    assert first == sample(1)
    assert first != sample(2)
    assert len(first) == 9
    assert len({tuple(row) for row in first}) > 3, "samples of a prompt are all the same"
    # A prompt is read once for all its samples.
    assert [row.stats.reused_tokens for row in custom.last] == [0, 9, 9, 0, 5, 5, 0, 7, 7]


class SecondBest(tf.LogitsProcessor):
    """Writes in place: a second look at the same scores would find the third best."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[0, scores[0].argmax()] = float("-inf")
        return scores


def test_samples_of_a_prompt_share_no_scores() -> None:
    model, draft = pair("llama")
    batch = inputs("llama", (6,))
    plain = generate(model, **batch, logits_processor=[SecondBest()])
    output = generate(
        model,
        **batch,
        do_sample=True,
        top_k=1,
        num_return_sequences=3,
        logits_processor=[SecondBest()],
        custom_generate=biglittle.assisted(draft),
    )
    assert output.tolist() == plain.tolist() * 3


def pair_distribution(model: Any, prompt: Tensor) -> dict[tuple[int, int], float]:
    """The exact distribution of the first two sampled tokens."""

    def next_tokens(ids: Tensor) -> list[tuple[int, float]]:
        logits = model(input_ids=ids).logits[0, -1] / SAMPLING["temperature"]
        best = logits.topk(int(SAMPLING["top_k"]))
        return list(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))

    found = {}
    with torch.no_grad():
        for one, p in next_tokens(prompt):
            for two, q in next_tokens(torch.cat([prompt, torch.tensor([[one]])], dim=1)):
                found[one, two] = p * q
    return found


def p_value(policy: str) -> float:
    """Of the first two tokens of 1200 samples; the second is the first that may be drafted."""
    model, draft = build("llama"), noisy(build("llama"), 0.05)
    prompt = inputs("llama", (6,))["input_ids"]
    expected = pair_distribution(model, prompt)
    counts = dict.fromkeys(expected, 0)
    custom = biglittle.assisted(draft, policy)
    options = {**SAMPLING, "num_return_sequences": 100, "max_new_tokens": 3}
    torch.manual_seed(7)
    for _ in range(12):
        output = generate(model, input_ids=prompt, **options, custom_generate=custom)
        assert any(row.stats.drafted for row in custom.last)
        for one, two, _ in output[:, 6:].tolist():
            counts[one, two] = counts.get((one, two), 0) + 1
    if counts.keys() - expected.keys():
        return 0.0  # tokens that the target gives no probability
    return float(chisquare(list(counts.values()), [1200 * p for p in expected.values()]).pvalue)


def test_samples_follow_the_distribution() -> None:
    assert p_value("static:tokens=2") > 0.01


def test_samples_of_a_lossy_policy_do_not() -> None:
    """What the test above must be able to see."""
    assert p_value("bild:fallback=0,rollback=1000,first=target") < 1e-6


# Statistics and lossy policies.


def test_rows_of_the_last_call() -> None:
    model, draft = pair("llama")
    custom = biglittle.assisted(draft, "static:tokens=2")
    output = generate(model, **inputs("llama"), custom_generate=custom)
    assert [list(row.token_ids) for row in custom.last] == output[:, 9:].tolist()
    assert [row.stats.prompt_tokens for row in custom.last] == [9, 5, 7]
    assert all(row.stats.target_passes <= NEW for row in custom.last)
    assert all(row.lossless for row in custom.last)
    generate(model, **inputs("llama", (4,)), custom_generate=custom)
    assert len(custom.last) == 1


def test_bild_says_that_it_is_lossy() -> None:
    model, draft = pair("llama")
    assert biglittle.assisted(draft).lossless
    assert biglittle.assisted(draft, "static").lossless
    custom = biglittle.assisted(draft, "bild:fallback=0.2,rollback=6")
    assert not custom.lossless
    plain = generate(model, **inputs("llama"))
    output = generate(model, **inputs("llama"), custom_generate=custom)
    assert output.shape == plain.shape
    assert output.tolist() != plain.tolist()
    assert not any(row.lossless for row in custom.last)
    strict = biglittle.assisted(draft, "bild:fallback=1.1,rollback=6,first=target")
    assert generate(model, **inputs("llama"), custom_generate=strict).equal(plain)


def test_bild_has_scores_for_tokens_that_go_unverified() -> None:
    model, draft = pair("llama")
    custom = biglittle.assisted(draft, "bild:fallback=0,rollback=1000,verify_end=false")
    output = generate(
        model,
        **inputs("llama"),
        return_dict_in_generate=True,
        output_scores=True,
        custom_generate=custom,
    )
    assert len(output.scores) == NEW
    mask = torch.cat([inputs("llama")["attention_mask"], torch.ones(3, NEW).long()], dim=1)
    with torch.no_grad():
        logits = model(
            input_ids=output.sequences,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        ).logits
    torch.testing.assert_close(
        torch.stack(output.scores, dim=1), logits[:, 8:-1], atol=1e-4, rtol=0
    )


def test_before_the_first_call() -> None:
    assert biglittle.assisted().last == ()


def test_repr() -> None:
    assert repr(biglittle.assisted("prompt-lookup", "static:tokens=4")) == (
        "biglittle.assisted(prompt-lookup:ngram=3, policy='static:tokens=4')"
    )
    assert repr(biglittle.assisted(build("llama"))) == "biglittle.assisted(LlamaForCausalLM)"


def test_a_model_in_training_stays_so_and_drops_nothing_out() -> None:
    model, draft = build("gpt2"), build("gpt2", 1)
    plain = generate(model, **inputs("gpt2"))
    model.train()
    model.transformer.h[0].eval()
    output = generate(model, **inputs("gpt2"), custom_generate=biglittle.assisted(draft))
    assert output.equal(plain)
    assert model.training
    assert model.transformer.h[1].mlp.training
    assert not model.transformer.h[0].training


# Errors.


def fail(*args: Any, **kwargs: Any) -> Any:
    raise LookupError("no such word")


@pytest.mark.parametrize("lengths", [(6,), (9, 5, 7)])
@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
def test_errors_of_the_callers_own_code_are_raised(where: str, lengths: tuple[int, ...]) -> None:
    model, draft = pair("llama")
    options = {where: [fail], "custom_generate": biglittle.assisted(draft)}
    with pytest.raises(biglittle.RowError, match="LookupError: no such word") as caught:
        generate(model, **inputs("llama", lengths), **options)
    assert isinstance(caught.value.__cause__, LookupError)


class Uncopied(tf.LogitsProcessor):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it holds a lock")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


def filled_cache(model: Any) -> Any:
    cache = tf.DynamicCache(config=model.config)
    model(input_ids=torch.tensor([[5, 6, 7]] * 3), cache=cache)
    return cache


REFUSED: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "beams": (lambda model: {"num_beams": 3}, "beam_search.*greedy decoding or sampling"),
    "contrastive": (lambda model: {"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
    "attentions": (
        lambda model: {"output_attentions": True, "return_dict_in_generate": True},
        "output_attentions is not available",
    ),
    "hidden states": (
        lambda model: {"output_hidden_states": True, "return_dict_in_generate": True},
        "output_hidden_states is not available",
    ),
    "a filled cache": (
        lambda model: {"cache": filled_cache(model)},
        "holds 3 tokens already.*whole prompt",
    ),
    "embeddings": (
        lambda model: {
            "input_ids": None,
            "inputs_embeds": torch.zeros(3, 9, 32),
        },
        "inputs_embeds was given",
    ),
    "other positions": (
        lambda model: {"position_ids": torch.arange(1, 10).expand(3, -1)},
        "position_ids",
    ),
    "an empty prompt": (
        lambda model: {"attention_mask": torch.tensor([[1] * 9, [0] * 9, [1] * 9])},
        "prompt 1 is empty",
    ),
    "no room": (
        lambda model: {
            "input_ids": torch.full((1, 256), 5),
            "attention_mask": torch.ones(1, 256).long(),
        },
        "a prompt has 256 tokens.*context of 256; shorten it to 255",
    ),
    "no padding": (
        lambda model: {"stopping_criteria": [tf.EosTokenCriteria(5)]},
        "set pad_token_id",
    ),
    "no copies": (
        lambda model: {"logits_processor": [Uncopied()]},
        "Uncopied cannot be copied.*it holds a lock.*one at a time",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_work_starts(case: str) -> None:
    make, message = REFUSED[case]
    model, draft = pair("llama")
    model.generation_config.pad_token_id = None
    options = {**inputs("llama"), **make(model)}
    runs = passes(model)
    with pytest.raises(biglittle.ParameterError, match=message):
        generate(model, **options, custom_generate=biglittle.assisted(draft))
    assert not runs


def test_one_row_needs_no_padding_and_no_copies() -> None:
    model, draft = pair("llama")
    options = {"stopping_criteria": [tf.EosTokenCriteria(5)], "logits_processor": [Uncopied()]}
    custom = biglittle.assisted(draft)
    output = generate(model, **inputs("llama", (6,)), **options, custom_generate=custom)
    assert output.equal(generate(model, **inputs("llama", (6,))))


@pytest.mark.parametrize(
    ("draft", "policy", "error", "message"),
    [
        ("promt-lookup", None, biglittle.ParameterError, "'promt-lookup' is neither a model"),
        ("early-exit", None, biglittle.ParameterError, "early-exit:layers=NUMBER"),
        ("a.GGUF", None, biglittle.ParameterError, "GGUF draft cannot be used .*biglittle.load"),
        (object(), None, biglittle.UnsupportedModelError, "object is not a transformers model"),
        ("prompt-lookup", "dinamic", biglittle.PolicyError, "did you mean 'dynamic'"),
    ],
)
def test_refused_at_once(draft: Any, policy: str | None, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        biglittle.assisted(draft, policy)


@pytest.mark.parametrize(
    ("draft", "policy", "message"),
    [
        (None, "dynamic", "needs a draft"),
        ("t5", None, "choose a draft of the same kind"),
        ("early-exit:layers=7", None, "give a number from 1 to 2"),
    ],
)
def test_refused_with_this_target(draft: Any, policy: str | None, message: str) -> None:
    custom = biglittle.assisted(build(draft) if draft == "t5" else draft, policy)
    with pytest.raises(biglittle.BiglittleError, match=message):
        generate(build("llama"), **inputs("llama"), custom_generate=custom)


def test_a_draft_with_an_encoder_needs_its_input() -> None:
    model, draft = pair("t5")
    batch = inputs("t5")
    outputs = model.get_encoder()(**batch, return_dict=True)
    custom = biglittle.assisted(draft)
    with pytest.raises(biglittle.ParameterError, match="has an encoder of its own"):
        generate(model, encoder_outputs=outputs, custom_generate=custom)


def test_the_context_bounds_all_rows() -> None:
    model, draft = pair("llama")
    batch = inputs("llama", (250, 9))
    custom = biglittle.assisted(draft)
    output = generate(model, **batch, max_new_tokens=50, custom_generate=custom)
    assert output.shape == (2, 256)
    assert output.equal(generate(model, **batch, max_new_tokens=6))
    assert math.isfinite(custom.last[0].stats.tokens_per_second)
