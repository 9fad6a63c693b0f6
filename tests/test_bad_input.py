"""Bad input is refused in one line that names the thing and the remedy, before any model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from tests.identity.more_models import build as build_more
from tests.models import build
from tests.reports.helpers import bytes_tokenizer

import biglittle
from biglittle import (
    BiglittleError,
    ContextError,
    IncompatiblePairError,
    LoadError,
    Pair,
    ParameterError,
    Policy,
    PolicyError,
    UnsupportedModelError,
)


def fail(*args: Any, **kwargs: Any) -> None:
    pytest.fail("a model ran")


def idle(name: str, **settings: Any) -> Any:
    """A model whose forward must not be called."""
    made = build_more(name, **settings) if settings or "For" in name else build(name)
    made.forward = _signed(made.forward)
    if made.config.is_encoder_decoder:
        made.get_encoder().register_forward_pre_hook(fail)
    return made


def _signed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`fail` with the parameters of the real one, which are looked at."""

    def forbidden(*args: Any, **kwargs: Any) -> None:
        fail()

    forbidden.__wrapped__ = forward  # type: ignore[attr-defined]
    return forbidden


@pytest.fixture(scope="module")
def target() -> Any:
    return idle("llama")


@pytest.fixture(scope="module")
def text_pair() -> Pair:
    tokenizer = bytes_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return Pair(
        idle("LlamaForCausalLM", vocab_size=len(tokenizer)), "prompt-lookup:ngram=2", tokenizer
    )


def refused(error: type[BiglittleError], call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    for word in words:
        assert word in message, message


# Policies.

POLICIES: list[tuple[Any, list[str]]] = [
    ("dynamc", ["unknown policy 'dynamc'", "did you mean 'dynamic'"]),
    ("bildd:fallback=0.6", ["did you mean 'bild'"]),
    ("static:token=3", ["unknown option 'token'", "did you mean 'tokens'"]),
    ("bild:falback=0.6", ["unknown option 'falback'", "did you mean 'fallback'"]),
    ("dynamic+exat", ["unknown acceptance 'exat'", "did you mean 'exact'"]),
    ("none:tokens=3", ["'none' takes no options"]),
    ("static:tokens", ["'tokens' is not of the form option=value"]),
    ("static:tokens=", ["option=value"]),
    ("static:tokens=2,tokens=3", ["given twice"]),
    ("static:tokens=0", ["tokens=0", "at least 1"]),
    ("static:tokens=-3", ["tokens=-3", "at least 1"]),
    ("static:tokens=many", ["tokens=many", "a whole number"]),
    ("static:tokens=2.5", ["tokens=2.5", "a whole number"]),
    ("heuristic:start=0", ["start", "at least 1"]),
    ("dynamic:threshold=1.5", ["threshold=1.5", "between 0 and 1"]),
    ("dynamic:threshold=-0.1", ["threshold=-0.1", "between 0 and 1"]),
    ("dynamic:threshold=nan", ["threshold=nan"]),
    ("dynamic:threshold=high", ["threshold=high", "a number"]),
    ("bild:fallback=nan", ["nan", "must be a number"]),
    ("bild:fallback=nan", ["nan"]),
    ("bild:rollback=nan", ["rollback=nan"]),
    ("bild:first=nobody", ["first=nobody", "draft, target"]),
    ("bild:verify_end=maybe", ["verify_end=maybe", "true or false"]),
    ("bild+exact", ["bild"]),
    ("", ["no name"]),
    (":tokens=3", ["no name"]),
    (3, ["3 is neither a string nor a Policy"]),
    ([], ["neither a string nor a Policy"]),
]


@pytest.mark.parametrize(("policy", "words"), POLICIES, ids=lambda value: str(value)[:30])
def test_policies(target: Any, policy: Any, words: list[str]) -> None:
    refused(PolicyError, lambda: Pair(target, "prompt-lookup", policy=policy), *words)
    pair = Pair(target, "prompt-lookup")
    refused(PolicyError, lambda: pair.generate([5], policy=policy), *words)
    refused(PolicyError, lambda: pair.stream([5], policy=policy), *words)


def test_policies_as_objects() -> None:
    refused(PolicyError, lambda: Policy.dynamic(threshold=2), "threshold=2")
    refused(PolicyError, lambda: Policy.static(tokens=True), "tokens=True")
    refused(PolicyError, lambda: Policy.bild(rollback=float("nan")), "rollback=nan")
    refused(PolicyError, lambda: Policy("dynamic"), "is not a Lookahead")  # type: ignore[arg-type]


def test_a_policy_that_needs_a_draft(target: Any) -> None:
    refused(PolicyError, lambda: Pair(target, policy="dynamic"), "needs a draft", "prompt-lookup")
    refused(PolicyError, lambda: Pair(target).generate([5], policy="bild"), "needs a draft")


# Parameters.

NAN, INF = float("nan"), float("inf")
PARAMETERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"max_tokens": 3}, ["unknown parameter 'max_tokens'", "did you mean 'max_new_tokens'"]),
    ({"temprature": 1.0}, ["did you mean 'temperature'"]),
    ({"max_new_tokens": 0}, ["max_new_tokens=0", "at least 1"]),
    ({"max_new_tokens": -1}, ["max_new_tokens=-1"]),
    ({"max_new_tokens": 2.5}, ["max_new_tokens=2.5", "whole number"]),
    ({"max_new_tokens": "5"}, ["max_new_tokens='5'"]),
    ({"max_new_tokens": True}, ["max_new_tokens=True"]),
    ({"min_new_tokens": -1}, ["min_new_tokens=-1"]),
    ({"min_new_tokens": 9, "max_new_tokens": 4}, ["min_new_tokens=9", "max_new_tokens=4"]),
    ({"temperature": -0.5}, ["temperature=-0.5", "at least 0"]),
    ({"temperature": NAN}, ["temperature=nan"]),
    ({"temperature": INF}, ["temperature=inf"]),
    ({"temperature": "hot"}, ["temperature='hot'"]),
    ({"top_p": 0, "temperature": 1}, ["top_p=0", "above 0 and at most 1"]),
    ({"top_p": 1.5, "temperature": 1}, ["top_p=1.5"]),
    ({"top_p": 0.5}, ["top_p=0.5 has no effect on greedy", "temperature"]),
    ({"top_k": -1, "temperature": 1}, ["top_k=-1"]),
    ({"min_p": 2, "temperature": 1}, ["min_p=2"]),
    ({"repetition_penalty": 0}, ["repetition_penalty=0", "above 0"]),
    ({"no_repeat_ngram_size": -1}, ["no_repeat_ngram_size=-1"]),
    ({"logprobs": -1}, ["logprobs=-1"]),
    ({"n": 0}, ["n=0"]),
    ({"n": 2}, ["n=2", "temperature"]),
    ({"seed": -1}, ["seed=-1"]),
    ({"seed": 1.5}, ["seed=1.5"]),
    ({"seed": 2**70}, ["seed", "2**63"]),
    ({"stop": ""}, ["stop", "at least one character"]),
    ({"stop": ["a", ""]}, ["stop", "at least one character"]),
    ({"stop": [3]}, ["stop"]),
    ({"stop": 3}, ["stop=3"]),
    ({"stop": "end"}, ["need a tokenizer"]),
    ({"eos_token_ids": -1}, ["eos_token_ids", "-1"]),
    ({"eos_token_ids": 97}, ["eos_token_ids", "97 is not below the vocabulary of 97"]),
    ({"eos_token_ids": "</s>"}, ["eos_token_ids"]),
    ({"suppress_tokens": [-1]}, ["suppress_tokens"]),
    ({"suppress_tokens": 5}, ["suppress_tokens=5"]),
    ({"bad_words": [[]]}, ["bad_words", "empty"]),
    ({"bad_words": [""]}, ["bad_words", "empty"]),
    ({"bad_words": [[9999]]}, ["bad_words", "9999 is not below the vocabulary of 97"]),
    ({"bad_words": ["word"]}, ["bad_words", "tokenizer"]),
    ({"bad_words": "word"}, ["bad_words='word'", "list"]),
    ({"logits_processors": [3]}, ["logits_processors: 3 is not a LogitsProcessor"]),
    ({"logits_processors": 3}, ["logits_processors"]),
    ({"stopping_criteria": ["x"]}, ["stopping_criteria: 'x' is not a StoppingCriteria"]),
    ({"params": {"max_new_tokens": 4}}, ["params must be GenerationParams, not dict"]),
]


@pytest.mark.parametrize(("options", "words"), PARAMETERS, ids=lambda value: str(value)[:40])
def test_parameters(target: Any, options: dict[str, Any], words: list[str]) -> None:
    pair = Pair(target, "prompt-lookup")
    refused(ParameterError, lambda: pair.generate([5], **options), *words)
    refused(ParameterError, lambda: pair.stream([5], **options), *words)


def test_parameters_of_a_chat(text_pair: Pair) -> None:
    refused(ParameterError, lambda: text_pair.chat(max_tokens=3).send("hi"), "max_new_tokens")
    refused(ParameterError, lambda: text_pair.chat().send(""), "the message is empty")


# Prompts: see test_prompts.py for all of them.


@pytest.mark.parametrize(
    ("prompt", "error", "word"),
    [
        ("", ParameterError, "the prompt is empty"),
        ([], ParameterError, "there are no prompts"),
        (["hi", ""], ParameterError, "prompt 1 is empty"),
        ([[]], ParameterError, "prompt 0 is empty"),
        (None, ParameterError, "not NoneType"),
        ([5, 10**6], ParameterError, "outside the vocabulary"),
        ({"input_ids": [5]}, ParameterError, "has no encoder"),
        ("x" * 128, ContextError, "a context of 128; shorten it to 127"),
        (["hi", "x" * 500], ContextError, "prompt 1 has 500 tokens"),
    ],
)
def test_prompts(text_pair: Pair, prompt: Any, error: type[BiglittleError], word: str) -> None:
    refused(error, lambda: text_pair.generate(prompt), word)
    refused(error, lambda: text_pair.stream(prompt), word)


def test_prompts_of_encoders() -> None:
    bart = Pair(idle("bart"), "early-exit:layers=1")
    refused(ContextError, lambda: bart.generate([5] * 129), "129 tokens", "128 at most")
    refused(ParameterError, lambda: bart.generate({"input_ids": [97]}), "outside the vocabulary")
    short = build_more("BartForConditionalGeneration", max_position_embeddings=64)
    with_draft = Pair(idle("bart"), short)
    refused(ContextError, lambda: with_draft.generate([5] * 65), "65 tokens", "64 at most")
    whisper = Pair(idle("whisper"))
    features = {"input_features": torch.randn(1, 8, 30)}
    refused(ParameterError, lambda: whisper.generate(features), "[1, 8, 30]", "[1, 8, 32]")


def test_text_and_chats_that_the_tokenizer_cannot_serve(target: Any) -> None:
    pair = Pair(target, None)
    refused(ParameterError, lambda: pair.generate("hi"), "no tokenizer; pass tokenizer=")
    plain_text = Pair(target, None, bytes_tokenizer())
    chat = [{"role": "user", "content": "hi"}]
    refused(ParameterError, lambda: plain_text.generate(chat), "no chat template; give text")


# Models and pairs.

DRAFTS: list[tuple[Any, type[BiglittleError], list[str]]] = [
    ("early-exit", ParameterError, ["early-exit:layers=NUMBER"]),
    ("early-exit:layers=3", ParameterError, ["has 3, so give a number from 1 to 2"]),
    ("early-exit:layers=0", ParameterError, ["layers=NUMBER"]),
    ("prompt-lookup:ngram=0", ParameterError, ["ngram=NUMBER"]),
    ("promt-lookup", ParameterError, ["did you mean 'prompt-lookup'"]),
    ("some/model", UnsupportedModelError, ["'some/model' is a name", "biglittle.load"]),
    (3, UnsupportedModelError, ["int is not a transformers model"]),
    (torch.nn.Linear(2, 2), UnsupportedModelError, ["Linear is not a transformers model"]),
]


@pytest.mark.parametrize(("draft", "error", "words"), DRAFTS, ids=lambda value: str(value)[:30])
def test_drafts(target: Any, draft: Any, error: type[BiglittleError], words: list[str]) -> None:
    refused(error, lambda: Pair(target, draft), *words)


def test_targets(target: Any) -> None:
    for wrong in (None, 3, "some/model", torch.nn.Linear(2, 2)):
        refused(UnsupportedModelError, lambda wrong=wrong: Pair(wrong))  # type: ignore[misc]
    headless = tf.LlamaModel(target.config)
    refused(UnsupportedModelError, lambda: Pair(headless), "no language-model head")
    with torch.device("meta"):
        empty = tf.LlamaForCausalLM(target.config)
    refused(UnsupportedModelError, lambda: Pair(empty), "meta device")
    flex = build("llama")
    flex.config._attn_implementation = "flex_attention"
    refused(UnsupportedModelError, lambda: Pair(flex), "flex_attention", "sdpa")
    recurrent = idle("MambaForCausalLM", state_size=4, time_step_rank=4)
    refused(UnsupportedModelError, lambda: Pair(recurrent), "mamba", "cannot be rolled back")


def test_pairs(target: Any) -> None:
    refused(IncompatiblePairError, lambda: Pair(target, idle("bart")), "same kind")
    other = idle("LlamaForCausalLM", vocab_size=300)
    refused(IncompatiblePairError, lambda: Pair(other, target), "vocabulary", "same family")
    refused(ParameterError, lambda: Pair(target, None, 3), "not a transformers tokenizer")


def test_missing_files_and_devices(tmp_path: Any) -> None:
    refused(LoadError, lambda: biglittle.load(tmp_path / "none"), "no such file or folder")
    build_more("LlamaForCausalLM").save_pretrained(tmp_path / "model")
    refused(
        ParameterError,
        lambda: biglittle.load(tmp_path / "model", tmp_path / "model", draft_device="cuda:99"),
        "cuda:99",
        "try 'auto' or 'cpu'",
    )


# One tree, and the built-in exceptions that code without this library would catch.


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ParameterError, ValueError),
        (PolicyError, ValueError),
        (ContextError, ValueError),
        (LoadError, OSError),
        (UnsupportedModelError, TypeError),
        (IncompatiblePairError, ValueError),
    ],
)
def test_one_tree(error: type[BiglittleError], builtin: type[Exception]) -> None:
    assert issubclass(error, BiglittleError)
    assert issubclass(error, builtin)
