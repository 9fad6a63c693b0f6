from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import request
from torch import Tensor

from biglittle import ParameterError
from biglittle.decoding import Row
from biglittle.drafters import PromptLookupDrafter
from biglittle.drafters.prompt_lookup import lookup
from biglittle.lookahead import Decision, DraftStep


@pytest.mark.parametrize(
    ("tokens", "ngram", "count", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], 3, 2, [3, 4]),
        ([1, 2, 3, 4, 1, 2], 3, 9, [3, 4, 1, 2]),  # what follows may reach the end
        ([1, 2, 3, 1, 2, 4, 1, 2], 2, 1, [4]),  # the latest occurrence
        ([9, 1, 2, 3, 8, 2, 4, 1, 2], 2, 1, [3]),  # the longest n-gram, though not the latest
        ([9, 1, 2, 3, 8, 2, 4, 1, 2], 1, 1, [4]),
        ([5, 5], 3, 3, [5]),
        ([5, 5, 5], 3, 3, [5]),
        ([1, 2, 3], 3, 5, []),
        ([1], 3, 5, []),
        ([], 3, 5, []),
        ([1, 2, 1], 3, 0, []),
    ],
)
def test_lookup(tokens: list[int], ngram: int, count: int, expected: list[int]) -> None:
    assert lookup(tokens, ngram, count) == expected


def slow_lookup(tokens: list[int], ngram: int, count: int) -> list[int]:
    for size in range(ngram, 0, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[len(tokens) - size :]:
                return tokens[start + size : start + size + count]
    return []


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, 5), st.integers(0, 6))
def test_lookup_is_a_search_from_the_end(tokens: list[int], ngram: int, count: int) -> None:
    assert lookup(tokens, ngram, count) == slow_lookup(tokens, ngram, count)


def rows(*prompts: Sequence[int], eos: Sequence[int] = ()) -> list[Row]:
    return [Row(request(prompt, eos=eos), None) for prompt in prompts]


def go_on(step: DraftStep) -> Tensor:
    assert step.logits is None
    assert torch.equal(step.confidence, torch.ones(len(step.tokens)))
    return torch.zeros(len(step.tokens), dtype=torch.int8)


def test_every_row_looks_in_its_own_text() -> None:
    drafter = PromptLookupDrafter(vocab=100)
    draft = drafter.propose(
        rows([1, 2, 3, 1], [7, 8, 9], [4, 4, 4], [5, 6, 5]), [2, 5, 1, 0], go_on
    )
    assert [row.ids for row in draft.rows] == [[2, 3], [], [4], []]
    assert [row.confidence for row in draft.rows] == [[1.0, 1.0], [], [1.0], []]
    assert draft.q is None
    assert [row.passes for row in draft.rows] == [0] * 4


def test_nothing_is_copied_past_an_eos_or_the_vocabulary() -> None:
    drafter = PromptLookupDrafter(vocab=50)
    found = drafter.propose(rows([1, 2, 9, 3, 1], [1, 2, 60, 3, 1], eos=[9]), [4, 4], go_on)
    assert [row.ids for row in found.rows] == [[2, 9], [2]]


@pytest.mark.parametrize(
    ("decision", "ids", "dropped"), [(Decision.KEEP, [2], False), (Decision.DROP, [], True)]
)
def test_the_lookahead_is_obeyed(decision: Decision, ids: list[int], dropped: bool) -> None:
    def stop(step: DraftStep) -> Tensor:
        return torch.full_like(step.tokens, int(decision), dtype=torch.int8)

    (row,) = PromptLookupDrafter(vocab=50).propose(rows([1, 2, 3, 1]), [3], stop).rows
    assert (row.ids, row.dropped, row.open) == (ids, dropped, False)


def test_ngrams_start_from_one() -> None:
    with pytest.raises(ParameterError, match="ngram=0 must be at least 1"):
        PromptLookupDrafter(0, vocab=10)
