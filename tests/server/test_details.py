"""Details of answers: what the library itself says of tokens and rounds, whole and streamed."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from tests.cli.conftest import make_tokenizer
from tests.server.conftest import NAME, Running
from tests.server.test_api import MESSAGES, PROMPT, post

from biglittle import Pair
from biglittle.decoding import Row
from biglittle.results import Origin, Result, Round, TokenLogprob
from biglittle.server.details import Details

POLICIES = ["none", "static:tokens=3", "bild:fallback=0.3,rollback=2"]


def ask(server: Running, body: dict[str, Any], *, chat: bool = False) -> Any:
    start = {"messages": MESSAGES} if chat else {"prompt": PROMPT}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    asked = {"model": NAME, "temperature": 0, "max_tokens": 16, **start, **body}
    status, _, raw = post(server, path, json.dumps(asked).encode())
    assert status == 200, raw
    return raw


def whole(server: Running, body: dict[str, Any], **options: Any) -> Any:
    return json.loads(ask(server, {**body, "details": True}, **options))


def streamed(server: Running, body: dict[str, Any], **options: Any) -> list[Any]:
    raw = ask(server, {"details": True, **body, "stream": True}, **options)
    events = [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def check(details: Any, expected: Result) -> None:
    """They are the result's own."""
    tokens = details["tokens"]
    assert expected.logprobs is not None
    assert expected.rounds is not None
    assert "".join(token["text"] for token in tokens) == expected.text
    assert [token["id"] for token in tokens] == list(expected.token_ids)
    assert [token["origin"] for token in tokens] == [str(origin) for origin in expected.origins]
    assert [token["probability"] for token in tokens] == pytest.approx(
        [math.exp(entry.logprob) for entry in expected.logprobs], rel=1e-4
    )
    assert [round_["accepted"] for round_ in details["rounds"]] == [
        round_.accepted for round_ in expected.rounds
    ]
    for found, wanted in zip(details["rounds"], expected.rounds, strict=True):
        assert found.keys() == {field.name for field in dataclasses.fields(Round)}
        assert (found["drafted"], found["fallback"]) == (wanted.drafted, wanted.fallback)
        assert found["confidence"] == pytest.approx(wanted.confidence, rel=1e-4)
    stats = expected.stats
    assert details["stats"]["new_tokens"] == stats.new_tokens
    assert details["stats"]["acceptance_rate"] == stats.acceptance_rate
    assert details["stats"]["rollbacks"] == stats.rollbacks


def joined(events: list[Any], index: int = 0) -> Any:
    """A stream's details of one choice, put together."""
    parts = [
        choice["details"]
        for event in events
        for choice in event["choices"]
        if choice["index"] == index and "details" in choice
    ]
    assert all("stats" not in part for part in parts[:-1])
    return {
        "tokens": [token for part in parts for token in part["tokens"]],
        "rounds": [round_ for part in parts for round_ in part["rounds"]],
        "stats": parts[-1]["stats"],
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chat", [False, True])
def test_they_are_the_results_own(server: Running, pair: Pair, policy: str, chat: bool) -> None:
    expected = pair.generate(
        MESSAGES if chat else PROMPT, policy=policy, max_new_tokens=16, trace=True, logprobs=0
    )
    answer = whole(server, {"policy": policy}, chat=chat)
    check(answer["choices"][0]["details"], expected)
    check(joined(streamed(server, {"policy": policy}, chat=chat)), expected)


def test_a_streams_tokens_come_with_their_text(server: Running) -> None:
    for event in streamed(server, {}):
        choice = event["choices"][0]
        told = choice.get("details", {"tokens": []})["tokens"]
        assert "".join(token["text"] for token in told) == choice["text"]


def test_every_choice_has_its_own(server: Running, pair: Pair) -> None:
    body = {"n": 2, "seed": 5, "temperature": 1}
    expected = [
        pair.generate(PROMPT, temperature=1.0, seed=seed, max_new_tokens=16, trace=True, logprobs=0)
        for seed in (5, 6)
    ]
    events = streamed(server, body)
    answer = whole(server, body)
    for index in range(2):
        check(answer["choices"][index]["details"], expected[index])
        check(joined(events, index), expected[index])


def test_a_stop_string_is_in_no_token(server: Running, pair: Pair) -> None:
    text = pair.generate(PROMPT, max_new_tokens=16).text
    stop = text[5:9]
    expected = pair.generate(PROMPT, max_new_tokens=16, stop=[stop], trace=True, logprobs=0)
    assert expected.text == text[: text.index(stop)] != text
    check(whole(server, {"stop": stop})["choices"][0]["details"], expected)
    check(joined(streamed(server, {"stop": stop})), expected)


@pytest.mark.parametrize("chat", [False, True])
def test_nobody_gets_them_unasked(server: Running, chat: bool) -> None:
    plain = json.loads(ask(server, {}, chat=chat))
    assert "details" not in plain["choices"][0]
    assert plain["choices"][0]["logprobs"] is None
    for event in streamed(server, {"details": False}, chat=chat):
        assert all("details" not in choice for choice in event["choices"])


@pytest.mark.parametrize("chat", [False, True])
def test_they_leave_the_rest_as_it_is(server: Running, chat: bool) -> None:
    logprobs: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    for body in ({}, logprobs):
        plain = json.loads(ask(server, body, chat=chat))
        choice = whole(server, body, chat=chat)["choices"][0]
        del choice["details"]
        assert rounded(choice) == rounded(plain["choices"][0])


def rounded(choice: dict[str, Any]) -> Any:
    """Beside another row, numbers may differ in their last digit."""
    return json.loads(json.dumps(choice), parse_float=lambda text: round(float(text), 4))


def test_openais_client_reads_them(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=NAME,
            messages=MESSAGES,
            temperature=0,
            max_tokens=8,
            stream=True,
            extra_body={"details": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    extra = [(chunk.choices[0].model_extra or {}).get("details") for chunk in chunks]
    assert "".join(t["text"] for part in extra if part for t in part["tokens"]) == text


TOKENIZER = make_tokenizer()
SPREAD = TOKENIZER("🙂 naïve 東京", add_special_tokens=False).input_ids


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    tokens=st.lists(
        st.one_of(st.integers(0, len(TOKENIZER) - 1), st.sampled_from(SPREAD)), min_size=1
    ),
    stop=st.sampled_from([(), ("e",), ("ï", "th"), ("🙂 n",), ("\ufffd",)]),
    every=st.integers(1, 4),
)
def test_texts_of_tokens_make_the_text(
    pair: Pair, tokens: list[int], stop: tuple[str, ...], every: int
) -> None:
    """Whatever the tokens: parts of characters, end tokens, stop strings across tokens."""
    request = pair.requests(PROMPT, max_new_tokens=len(tokens), stop=stop, logprobs=0)[0]
    row = Row(request, pair.tokenizer)
    details = Details(pair.tokenizer, request.prompt.tokens)
    shown, told, written = "", "", 0
    for number, token in enumerate(tokens, start=1):
        row.logprobs.append(TokenLogprob(token, -1.0))
        ended = row.push(token, Origin.TARGET)
        if (number % every == 0 or ended) and (chunk := row.take_chunk()) is not None:
            found = details.take(chunk)["tokens"]
            shown += chunk.text
            told += "".join(part["text"] for part in found)
            written += len(found)
            assert shown.startswith(told)
        if ended:
            break
    assert told == row.result().text
    assert written == len(row.new_tokens)
