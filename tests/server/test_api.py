"""The API, asked by the official client; the texts are those of the library."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.request import urlopen

import openai
import pytest
import transformers as tf
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from tests.models import T5
from tests.server.conftest import NAME, Running, make_service, wait_for

from biglittle import Pair
from biglittle.server.logs import JsonLines
from biglittle.server.schemas import CompletionRequest

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


def test_chat(client: OpenAI, pair: Pair) -> None:
    found = client.chat.completions.create(
        model=NAME, messages=MESSAGES, temperature=0, max_completion_tokens=10
    )
    assert found.object == "chat.completion"
    choice = found.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == text_of(pair, MESSAGES, max_new_tokens=10)
    assert choice.finish_reason == "length"


def test_messages_in_parts_and_the_developer(client: OpenAI, pair: Pair) -> None:
    parts: Any = [
        {"role": "developer", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Who "}, {"type": "text", "text": "?"}],
        },
    ]
    plain = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who ?"}]
    found = client.chat.completions.create(model=NAME, messages=parts, temperature=0, max_tokens=8)
    assert found.choices[0].message.content == text_of(pair, plain, max_new_tokens=8)


@pytest.mark.parametrize("policy", [None, "none", "dynamic"])
def test_a_stream_says_what_the_whole_answer_says(client: OpenAI, policy: str | None) -> None:
    asked: Any = {
        "model": NAME,
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 20,
        "extra_body": {"policy": policy},
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_completion_as_a_stream(client: OpenAI, pair: Pair) -> None:
    chunks = list(
        client.completions.create(
            model=NAME, prompt=PROMPT, temperature=0, max_tokens=12, stream=True
        )
    )
    assert "".join(c.choices[0].text for c in chunks) == text_of(pair)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_several_prompts_and_samples(client: OpenAI, pair: Pair) -> None:
    prompts = ["The little", "the big model"]
    found = client.completions.create(
        model=NAME, prompt=prompts, n=2, seed=7, temperature=1, max_tokens=8
    )
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    expected = [
        pair.generate(prompt, temperature=1.0, seed=seed, max_new_tokens=8)
        for prompt in prompts
        for seed in (7, 8)
    ]
    assert [choice.text for choice in found.choices] == [result.text for result in expected]
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(e.stats.prompt_tokens for e in expected[::2])
    assert found.usage.completion_tokens == sum(e.stats.new_tokens for e in expected)


def test_token_ids_as_a_prompt(client: OpenAI, pair: Pair) -> None:
    ids = pair.tokenizer(PROMPT).input_ids
    found = client.completions.create(model=NAME, prompt=ids, temperature=0)
    assert found.choices[0].text == text_of(pair, max_new_tokens=16)  # OpenAI's default


def test_sampling_repeats_with_a_seed(client: OpenAI) -> None:
    def ask(seed: int) -> str:
        found = client.completions.create(
            model=NAME, prompt=PROMPT, seed=seed, temperature=1, top_p=0.9, max_tokens=12
        )
        return found.choices[0].text

    assert ask(3) == ask(3) != ask(-4)
    assert ask(-4) == ask(-4)


def test_without_a_temperature_it_samples_as_openai_does(client: OpenAI, pair: Pair) -> None:
    found = client.completions.create(model=NAME, prompt=PROMPT, seed=1, max_tokens=12)
    assert (
        found.choices[0].text
        == pair.generate(PROMPT, seed=1, temperature=1.0, max_new_tokens=12).text
    )


def test_stop(client: OpenAI, pair: Pair) -> None:
    text = text_of(pair, max_new_tokens=24)
    stop = text[5:7]
    found = client.completions.create(
        model=NAME, prompt=PROMPT, temperature=0, max_tokens=24, stop=[stop, "never ever"]
    )
    assert found.choices[0].text == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"


def test_logprobs_of_a_chat(client: OpenAI, pair: Pair) -> None:
    asked: Any = {"model": NAME, "messages": MESSAGES, "temperature": 0, "max_tokens": 8}
    result = pair.generate(MESSAGES, max_new_tokens=8, logprobs=2)
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    found = whole.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 8
    for entry, expected in zip(found.content, result.logprobs, strict=True):
        assert entry.logprob == pytest.approx(expected.logprob)
        assert [top.logprob for top in entry.top_logprobs] == [
            pytest.approx(value) for _, value in expected.top
        ]
        assert entry.token == pair.tokenizer.decode([expected.token])
        assert entry.bytes is None or bytes(entry.bytes).decode() == entry.token
    chunks = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, stream=True)
    streamed = [
        entry
        for chunk in chunks
        if (logprobs := chunk.choices[0].logprobs) is not None
        for entry in logprobs.content or []
    ]
    assert [entry.logprob for entry in streamed] == [
        pytest.approx(e.logprob) for e in found.content
    ]


def test_logprobs_of_a_completion(client: OpenAI, pair: Pair) -> None:
    asked: Any = {"model": NAME, "prompt": PROMPT, "temperature": 0, "max_tokens": 8}
    result = pair.generate(PROMPT, max_new_tokens=8, logprobs=1)
    found = client.completions.create(**asked, logprobs=1).choices[0].logprobs
    assert found is not None
    assert found.token_logprobs == [pytest.approx(entry.logprob) for entry in result.logprobs]
    assert found.tokens is not None
    assert found.text_offset is not None
    lengths = [len(token) for token in found.tokens]
    assert found.text_offset == [sum(lengths[:i]) for i in range(8)]
    assert found.top_logprobs is not None
    assert [len(top) for top in found.top_logprobs] == [1] * 8
    chunks = client.completions.create(**asked, logprobs=1, stream=True)
    offsets = [
        offset
        for chunk in chunks
        if (logprobs := chunk.choices[0].logprobs) is not None
        for offset in logprobs.text_offset or []
    ]
    assert offsets == found.text_offset


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "biglittle"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/model")


def test_the_policy_of_a_request_and_what_it_says_of_itself(client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model=NAME,
        prompt=PROMPT,
        temperature=0,
        max_tokens=8,
        extra_body={"policy": "bild:fallback=0.5,rollback=2"},
    )
    assert raw.headers["x-biglittle-policy"] == "bild:fallback=0.5,rollback=2"
    assert raw.headers["x-request-id"].startswith("req-")
    extra = raw.parse().model_extra
    assert extra is not None
    assert extra["policy"] == "bild:fallback=0.5,rollback=2"
    assert extra["lossless"] is False


def test_lossy_policies_need_the_servers_leave(pair: Pair) -> None:
    with Running(make_service(pair)) as running, running.client() as client:
        with pytest.raises(openai.BadRequestError, match="--allow-lossy") as caught:
            client.completions.create(
                model=NAME, prompt=PROMPT, extra_body={"policy": "bild"}, max_tokens=4
            )
        assert caught.value.code == "lossy_policy"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "another"}, "ask for 'tiny'"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": ""}] * 5000}, "messages: "),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "unicode"),
        ({"temperature": 3}, "temperature: "),
        ({"temperature": float("nan")}, "temperature: "),
        ({"top_p": 0}, "top_p: "),
        ({"n": 0}, "n: "),
        ({"n": 10**9}, "n: "),
        ({"stop": ["x"] * 40}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "leave one out"),
        ({"max_tokens": 10_000}, "256 at most"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"tools": []}, "tools: unknown, or not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty: "),
        ({"logit_bias": {"5": 10}}, "logit_bias: "),
        ({"stream_options": {}}, "set stream to true"),
        ({"policy": "dynamc"}, "did you mean"),
        ({"policy": "static:tokens=0"}, "tokens"),
        ({"policy": "disco:path=/etc/passwd"}, "only be the server's own"),
        ({"policy": "disco:path=/etc/passwd+bild"}, "only be the server's own"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "but tiny has a context of 512"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content: Input should be"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content.0.type: Input should be 'text'",
        ),
        ({"stop": ["x", 1]}, "stop.1: Input should be a valid string"),
        ({str(i): i for i in range(100)}, "too many fields"),
        ({"chat_template": "{{ 7*7 }}"}, "chat_template: unknown"),
        ({"\ud800": 1}, "unicode"),
    ],
)
def test_bad_requests(server: Running, changes: dict[str, Any], message: str) -> None:
    body = {"model": NAME, "messages": MESSAGES, "max_tokens": 4, **changes}
    status, _, answer = post(server, "/v1/chat/completions", json.dumps(body).encode())
    assert status == (404 if "model" in changes else 400)
    error = json.loads(answer)["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def post(
    server: Running, path: str, body: bytes, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a raw request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"not json", 400),
        (b"[" * 100_000, 400),
        (b"\xff\xfe", 400),
        (b"[]", 400),
        (b"null", 400),
        (b" " * 5_000_000, 413),
    ],
)
def test_rubbish(server: Running, body: bytes, status: int) -> None:
    found, _, answer = post(server, "/v1/chat/completions", body)
    assert found == status
    assert json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": [-1] * 1000},
        {"prompt": ["x"] + [7] * 100},
        {"prompt": [[1], [-1] * 1000]},
        {"prompt": [True] * 1000},
        {"prompt": "x", "stop": [""] * 1000},
        {"prompt": "x", "prediction": {"type": "content", "content": [{}] * 1000}},
    ],
)
def test_of_a_thousand_mistakes_one_is_told(changes: dict[str, Any]) -> None:
    # Each that is found takes time and memory: of a million of them, seconds and gigabytes.
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"model": NAME, **changes})
    assert caught.value.error_count() <= 2  # a part of a content has two fields


def test_a_body_that_is_not_said_to_be_json(server: Running) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}  # curl's, unless told otherwise
    status, _, answer = post(server, "/v1/completions", b'{"model": "tiny"}', **kind)
    assert status == 400
    assert "send one, as Content-Type: application/json" in str(answer)


def test_unknown_paths_and_methods(server: Running) -> None:
    assert post(server, "/v1/nothing", b"{}")[0] == 404
    assert post(server, "/health", b"{}")[0] == 405


def test_the_key(pair: Pair) -> None:
    with Running(make_service(pair), api_key="secret-1") as running:
        with running.client(api_key="secret-1") as client:
            assert client.models.list().data
        for wrong in ("secret-2", "secret-", "secret-11", "", "ünïcode"):
            body, header = b"{}", {"Authorization": f"Bearer {wrong}".encode().decode("latin-1")}
            status, _, answer = post(running, "/v1/completions", body, **header)
            assert status == 401
            assert json.loads(answer)["error"]["code"] == "invalid_api_key"
        assert urlopen(f"{running.url}/health").status == 200


def test_cors_only_where_given(server: Running, pair: Pair) -> None:
    asked = {"Origin": "https://example.org"}
    assert "access-control-allow-origin" not in post(server, "/v1/completions", b"{}", **asked)[1]
    with Running(make_service(pair), origins=["https://example.org"]) as running:
        _, headers, _ = post(running, "/v1/completions", b"{}", **asked)
        assert headers["access-control-allow-origin"] == "https://example.org"
        _, headers, _ = post(running, "/v1/completions", b"{}", Origin="https://other.org")
        assert "access-control-allow-origin" not in headers


def test_health_and_metrics(server: Running, client: OpenAI) -> None:
    client.completions.create(model=NAME, prompt=PROMPT, temperature=0, max_tokens=12)
    assert json.load(urlopen(f"{server.url}/health")) == {"alive": True, "ready": True}
    assert json.load(urlopen(f"{server.url}/health/ready")) == {"ready": True}
    text = urlopen(f"{server.url}/metrics").read().decode()
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["vllm:generation_tokens_total"] >= 12
    assert values["vllm:spec_decode_num_draft_tokens_total"] > 0
    assert values["vllm:time_to_first_token_seconds_count"] >= 1
    assert values["vllm:inter_token_latency_seconds_count"] >= 11
    assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0
    assert values["biglittle:cached_tokens"] == 0
    assert values["biglittle:rounds_total"] > 0
    assert "biglittle:fallbacks_total" in values


def test_no_prompt_in_the_log(client: OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    def ask(level: str) -> tuple[str, str]:
        """The answer's text, and the request's line in the log."""
        caplog.clear()
        with caplog.at_level(level, logger="biglittle.server"):
            answer = client.completions.create(
                model=NAME, prompt="My secret", temperature=0, max_tokens=9
            )
            wait_for(lambda: any(hasattr(record, "fields") for record in caplog.records))
        record = next(record for record in caplog.records if hasattr(record, "fields"))
        return answer.choices[0].text, JsonLines().format(record)

    text, line = ask("INFO")
    found = json.loads(line)
    assert found["event"] == "request"
    assert found["request_id"].startswith("req-")
    assert (found["status"], found["completion_tokens"]) == (200, 9)
    assert "secret" not in line
    assert json.dumps(text) not in line
    assert "My secret" in ask("DEBUG")[1]


def test_what_prompts_share_is_not_read_again(pair: Pair) -> None:
    system = "Be kind, be brief, and say what you know. " * 3
    with Running(make_service(pair, rows=2)) as running, running.client() as client:
        found = [
            client.completions.create(model=NAME, prompt=system + end, temperature=0, max_tokens=12)
            for end in ("Who?", "What?")
        ]
        assert [f.choices[0].text for f in found] == [
            text_of(pair, system + end) for end in ("Who?", "What?")
        ]
        cached = [
            usage.prompt_tokens_details.cached_tokens
            for f in found
            if (usage := f.usage) is not None and usage.prompt_tokens_details is not None
        ]
        assert cached[0] == 0
        assert cached[1] is not None
        assert cached[1] >= len(pair.tokenizer(system).input_ids) - 2


def test_the_prompts_of_encoders_are_limited(pair: Pair) -> None:
    vocab = len(pair.tokenizer)
    model = tf.T5ForConditionalGeneration(tf.T5Config(**{**T5, "vocab_size": vocab})).eval()
    service = make_service(Pair(model, None, pair.tokenizer), prompt_tokens=50)
    with Running(service) as running, running.client() as client:
        found = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=4)
        assert found.usage is not None
        assert found.usage.prompt_tokens == len(pair.tokenizer(PROMPT).input_ids) + 1  # the start
        with pytest.raises(openai.BadRequestError, match="takes 50 at most"):
            client.completions.create(model=NAME, prompt=PROMPT * 20, max_tokens=4)


def test_what_would_never_fit_in_the_cache(pair: Pair) -> None:
    with Running(make_service(pair, kv_tokens=32)) as running, running.client() as client:
        with pytest.raises(openai.BadRequestError, match="kv_tokens=32") as caught:
            client.completions.create(model=NAME, prompt=PROMPT, max_tokens=64)
        assert caught.value.code == "context_length_exceeded"
        assert client.completions.create(model=NAME, prompt=PROMPT, max_tokens=8).choices[0].text


@pytest.mark.parametrize("depth", [100, 300, 600, 900, 990])
def test_a_schema_that_is_nested_deeply(server: Running, depth: int) -> None:
    schema = '{"properties":{"a":' * depth + "{}" + "}}" * depth
    form = f'{{"type":"json_schema","json_schema":{{"name":"x","schema":{schema}}}}}'
    body = (
        f'{{"model":"{NAME}","messages":[{{"role":"user","content":"x"}}],"max_tokens":4,'
        f'"response_format":{form}}}'
    )
    status, _, answer = post(server, "/v1/chat/completions", body.encode())
    assert status in (200, 400), answer


def test_what_nobody_foresaw(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    service = make_service(pair)
    with Running(service) as running:
        monkeypatch.setattr(service, "complete", lambda body: 1 / 0)
        body = json.dumps({"model": NAME, "prompt": "secret"}).encode()
        status, headers, answer = post(running, "/v1/completions", body)
        assert status == 500
        assert headers["x-request-id"]
        assert json.loads(answer)["error"]["code"] == "internal_error"
        assert b"ZeroDivision" not in answer
