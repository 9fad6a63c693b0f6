"""Prompts that a target writes itself, from the opening of the user's turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import CHAT_TEMPLATE, make_tokenizer

import biglittle
from biglittle import Pair, ParameterError
from biglittle.align import prompts, write_prompts
from biglittle.align.prompts import Opening, opening


@pytest.fixture(scope="module")
def pair(folders: dict[str, str]) -> Pair:
    return biglittle.load(folders["target"], folders["draft"])


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (CHAT_TEMPLATE, Opening("<|user|>", "<|end|>")),
        (
            "<|system|>Be brief.<|end|>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n"
            "<|end|>\n{% endfor %}<|assistant|>\n",
            Opening("<|system|>Be brief.<|end|><|user|>\n", "<|end|>"),
        ),
        ("{% for m in messages %}[INST] {{ m.content }} [/INST]\n{% endfor %}", None),
    ],
)
def test_the_opening_of_a_template(template: str, wanted: Opening | None) -> None:
    tokenizer = make_tokenizer(template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    assert opening(tokenizer, "it") == (wanted or Opening("[INST] ", "[/INST]"))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "it has no chat template, so it cannot ask itself; give prompts"),
        ("{{ messages[0].content }}{{ messages[0].content }}<|end|>", "does not show where"),
        ("<|user|>", "does not show where"),
        ("{{ messages[0].content }}<|end|>", "does not show where"),
        ("<|user|>{{ messages[0].content }}", "does not show where"),
        ("{{ raise_exception('no') }}", "the chat template of it fails"),
    ],
)
def test_templates_that_show_none(template: str | None, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        opening(make_tokenizer(template=template), "it")


def test_prompts_are_different_and_repeatable(pair: Pair, tmp_path: Path) -> None:
    found = write_prompts(pair, 6, tmp_path / "a.jsonl", rows=3)
    texts = [example.turns[0] for example in found.examples]
    assert len({" ".join(text.casefold().split()) for text in texts}) == 6
    assert all(example.chat for example in found.examples)
    assert write_prompts(pair, 6, tmp_path / "b.jsonl", rows=5) == found  # whoever is beside it
    more = write_prompts(pair, 8, tmp_path / "a.jsonl")
    assert more.examples[:6] == found.examples
    other = write_prompts(pair, 6, tmp_path / "c.jsonl", seed=100)
    assert not {example.turns for example in other.examples} & {(text,) for text in texts}


def test_going_on_after_a_kill(pair: Pair, tmp_path: Path) -> None:
    wanted = write_prompts(pair, 5, tmp_path / "whole.jsonl")

    def kill(done: int, total: int, tokens: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_prompts(pair, 5, tmp_path / "part.jsonl", rows=2, progress=kill)
    seen: list[int] = []
    found = write_prompts(
        pair, 5, tmp_path / "part.jsonl", progress=lambda done, total, tokens: seen.append(done)
    )
    assert found == wanted
    assert seen[0] == 3


def test_too_few(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LONGEST", 1)  # none of them ends
    with pytest.raises(ParameterError, match="wrote [0-2] different prompts in 12 attempts"):
        write_prompts(pair, 3, tmp_path / "a.jsonl")
    with pytest.raises(ParameterError, match="seed 0, and now it is 1"):
        write_prompts(pair, 3, tmp_path / "a.jsonl", seed=1)
