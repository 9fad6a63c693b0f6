"""Encoder-decoder rows whose first decoder pass is put off until the first draft is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import build, encoder_inputs
from tests.reports.helpers import make_pair

from biglittle.engines.base import Prompt
from biglittle.engines.transformers import make_runner

MODELS = ["t5", "bart", "whisper"]
BLOCK = [[1, 5, 9, 4], [1, 7, 2, 6], [1, 3, 3, 8]]


def prompt(name: str, length: int) -> Prompt:
    return Prompt((0,), encoder_inputs(name, length, seed=length))


def scores(runner: Any) -> torch.Tensor:
    """Of a block after every row's beginning."""
    rows = len(runner.lengths)
    runner.truncate([0] * rows)
    found: torch.Tensor = runner.forward(torch.tensor(BLOCK[:rows]), [4] * rows)
    return found.clone()


def touched(name: str, action: Callable[[Any], None], most: int | None) -> torch.Tensor:
    """Two rows, the second one with its first pass done or put off, and something with a row."""
    runner = make_runner(build(name))
    runner.admit(prompt(name, 5))
    runner.admit(prompt(name, 7), most=most)
    runner.truncate([0, 0])
    action(runner)
    return scores(runner)


@pytest.mark.parametrize("name", MODELS)
def test_alone_its_first_block_is_its_first_pass(name: str) -> None:
    found = []
    for most in (None, 0):
        runner = make_runner(build(name))
        logits = runner.admit(prompt(name, 7), most=most)
        assert logits.shape[0] == (most is None)
        assert runner.lengths == [1 if most is None else 0]
        found.append(scores(runner))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "action",
    [
        lambda runner: None,
        lambda runner: runner.swap(0, 1),
        lambda runner: runner.fork(1),
        lambda runner: runner.release(0),
        lambda runner: runner.release(1),
        lambda runner: runner.read(0, [4]),
        lambda runner: runner.read(1, [4]),
    ],
    ids=["forward", "swap", "fork", "release", "release it", "read", "read it"],
)
def test_beside_others_it_is_done_before(name: str, action: Callable[[Any], None]) -> None:
    torch.testing.assert_close(touched(name, action, 0), touched(name, action, None))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("most", [0, None])
def test_another_row_may_come_after_it(name: str, most: int | None) -> None:
    def admit(runner: Any) -> None:
        runner.admit(prompt(name, 6), most=most)

    torch.testing.assert_close(touched(name, admit, 0), touched(name, admit, None))


@pytest.mark.parametrize("name", MODELS)
def test_a_draft_that_begins_saves_the_target_a_pass(name: str) -> None:
    pair = make_pair("unrelated", name)
    inputs: Any = [encoder_inputs(name, length, seed=length) for length in (6, 9, 4)]
    plain = pair.generate(inputs, policy="none", max_new_tokens=8)
    strict = "bild:fallback=0,rollback=-1,tokens=2"  # BiLD that keeps what greedy decoding writes
    alone = [pair.generate(each, policy=strict, max_new_tokens=8) for each in inputs]
    beside = pair.generate(inputs, policy=strict, max_new_tokens=8)
    for wanted, one, other in zip(plain, alone, beside, strict=True):
        assert one.token_ids == other.token_ids == wanted.token_ids
        assert one.stats.target_passes == one.stats.rounds
        assert other.stats.target_passes == other.stats.rounds + 1  # the one before it
        assert one.stats.draft_seconds > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_draft_that_reads_the_target_lets_it_read_first(name: str) -> None:
    pair = make_pair("early-exit:layers=1", name)
    inputs: Any = encoder_inputs(name, 6, seed=6)
    plain = pair.generate(inputs, policy="none", max_new_tokens=8)
    found = pair.generate(inputs, policy="bild:fallback=0,rollback=-1,tokens=2", max_new_tokens=8)
    assert found.token_ids == plain.token_ids
    assert found.stats.target_passes == found.stats.rounds + 1
