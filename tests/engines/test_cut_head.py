"""A draft whose head knows some tokens: it proposes no other, and what is lossless stays so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import make_tokenizer, save_model
from torch import nn

import biglittle
from biglittle import LoadError, ParameterError
from biglittle.engines.transformers.cut_head import CutHead, cut_head

KEPT = 120
TEXT = "The little model writes and the big model corrects."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "m", make_tokenizer(), seed=1)


def test_the_head_is_a_part_of_the_whole() -> None:
    torch.manual_seed(0)
    head = nn.Linear(8, 20)
    ids = torch.tensor([0, 3, 4, 19])
    inputs = torch.randn(2, 3, 8)
    scores = CutHead(head, ids)(inputs)
    assert torch.allclose(scores[..., ids], head(inputs)[..., ids])
    others = [token for token in range(20) if token not in ids]
    assert (scores[..., others] == float("-inf")).all()


@pytest.mark.parametrize("options", [{}, {"draft_quantize": "int4"}, {"draft_dtype": "bfloat16"}])
@pytest.mark.parametrize("policy", ["static:tokens=3", "cost-aware", "dynamic"])
def test_the_text_is_the_targets(folder: str, options: dict[str, Any], policy: str) -> None:
    pair = biglittle.load(folder, folder, draft_vocab=KEPT, **options)
    prompts = ["The little", "A drafter", "def add"]
    plain = pair.generate(prompts, policy="none", max_new_tokens=24)
    found = [pair.generate(prompt, policy=policy, max_new_tokens=24) for prompt in prompts]
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    drafted = [
        token
        for one in found
        for token, origin in zip(one.token_ids, one.origins, strict=True)
        if origin == "accepted"
    ]
    assert drafted
    assert all(token < KEPT for token in drafted)


def test_with_processors_that_look_at_any_token(folder: str) -> None:
    pair = biglittle.load(folder, folder, draft_vocab=KEPT)
    options: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "suppress_tokens": [5, KEPT + 5],
        "min_new_tokens": 8,
        "max_new_tokens": 24,
    }
    plain = pair.generate("The little", policy="none", **options)
    assert pair.generate("The little", policy="static:tokens=4", **options).text == plain.text


def test_samples_and_log_probabilities(folder: str) -> None:
    pair = biglittle.load(folder, folder, draft_vocab=KEPT)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_new_tokens": 24}
    found = pair.generate("The", policy="static:tokens=4", logprobs=2, n=3, **options)
    assert all(len(one.logprobs) == len(one.token_ids) for one in found)
    assert sum(one.stats.accepted for one in found) > 0
    assert any(token >= KEPT for one in found for token in one.token_ids)


def test_the_tokens_of_a_text_and_the_end(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    pair = biglittle.load(folder, folder, draft_vocab=file)
    kept = pair.draft.get_output_embeddings().ids.tolist()
    assert set(kept) == {*pair.tokenizer(TEXT).input_ids, pair.tokenizer.eos_token_id}
    ids = biglittle.load(folder, folder, draft_vocab=[9, 4, 9]).draft.get_output_embeddings().ids
    assert ids.tolist() == [0, 4, 9]
    whole = biglittle.load(folder, folder, draft_vocab=10**6).draft.get_output_embeddings()
    assert len(whole.ids) == whole.out_features


def test_ids_beside_a_model_are_for_when_it_drafts(folder: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    (own / "draft_vocab.json").write_text(json.dumps([5, 9]))
    pair = biglittle.load(own, own)
    assert pair.draft.get_output_embeddings().ids.tolist() == [0, 5, 9]  # and the end of a text
    assert type(pair.target.get_output_embeddings()) is nn.Linear
    other = biglittle.load(own, own, draft_vocab=3).draft.get_output_embeddings()
    assert other.ids.tolist() == [0, 1, 2]
    for damaged in ("{", '{"ids": [1]}', '["a"]'):
        (own / "draft_vocab.json").write_text(damaged)
        with pytest.raises(LoadError, match="draft_vocab.json is no list of token ids"):
            biglittle.load(own, own)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (0, "at least 1"),
        (True, "at least 1"),
        ("missing.txt", "cannot be read"),
        ([], "one at least"),
        ([-1], "from 0 to"),
        ([10**6], "from 0 to"),
    ],
)
def test_what_is_no_vocabulary(folder: str, vocab: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        biglittle.load(folder, folder, draft_vocab=vocab)


def test_where_nothing_can_be_cut(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="needs a draft model"):
        biglittle.load(folder, draft_vocab=5)
    with pytest.raises(ParameterError, match="needs a draft model"):
        biglittle.load(folder, "prompt-lookup", draft_vocab=5)
    model = biglittle.load(folder).target
    with pytest.raises(ParameterError, match="loaded here"):
        biglittle.load(folder, model, draft_vocab=5)
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    with pytest.raises(ParameterError, match="is empty"):
        biglittle.load(folder, folder, draft_vocab=str(empty))
    model.set_output_embeddings(nn.Identity())
    with pytest.raises(LoadError, match="no plain linear layer"):
        cut_head(model, [1])
