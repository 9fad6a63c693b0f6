"""Batches: every request is answered once, whenever the run is stopped."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import NAME, make_service

from biglittle import Pair, ParameterError
from biglittle.files import GrowingFile
from biglittle.server.batch import Answers, read_batch, run_batch

PROMPTS = ["The little", "the big model", "A drafter", "a lookahead", "def add(", "token"]


def line(name: str, **body: Any) -> dict[str, Any]:
    asked = {"model": NAME, "prompt": "The", "temperature": 0, "max_tokens": 8, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": asked}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf8")
    return path


def run(pair: Pair, requests: Path, out: Path, *, most: int | None = None) -> list[int]:
    """Answer a file, or stop after so many answers; their statuses."""
    lines = read_batch(requests)
    answers = Answers(out, lines)
    service = make_service(pair, rows=2, queue=2)
    service.start()
    statuses: list[int] = []
    try:
        asyncio.run(
            run_batch(
                service,
                lines,
                answers,
                together=4,
                answered=statuses.append,
                stopped=lambda: most is not None and len(statuses) >= most,
            )
        )
    finally:
        service.stop()
    return statuses


def read(out: Path) -> dict[str, Any]:
    """Answers by `custom_id`; none is there twice."""
    records = [json.loads(raw) for raw in out.read_text(encoding="utf8").splitlines()]
    found = {record["custom_id"]: record for record in records}
    assert len(found) == len(records)
    return found


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return write(tmp_path / "in.jsonl", [line(str(i), prompt=p) for i, p in enumerate(PROMPTS)])


def check(out: Path, pair: Pair) -> None:
    found = read(out)
    assert sorted(found) == [str(i) for i in range(len(PROMPTS))]
    for i, prompt in enumerate(PROMPTS):
        response = found[str(i)]["response"]
        assert response["status_code"] == 200
        expected = pair.generate(prompt, max_new_tokens=8).text
        assert response["body"]["choices"][0]["text"] == expected
        assert found[str(i)]["error"] is None


def test_all_are_answered(pair: Pair, requests: Path, tmp_path: Path) -> None:
    assert run(pair, requests, tmp_path / "out.jsonl") == [200] * 6
    check(tmp_path / "out.jsonl", pair)


def test_chats_and_what_cannot_be_answered(pair: Pair, tmp_path: Path) -> None:
    chat = line("chat")
    chat["url"] = "/v1/chat/completions"
    chat["body"] = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
    }
    lines = [
        chat,
        line("wrong", temperature=9),
        line("other", model="other"),
        line("stream", stream=True),
        {**line("no body"), "body": 7},
    ]
    requests, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    run(pair, requests, out)
    found = {name: record["response"] for name, record in read(out).items()}
    assert found["chat"]["body"]["choices"][0]["message"]["role"] == "assistant"
    statuses = {name: response["status_code"] for name, response in found.items()}
    assert statuses == {"chat": 200, "wrong": 400, "other": 404, "stream": 400, "no body": 400}
    assert "temperature" in found["wrong"]["body"]["error"]["message"]


def test_a_run_that_was_stopped_goes_on(pair: Pair, requests: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    first = run(pair, requests, out, most=2)
    assert 2 <= len(first) < 6
    assert len(run(pair, requests, out)) == 6 - len(first)
    check(out, pair)
    assert run(pair, requests, out) == []


@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.99])
def test_a_run_that_was_killed_anywhere_goes_on(
    pair: Pair, requests: Path, tmp_path: Path, left: float
) -> None:
    out = tmp_path / "out.jsonl"
    run(pair, requests, out)
    whole = out.read_bytes()
    out.write_bytes(whole[: int(len(whole) * left)])
    run(pair, requests, out)
    check(out, pair)


def test_a_full_disk_is_one_line(requests: Path) -> None:
    lines = read_batch(requests)
    full = Path("/dev/full")
    answers = Answers.__new__(Answers)
    answers.path, answers.done, answers._file = full, set(), GrowingFile(full)
    with pytest.raises(ParameterError, match="No space left .*; make room there"):
        answers.add(lines[0], 200, {})
    assert not answers.done


def test_answers_of_another_batch(requests: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    Answers(out, read_batch(requests)).add(read_batch(requests)[0], 200, {})
    other = write(tmp_path / "other.jsonl", [line("0", prompt="something else")])
    with pytest.raises(ParameterError, match="out.jsonl:1 answers no request of this batch"):
        Answers(out, read_batch(other))
    assert len(read(out)) == 1  # untouched
    out.write_text("not an answer\n", encoding="utf8")
    with pytest.raises(ParameterError, match="answers no request"):
        Answers(out, read_batch(requests))


@pytest.mark.parametrize("text", ["notes, without a newline", '{"custom_id": "1"}', '{"id": "x'])
def test_a_file_of_one_line_is_not_taken_for_an_answer(
    requests: Path, tmp_path: Path, text: str
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(text, encoding="utf8")
    with pytest.raises(ParameterError, match="out.jsonl:1 answers no request of this batch"):
        Answers(out, read_batch(requests))
    assert out.read_text(encoding="utf8") == text


def test_the_requests_are_not_taken_for_answers(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(line("a")), encoding="utf8")
    with pytest.raises(ParameterError, match="answers no request"):
        Answers(path, read_batch(path))
    assert json.loads(path.read_text(encoding="utf8")) == line("a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no request"),
        ("{", "in.jsonl:1 is not JSON"),
        ("[" * 100_000, "in.jsonl:1 is not JSON"),
        ("\n7", "in.jsonl:2 has no"),
        (json.dumps({**line("a"), "method": "GET"}), "must be POST"),
        (json.dumps({**line("a"), "url": "/v1/embeddings"}), "/v1/completions"),
        (json.dumps(line("a")) + "\n" + json.dumps(line("a")), "'a' is there twice"),
    ],
)
def test_files_that_are_no_batch(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(text, encoding="utf8")
    with pytest.raises(ParameterError, match=message):
        read_batch(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cannot read"):
        read_batch(tmp_path / "nothing.jsonl")
