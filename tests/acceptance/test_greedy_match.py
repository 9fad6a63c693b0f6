import torch

from biglittle.acceptance import Exact
from biglittle.acceptance.greedy_match import greedy_accepts, greedy_replace

LOGITS = torch.tensor([[[0.0, 2.0, 1.0], [5.0, 2.0, 1.0]], [[0.0, 2.0, 3.0], [0.0, 2.0, 1.0]]])


def test_a_token_stays_when_it_is_the_argmax() -> None:
    tokens = torch.tensor([[1, 1], [2, 1]])
    expected = [[True, False], [True, True]]
    assert greedy_accepts(tokens, LOGITS).tolist() == expected
    assert Exact().accepts(tokens, LOGITS, None, None).tolist() == expected


def test_the_replacement_is_the_argmax() -> None:
    assert greedy_replace(LOGITS[:, 0]).tolist() == [1, 2]
    assert Exact().replace(LOGITS[:, 0], None, torch.tensor([True, False]), None).tolist() == [1, 2]


def test_ties_go_to_the_same_token_in_both() -> None:
    tie = torch.tensor([[[1.0, 1.0, 0.0]]])
    first = greedy_replace(tie[:, 0])
    assert greedy_accepts(first[:, None], tie).all()
