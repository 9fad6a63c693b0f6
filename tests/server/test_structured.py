"""Answers are valid JSON, and speculation does not change them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.server.conftest import NAME, Running, make_service

from biglittle import Pair

MESSAGES: Any = [{"role": "user", "content": "Give me JSON."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "size": {"enum": ["little", "big"]},
        "marks": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["name", "size", "marks"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}


def ask(client: OpenAI, form: Any = FORMAT, **options: Any) -> list[str]:
    found = client.chat.completions.create(
        **{
            "model": NAME,
            "messages": MESSAGES,
            "max_tokens": 200,
            "response_format": form,
            **options,
        }
    )
    assert {choice.finish_reason for choice in found.choices} == {"stop"}
    return [choice.message.content or "" for choice in found.choices]


def check(text: str) -> None:
    data = json.loads(text)
    assert sorted(data) == ["marks", "name", "size"]
    assert isinstance(data["name"], str)
    assert data["size"] in ("little", "big")
    assert 1 <= len(data["marks"]) <= 3
    assert all(0 <= mark <= 99 for mark in data["marks"])


@pytest.mark.parametrize("policy", ["none", "static:tokens=4", "dynamic"])
def test_greedy_is_the_same_under_every_policy(client: OpenAI, policy: str) -> None:
    (text,) = ask(client, temperature=0, extra_body={"policy": policy})
    check(text)
    assert [text] == ask(client, temperature=0, extra_body={"policy": "none"})


@pytest.mark.parametrize("policy", ["none", "static:tokens=4", "bild:fallback=0.3,rollback=9"])
def test_samples_are_valid(client: OpenAI, policy: str) -> None:
    texts = ask(client, n=6, temperature=1.0, seed=1, extra_body={"policy": policy})
    for text in texts:
        check(text)
    assert len(set(texts)) > 1


def test_many_of_different_forms_at_once(client: OpenAI) -> None:
    prediction = {"type": "content", "content": '{"name": "x", "size": "big", "marks": [1]}'}
    check(ask(client, temperature=0, prediction=prediction)[0])
    assert ask(client, temperature=0, prediction=prediction) == ask(client, temperature=0)


def test_any_object(client: OpenAI) -> None:
    found = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        max_tokens=100,
        temperature=0,
        response_format={"type": "json_object"},
    )
    choice = found.choices[0]
    assert (choice.message.content or "").startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


def test_a_stream(client: OpenAI) -> None:
    chunks = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        max_tokens=200,
        temperature=0,
        response_format=FORMAT,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    check(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://example.org/x.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#"},
    ],
)
def test_a_schema_that_cannot_be_followed(client: OpenAI, schema: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="schema cannot be followed"):
        ask(client, form)


def test_a_schema_beyond_the_grammars_limits(client: OpenAI) -> None:
    keys = [{f"k{i}{j}": {"type": "string"} for j in range(40)} for i in range(40)]
    schema = {"anyOf": [{"type": "object", "properties": properties} for properties in keys]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="grammar gave up") as caught:
        ask(client, form, temperature=0)
    assert "<state>" not in caught.value.message


def test_a_draft_model_of_its_own(two: Pair) -> None:
    with Running(make_service(two)) as running, running.client() as client:
        texts = {
            policy: ask(client, temperature=0, extra_body={"policy": policy})
            for policy in ("none", "static:tokens=4")
        }
        assert texts["none"] == texts["static:tokens=4"]
        check(texts["none"][0])
