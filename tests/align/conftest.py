"""Tiny pairs on disk, with a tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from tests.cli.conftest import make_tokenizer, save_model
from tests.models import T5


def tamed(folder: str, kind: Any = tf.AutoModelForCausalLM) -> str:
    """A model whose weights are so small that it repeats itself."""
    model: Any = kind.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(0.05 / weight.std())
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A target, a draft that knows nothing of it, and one with other tokens."""
    root = tmp_path_factory.mktemp("models")
    own, other = make_tokenizer(), make_tokenizer("quixotic zephyr jumps")
    return {
        "target": tamed(save_model(root / "target", own, seed=0, layers=3)),
        "draft": tamed(save_model(root / "draft", own, seed=1, layers=1)),
        "foreign": tamed(save_model(root / "foreign", other, seed=2)),
    }


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder-decoder target with a tokenizer."""
    folder = str(tmp_path_factory.mktemp("translator"))
    tokenizer = make_tokenizer(template=None)
    torch.manual_seed(0)
    sizes = {**T5, "vocab_size": len(tokenizer), "eos_token_id": 0, "decoder_start_token_id": 1}
    tf.T5ForConditionalGeneration(tf.T5Config(**sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tamed(folder, tf.AutoModelForSeq2SeqLM)


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = ["big", "little", "model", "target", "draft", "token", "prefix", "window", "row"]
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("".join(f"{one} {two}\n" for one in words for two in words[:3]))
    return str(file)
