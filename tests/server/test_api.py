"""The API, asked by the official client; the texts are those of the library."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.server.conftest import NAME, Running, make_service

from biglittle import Pair

PROMPT = "The little model"
MESSAGES: Any = [{"role": "user", "content": "Who writes?"}]


def text_of(pair: Pair, prompt: Any = PROMPT, **options: Any) -> str:
    text: str = pair.generate(prompt, policy="none", **{"max_new_tokens": 12, **options}).text
    return text


def test_completion(client: OpenAI, pair: Pair) -> None:
    found = client.completions.create(model=NAME, prompt=PROMPT, temperature=0, max_tokens=12)
    result = pair.generate(PROMPT, max_new_tokens=12)
    assert found.choices[0].text == result.text == text_of(pair)
    assert found.choices[0].finish_reason == "length"
    assert found.object == "text_completion"
    assert found.usage is not None
    assert found.usage.prompt_tokens == result.stats.prompt_tokens
    assert found.usage.completion_tokens == 12
    details = found.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens == result.stats.accepted > 0
    assert details.rejected_prediction_tokens == result.stats.drafted - result.stats.accepted
