"""A row: what it commits, when it ends, and what it shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.fakes import ByteTokenizer, request

from biglittle import FinishReason, Origin, RowError
from biglittle.decoding import Row
from biglittle.decoding.rows import by_key

ACCEPTED = Origin.ACCEPTED


def start(prompt: str = "p", **options: Any) -> Row:
    return Row(request(list(prompt.encode()), **options), ByteTokenizer())


def write(row: Row, text: str | bytes) -> int:
    """Push bytes until the row ends; how many were committed."""
    data = text.encode() if isinstance(text, str) else text
    for count, byte in enumerate(data, start=1):
        if row.push(byte, ACCEPTED):
            return count
    return len(data)


def test_a_row_counts_down() -> None:
    row = start("pro", new=3)
    assert (row.remaining, row.finished, row.new_tokens) == (3, False, [])
    assert write(row, "abcdef") == 3
    assert (row.remaining, row.finish_reason) == (0, FinishReason.LENGTH)
    assert row.new_tokens == list(b"abc")
    assert row.tokens == list(b"proabc")
    assert row.stats.new_tokens == 3


@pytest.mark.parametrize(
    ("text", "options", "reason", "count"),
    [
        ("abc", {"eos": [ord("b")]}, FinishReason.EOS, 2),
        ("abc", {"eos": [ord("c")], "new": 3}, FinishReason.EOS, 3),  # EOS before the limit
        ("abc", {"stop": ("b",), "eos": [ord("b")]}, FinishReason.STOP, 2),
        ("abc", {"stop": ("bc",), "new": 3}, FinishReason.STOP, 3),
        ("abc", {"criteria": (lambda ids, scores: ids.shape[1] == 3,)}, FinishReason.STOP, 2),
        ("abc", {"new": 2}, FinishReason.LENGTH, 2),
    ],
)
def test_why_a_row_ends(
    text: str, options: dict[str, Any], reason: FinishReason, count: int
) -> None:
    row = start(**options)
    assert write(row, text) == count
    assert row.finish_reason is reason
    result = row.result()
    assert len(result.token_ids) == len(result.origins) == count


def test_a_criterion_may_answer_with_a_tensor_of_rows() -> None:
    row = start(criteria=(lambda ids, scores: torch.tensor([ids[0, -1] == ord("b")]),))
    assert write(row, "abc") == 2


def test_text_held_back_is_shown_at_the_end() -> None:
    row = start(stop=("STOP",), new=4)
    write(row, "x ST")
    chunk = row.take_chunk()
    assert chunk is not None
    assert (chunk.text, chunk.finish_reason) == ("x ST", FinishReason.LENGTH)
    assert row.result().text == "x ST"


def test_a_stop_string_in_what_was_held_back() -> None:
    """The limit cuts a character in two; its remains complete the stop string."""
    row = start(stop=("e\ufffd",), new=2)
    write(row, b"e\xc3")
    assert row.finish_reason is FinishReason.STOP
    assert row.result().text == ""


def test_chunks_add_up() -> None:
    row = start(stop=("END",))
    texts: list[str] = []
    tokens: list[int] = []
    for byte in "é ENé END no".encode():
        ended = row.push(byte, ACCEPTED)
        if chunk := row.take_chunk():
            texts.append(chunk.text)
            tokens += chunk.token_ids
        if ended:
            break
    assert texts == ["", "é", " ", "", "", "", "ENé", " ", "", "", ""]
    assert "".join(texts) == row.result().text == "é ENé "
    assert bytes(tokens).decode() == "é ENé END"


def test_nothing_new_is_no_chunk() -> None:
    row = start()
    assert row.take_chunk() is None
    write(row, "a")
    assert row.take_chunk() is not None
    assert row.take_chunk() is None


def test_without_a_tokenizer_there_are_ids_only() -> None:
    row = Row(request([1, 2], new=2), None)
    row.push(3, ACCEPTED)
    row.push(4, Origin.TARGET)
    chunk = row.take_chunk()
    assert chunk is not None
    assert (chunk.text, chunk.token_ids) == ("", (3, 4))
    assert row.result().origins == (ACCEPTED, Origin.TARGET)


def test_an_error_keeps_what_was_written() -> None:
    row = start()
    write(row, "ab")
    row.fail(KeyError("mine"))
    result = row.result()
    assert (result.text, result.finish_reason) == ("ab", FinishReason.ERROR)
    assert isinstance(result.error, RowError)
    assert isinstance(result.error.__cause__, KeyError)


def test_an_error_of_the_tree_stays_itself() -> None:
    row, error = start(), RowError("ruled out")
    row.fail(error)
    assert row.error is error


def test_numbers_are_the_rows_own() -> None:
    one, other = start(seed=1), start(seed=1)
    torch.manual_seed(5)
    together = one.uniforms(4)
    torch.manual_seed(6)
    assert torch.equal(torch.cat([other.uniforms(1), other.uniforms(3)]), together)
    assert not torch.equal(start(seed=2).uniforms(4), together)
    assert together.dtype == torch.float64
    assert ((together >= 0) & (together < 1)).all()


def test_what_was_not_asked_for_is_not_kept() -> None:
    quiet = request([1])
    quiet.trace = False
    row = Row(quiet, None)
    row.finish(FinishReason.CANCELLED)
    assert (row.result().rounds, row.result().logprobs) == (None, None)


def test_grouping() -> None:
    assert by_key(["a", "b", "a", "c", "b"]) == [("a", [0, 2]), ("b", [1, 4]), ("c", [3])]
    assert by_key([]) == []
