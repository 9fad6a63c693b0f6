"""A pretrained model on real prompts: in fp32 lossless decoding writes what transformers writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import biglittle
from biglittle import Pair

pytestmark = pytest.mark.slow

NEW_TOKENS = 32
CODE = '''def fibonacci(n: int) -> int:
    """Return the n-th Fibonacci number."""
'''
PROMPTS: list[Any] = [
    CODE,
    "The capital of France is Paris. The capital of Germany is",
    [{"role": "user", "content": "Name three colours of the rainbow, one a line."}],
]


@pytest.fixture(scope="module")
def target(smollm2_dir: Path) -> Pair:
    return biglittle.load(smollm2_dir, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def plain(target: Pair) -> list[list[int]]:
    """What transformers writes after each prompt."""
    tokenizer, written = target.tokenizer, []
    for prompt in PROMPTS:
        if isinstance(prompt, str):
            inputs = tokenizer(prompt, return_tensors="pt")
        else:
            inputs = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        model: Any = target.target
        out = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
        written.append(out[0, inputs["input_ids"].shape[1] :].tolist())
    return written


@pytest.mark.parametrize(
    ("draft", "policy"),
    [
        ("early-exit:layers=20", "static:tokens=3"),
        ("prompt-lookup", "dynamic"),
        ("itself", "dynamic"),
        ("itself", "heuristic"),
    ],
)
def test_ragged_batch(target: Pair, plain: list[list[int]], draft: str, policy: str) -> None:
    pair = Pair(target.target, target.target if draft == "itself" else draft, target.tokenizer)
    results = pair.generate(PROMPTS, policy=policy, max_new_tokens=NEW_TOKENS)
    assert [list(result.token_ids) for result in results] == plain


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_one_prompt(target: Pair, plain: list[list[int]], index: int) -> None:
    pair = Pair(target.target, "prompt-lookup", target.tokenizer, policy="static:tokens=4")
    result = pair.generate(PROMPTS[index], max_new_tokens=NEW_TOKENS)
    assert list(result.token_ids) == plain[index]
    assert result.text == target.tokenizer.decode(plain[index], skip_special_tokens=True)


def test_streamed(target: Pair, plain: list[list[int]]) -> None:
    pair = Pair(target.target, target.target, target.tokenizer)
    chunks = list(pair.stream(PROMPTS[2], max_new_tokens=NEW_TOKENS))
    assert [token for chunk in chunks for token in chunk.token_ids] == plain[2]
    assert chunks[-1].result is not None
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].result.text


def test_bfloat16_draft_of_a_float32_target(
    target: Pair, plain: list[list[int]], smollm2_dir: Path
) -> None:
    little = tf.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.bfloat16)
    result = Pair(target.target, little, target.tokenizer).generate(
        PROMPTS[0], max_new_tokens=NEW_TOKENS
    )
    assert list(result.token_ids) == plain[0]
    assert result.stats.acceptance_rate > 0.8
