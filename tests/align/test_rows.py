"""Many texts through a few rows."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from tests.models import build

from biglittle import Pair
from biglittle.align.rows import run_fastest, run_rows
from biglittle.decoding import Engine, Request
from biglittle.policy import Policy

TEXTS = [[1, 5, 9], [1, 7], [1, 3, 4, 8], [2, 6], [9, 9, 4], [3], [8, 8], [5, 1]]


@pytest.fixture(scope="module")
def pair() -> Pair:
    target = build("llama")
    return Pair(target, target, policy="static:tokens=3")


def request(pair: Pair, text: list[int], policy: Policy | None = None) -> Request:
    return pair.requests(text, policy=policy, temperature=0.0, max_new_tokens=3 + len(text))[0]


def test_every_text_is_written_as_if_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    most = [0]

    def next_request(text: list[int]) -> Request | None:
        return None if len(text) == 1 else request(pair, text)

    step = Engine.step

    def counted(self: Engine) -> Any:
        rows = step(self)
        most[0] = max(most[0], len(self.rows))
        return rows

    monkeypatch.setattr(Engine, "step", counted)
    waiting = deque(TEXTS)
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for text, row in run_rows(pair, waiting, next_request, 3):
        found[tuple(text)] = tuple(row.new_tokens)
        if text == [2, 6]:
            waiting.append([4, 4])  # what follows from an answer
    assert most == [3]
    assert set(found) == {tuple(text) for text in [*TEXTS, [4, 4]] if len(text) > 1}
    for key, tokens in found.items():
        assert tokens == pair.run([request(pair, list(key))])[0].token_ids


@pytest.mark.parametrize("slow", ["static:tokens=3", "none"])
def test_what_is_faster_is_gone_on_with(
    pair: Pair, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    used: list[str] = []

    def timed(text: list[int], policy: Policy) -> Request:
        used.append(str(policy))
        clock[0] += 9.0 if str(policy) == slow else 1.0
        return request(pair, text, policy)

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    texts = [[number] for number in range(1, 13)]
    found = list(run_fastest(pair, deque(texts), timed, 2))
    assert sorted(text for text, _ in found) == texts
    other = {"none": "static:tokens=3", "static:tokens=3": "none"}[slow]
    assert used == ["static:tokens=3"] * 4 + ["none"] * 4 + [other] * 4
