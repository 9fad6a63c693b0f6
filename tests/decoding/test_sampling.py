"""From raw logits to the distribution that decoding uses: as in transformers, at every position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from tests.fakes import ByteTokenizer, request
from tests.models import VOCAB, build, encoder_inputs
from torch import Tensor

from biglittle import GenerationParams, Pair, ParameterError, RowError
from biglittle.decoding import Row
from biglittle.decoding.sampling import Pipeline, Settings, apply_pointwise, process_block, resolve

EOS = 7


def settle(
    params: GenerationParams | None = None,
    defaults: dict[str, Any] | None = None,
    *,
    prompt_length: int = 4,
    context: int | None = 256,
    tokenizer: Any = None,
) -> Settings:
    return resolve(
        params or GenerationParams(),
        tf.GenerationConfig(**(defaults or {})),
        prompt_length=prompt_length,
        context=context,
        vocab=VOCAB,
        tokenizer=tokenizer,
        device=torch.device("cpu"),
    )


# Against transformers' own generate: its logits through our pipeline are its scores.

SAME_BY_NAME: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 1},
    {"min_new_tokens": 4},
    {"suppress_tokens": [3, 4, 5]},
    {"temperature": 0.7},
    {"temperature": 1.4, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.5, "min_p": 0.2},
    {"temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "suppress_tokens": [9]},
]
BY_DEFAULTS: list[dict[str, Any]] = [
    *({**options, "do_sample": "temperature" in options} for options in SAME_BY_NAME),
    {"bad_words_ids": [[5], [6, 8], [11, 12, 13]]},
    {"min_length": 6},
    {"begin_suppress_tokens": [5, 6, 7, 8]},
    {"forced_bos_token_id": 11},
    {"forced_bos_token_id": 11, "begin_suppress_tokens": [5, 6]},
    {"forced_eos_token_id": EOS},
    {"do_sample": True, "typical_p": 0.8},
    {"do_sample": True},
    {},
]


def compare(options: dict[str, Any], pipeline: Pipeline, prompt: list[int]) -> None:
    model = build("llama")
    ids = torch.tensor([prompt])
    torch.manual_seed(0)
    theirs = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        # transformers fills in a top_k of 50 where nothing is said.
        generation_config=tf.GenerationConfig(
            **{"max_new_tokens": 6, "eos_token_id": EOS, "pad_token_id": 0, "top_k": 0, **options}
        ),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    for n, (raw, scores) in enumerate(zip(theirs.logits, theirs.scores, strict=True)):
        prefix = theirs.sequences[0, : len(prompt) + n].tolist()
        assert torch.equal(pipeline.at(prefix, raw[0], custom=True), scores[0])


@pytest.mark.parametrize("prompt", [[1], [3, 4, 5, 3]], ids=len)
@pytest.mark.parametrize("options", BY_DEFAULTS, ids=str)
def test_the_models_defaults_are_as_in_transformers(
    options: dict[str, Any], prompt: list[int]
) -> None:
    defaults = {"max_new_tokens": 6, "eos_token_id": EOS, **options}
    settings = settle(defaults=defaults, prompt_length=len(prompt))
    assert settings.pipeline.sampling == bool(options.get("do_sample"))
    compare(options, settings.pipeline, prompt)


@pytest.mark.parametrize("options", SAME_BY_NAME, ids=str)
def test_parameters_are_as_in_transformers(options: dict[str, Any]) -> None:
    prompt = [3, 4, 5, 3]
    sampling = "temperature" in options
    params = GenerationParams(max_new_tokens=6, eos_token_ids=EOS, **options)
    pipeline = settle(params, {"repetition_penalty": None}).pipeline
    assert pipeline.sampling == sampling
    compare({**options, "do_sample": sampling}, pipeline, prompt)


def test_parameters_win_over_defaults() -> None:
    defaults = {"do_sample": True, "temperature": 0.5, "top_k": 3, "repetition_penalty": 1.3}
    settings = settle(GenerationParams(temperature=0, repetition_penalty=1.0), defaults)
    assert settings.pipeline.plain
    assert not settings.pipeline.sampling
    warm = settle(GenerationParams(temperature=1.0, top_k=0, repetition_penalty=1.0), defaults)
    assert warm.pipeline.plain
    assert warm.pipeline.sampling


def test_without_anything_decoding_is_greedy_and_plain() -> None:
    settings = settle()
    assert settings.pipeline.plain
    assert not settings.pipeline.sampling
    assert settings.eos_ids == frozenset()


# Limits.


@pytest.mark.parametrize(
    ("params", "defaults", "context", "expected"),
    [
        ({}, {}, None, 256),
        ({"max_new_tokens": 9}, {"max_new_tokens": 5}, None, 9),
        ({}, {"max_new_tokens": 5}, None, 5),
        ({}, {"max_length": 50}, None, 46),
        ({"max_new_tokens": 9}, {}, 10, 6),  # what the context has room for
        ({}, {}, 10, 6),
    ],
)
def test_how_many_tokens(
    params: dict[str, Any], defaults: dict[str, Any], context: int | None, expected: int
) -> None:
    settings = settle(GenerationParams(**params), defaults, context=context)
    assert settings.max_new_tokens == expected


@pytest.mark.parametrize(
    ("params", "defaults", "expected"),
    [
        ({}, {}, set()),
        ({}, {"eos_token_id": 3}, {3}),
        ({}, {"eos_token_id": [3, 5]}, {3, 5}),
        ({}, {"eos_token_id": [3, VOCAB + 3]}, {3}),  # beyond the shared vocabulary
        ({"eos_token_ids": 4}, {"eos_token_id": 3}, {4}),
        ({"eos_token_ids": [4, 6]}, {}, {4, 6}),
        ({"eos_token_ids": []}, {"eos_token_id": 3}, set()),
        ({"ignore_eos": True}, {"eos_token_id": 3}, set()),
    ],
)
def test_what_ends_a_row(
    params: dict[str, Any], defaults: dict[str, Any], expected: set[int]
) -> None:
    assert settle(GenerationParams(**params), defaults).eos_ids == expected


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_p": 0.9}, "top_p=0.9 has no effect on greedy decoding"),
        ({"top_k": 5}, "top_k=5 has no effect on greedy decoding"),
        ({"min_p": 0.1}, "min_p=0.1 has no effect on greedy decoding"),
        ({"n": 3}, "n=3 samples of greedy decoding are all the same"),
        ({"eos_token_ids": VOCAB}, f"eos_token_ids: {VOCAB} is not below the vocabulary"),
        ({"bad_words": ["word"]}, "bad_words as text needs a tokenizer"),
    ],
)
def test_settings_that_contradict_each_other(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        settle(GenerationParams(**params))


class Words(ByteTokenizer):
    """Called like a tokenizer: bytes modulo the vocabulary of the tiny models."""

    def __call__(self, text: str, **options: Any) -> Any:
        return tf.BatchEncoding({"input_ids": [byte % VOCAB for byte in text.encode()]})


def test_bad_words_with_a_space_before_them_or_not() -> None:
    params = GenerationParams(bad_words=["a", [3, 4]])
    pipeline = settle(params, tokenizer=Words()).pipeline
    letter, space = ord("a") % VOCAB, ord(" ") % VOCAB

    def banned(*prefix: int) -> list[int]:
        scores = pipeline.at(prefix, torch.zeros(VOCAB), custom=True)
        return [token for token, score in enumerate(scores.tolist()) if score == -torch.inf]

    assert banned(1, 2) == [letter]
    assert banned(1, 3) == sorted([letter, 4])
    assert banned(1, space) == [letter]


# Blocks.


class CountPrefix(tf.LogitsProcessor):
    """Marks a position with the length of the prefix that it was judged with."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        marked = scores.clone()
        marked[:, 0] = 100 * input_ids.shape[1] + float(input_ids[0, -1])
        return marked


def test_positions_of_a_block_have_their_own_prefixes() -> None:
    prefix = Pipeline(prefix=(CountPrefix(),))
    rows = [Row(request(p, pipeline=prefix), None) for p in ([1, 2, 3], [4])]
    scores = process_block(rows, [[5, 6], [7]], torch.zeros(2, 3, 9))
    assert scores[:, :, 0].tolist() == [[303.0, 405.0, 506.0], [104.0, 207.0, 0.0]]


def test_a_block_of_rows_with_unlike_processors_is_as_each_alone() -> None:
    warm, cold = tf.TemperatureLogitsWarper(2.0), tf.TemperatureLogitsWarper(0.5)
    pipelines = [
        Pipeline(),
        Pipeline(True, pointwise=(warm, tf.TopKLogitsWarper(3))),
        Pipeline(True, prefix=(CountPrefix(),), pointwise=(cold,)),
        Pipeline(True, pointwise=(cold, tf.TopPLogitsWarper(0.5))),
    ]
    rows = [Row(request([n, 1], pipeline=p), None) for n, p in enumerate(pipelines)]
    drafts = [[1, 2], [3], [4, 5], []]
    logits = torch.randn(4, 3, 9, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    together = process_block(rows, drafts, logits)
    assert torch.equal(logits, before)
    for n, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
        alone = process_block([row], [draft], logits[n : n + 1, : len(draft) + 1])
        assert torch.equal(together[n, : len(draft) + 1], alone[0])


def test_plain_blocks_pass_untouched() -> None:
    rows = [Row(request([1]), None)]
    logits = torch.zeros(1, 2, 9, dtype=torch.bfloat16)
    assert process_block(rows, [[1]], logits) is logits
    assert apply_pointwise((), logits) is logits
    warm = apply_pointwise((tf.TemperatureLogitsWarper(2.0),), logits)
    assert (warm.dtype, warm.shape) == (torch.float32, logits.shape)


def test_only_the_users_processors_may_not_rule_out_everything() -> None:
    def nothing(ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf)

    with pytest.raises(RowError, match="ruled out every token"):
        Pipeline(custom=(nothing,)).at([1], torch.zeros(5), custom=True)
    assert not Pipeline(custom=(nothing,)).plain


@pytest.mark.parametrize(
    "own",
    [
        {"sequence_bias": [[[7], -4.0], [[11, 12], 3.0]]},
        {"encoder_no_repeat_ngram_size": 1},
        {"encoder_repetition_penalty": 1.7},
        {"exponential_decay_length_penalty": (2, 1.3), "eos_token_id": 5},
    ],
    ids=lambda own: next(iter(own)),
)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_rare_settings_of_a_models_own(name: str, own: dict[str, Any]) -> None:
    """What a model's `generation_config` asks for holds, as in transformers."""
    encoder = encoder_inputs(name, 7)
    if encoder is None and any(option.startswith("encoder") for option in own):
        pytest.skip("there is no encoder")
    model = build(name)
    model.generation_config.update(**own)
    prompt: Any = [8, 9, 10] if encoder is None else encoder
    inputs = {"input_ids": torch.tensor([[8, 9, 10]])} if encoder is None else encoder
    start = 3 if encoder is None else 1
    plain = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, start:].tolist()
    result = Pair(model, build(name, seed=1)).generate(prompt, max_new_tokens=16, policy="static")
    assert list(result.token_ids) == plain
