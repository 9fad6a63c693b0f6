"""The slot cache: what it holds, and how much memory that takes."""

from __future__ import annotations

import pytest
import torch
from tests.models import build

from biglittle.engines import Prompt
from biglittle.engines.transformers import TransformersRunner, make_runner, slot_cache


def held(runner: TransformersRunner) -> tuple[int, int]:
    """Rows and slots that there is memory for."""
    rows, _, slots, _ = runner.cache.slots[0].keys.shape
    return rows, slots


def test_memory_follows_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_cache, "BLOCK", 4)
    runner = make_runner(build("llama"))
    for n in range(12):
        runner.admit(Prompt((3 + n, 4, 5)))
    assert held(runner) == (12, 4)
    for _ in range(10):
        runner.release(0)
    runner.read(0, [6] * 30)  # a long row: the memory of those that left goes
    assert held(runner) == (2, 36)
    runner.release(0)
    for n in range(6):  # and now that of the long one
        runner.admit(Prompt((7, 8 + n)))
    assert held(runner) == (7, 4)


def test_what_is_in_use_outlives_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_cache, "BLOCK", 4)
    model = build("llama")
    runner, rows = make_runner(model), [[3, 4, 5, 6, 7, 8], [5, 6], [7]]
    with torch.inference_mode():
        for row in rows:
            runner.admit(Prompt(tuple(row)))
        runner.release(0)  # the last one takes its place
        rows = [rows[2], rows[1]]
        rows[0] += [9] * 11
        runner.read(0, [9] * 11)
        for _ in range(3):
            runner.fork(1)
            rows.append(list(rows[1]))
        for number, tokens in enumerate(rows):
            ids = torch.tensor([[*tokens, 4]])
            expected = model(ids, use_cache=False).logits[:, -1]
            assert torch.allclose(runner.read(number, [4]), expected, atol=1e-4)
