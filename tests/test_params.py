from __future__ import annotations

import math
from typing import Any

import pytest
import transformers as tf

from biglittle import GenerationParams, ParameterError
from biglittle.params import make_params


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be a whole number of at least 1"),
        ({"max_new_tokens": 2.0}, "max_new_tokens=2.0 must be a whole number"),
        ({"max_new_tokens": True}, "max_new_tokens=True must be a whole number"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1 must be a whole number of at least 0"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens=5 is above max_new_tokens=4"),
        ({"temperature": -0.1}, "temperature=-0.1 must be a number at least 0"),
        ({"temperature": math.nan}, "temperature=nan must be a number"),
        ({"temperature": math.inf}, "temperature=inf must be a number"),
        ({"temperature": "0.5"}, "temperature='0.5' must be a number"),
        ({"top_p": 0}, "top_p=0 must be a number above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p=1.01 must be a number above 0 and at most 1"),
        ({"top_k": -1}, "top_k=-1 must be a whole number of at least 0"),
        ({"min_p": 1.5}, "min_p=1.5 must be a number at least 0 and at most 1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be a number above 0"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size=1.5 must be a whole number"),
        ({"logprobs": -1}, "logprobs=-1 must be a whole number of at least 0"),
        ({"n": 0}, "n=0 must be a whole number of at least 1"),
        ({"seed": -1}, "seed=-1 must be a whole number of at least 0"),
        ({"seed": 2**63}, "seed=9223372036854775808 must be below"),
        ({"stop": ""}, "stop: a stop string must be text of at least one character"),
        ({"stop": ["end", ""]}, "stop: a stop string must be text of at least one character"),
        ({"stop": [3]}, "stop: a stop string must be text"),
        ({"stop": 3}, "stop=3 must be a list of strings"),
        ({"stop": None}, "stop=None must be a list of strings"),
        ({"bad_words": "bad"}, "bad_words='bad' must be a list of strings or lists of token ids"),
        ({"bad_words": 5}, "bad_words=5 must be a list of"),
        ({"bad_words": [5]}, "bad_words entry=5 must be a list of token ids"),
        ({"bad_words": [["bad"]]}, "bad_words entry: token id='bad' must be a whole number"),
        ({"bad_words": ["bad", ""]}, "bad_words: an entry is empty"),
        ({"bad_words": [[]]}, "bad_words: an entry is empty"),
        ({"suppress_tokens": 5}, "suppress_tokens=5 must be a list of token ids"),
        ({"suppress_tokens": [-5]}, "suppress_tokens: token id=-5 must be a whole number"),
        ({"eos_token_ids": -1}, "eos_token_ids: token id=-1 must be a whole number"),
        ({"eos_token_ids": [1, "2"]}, "eos_token_ids: token id='2' must be a whole number"),
        ({"eos_token_ids": 1.5}, "eos_token_ids=1.5 must be a list of token ids"),
        ({"logits_processors": None}, "logits_processors=None must be a list of LogitsProcessor"),
        ({"logits_processors": [3]}, "logits_processors: 3 is not a LogitsProcessor"),
        ({"stopping_criteria": ["x"]}, "stopping_criteria: 'x' is not a StoppingCriteria"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        GenerationParams(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_can_be_used() -> None:
    params = GenerationParams(
        max_new_tokens=5,
        min_new_tokens=5,
        temperature=0,
        top_p=1,
        top_k=0,
        min_p=0.0,
        repetition_penalty=0.5,
        bad_words=["word", [1, 2], (3,)],
        suppress_tokens=[0],
        seed=2**63 - 1,
        stop=["end", "."],
        eos_token_ids=0,
        logprobs=0,
        n=3,
        logits_processors=[tf.TemperatureLogitsWarper(0.5)],
        stopping_criteria=[tf.MaxLengthCriteria(9)],
    )
    assert params.stop_strings == ("end", ".")
    assert params.eos_ids == (0,)


def test_one_or_several() -> None:
    assert GenerationParams(stop="end").stop_strings == ("end",)
    assert GenerationParams(eos_token_ids=[1, 2]).eos_ids == (1, 2)
    assert GenerationParams(eos_token_ids=[]).eos_ids == ()
    assert GenerationParams().eos_ids is None
    assert GenerationParams().stop_strings == ()


def test_parameters_are_frozen() -> None:
    with pytest.raises(AttributeError):
        GenerationParams().n = 2  # type: ignore[misc]


def test_changes_by_name() -> None:
    base = GenerationParams(temperature=0.5, seed=1)
    changed = make_params(base, {"seed": 2, "max_new_tokens": 9})
    assert (changed.temperature, changed.seed, changed.max_new_tokens) == (0.5, 2, 9)
    assert base.seed == 1
    assert make_params(base) == base
    assert make_params() == GenerationParams()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_tokens", "; did you mean 'max_new_tokens'?"),
        ("temprature", "; did you mean 'temperature'?"),
        ("zzz", "unknown parameter 'zzz'"),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(ParameterError, match=f"unknown parameter '{name}'") as caught:
        make_params(None, {name: 1})
    assert str(caught.value).endswith(hint)


def test_changes_are_checked_too() -> None:
    with pytest.raises(ParameterError, match="n=0"):
        make_params(GenerationParams(), {"n": 0})
    with pytest.raises(ParameterError, match="params must be GenerationParams, not dict"):
        make_params({"n": 2})  # type: ignore[arg-type]
