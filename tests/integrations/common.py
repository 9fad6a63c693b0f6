"""Models, prompts and the comparison that the tests of the way in from transformers share."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tests.models import CAUSAL, VOCAB, build
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor
from transformers import GenerationMixin, PreTrainedTokenizerFast

MODELS = ("llama", "qwen2", "gemma3", "gpt2", "t5", "bart", "whisper")
NEW = 14
"""Tokens that the tests generate."""


def pair(name: str) -> tuple[Any, Any]:
    """A target and an unrelated draft of one architecture."""
    return build(name, 0), build(name, 1)


def noisy(model: Any, noise: float) -> Any:
    """A draft that often agrees with the model."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.dim() > 1:
                parameter += noise * torch.randn(parameter.shape, generator=generator)
    return draft


def inputs(name: str, lengths: tuple[int, ...] = (9, 5, 7), seed: int = 3) -> dict[str, Tensor]:
    """A batch: left-padded prompts, or an encoder's inputs (right-padded, or features)."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = len(lengths), max(lengths)
    if name == "whisper":
        return {"input_features": torch.randn(rows, 8, 32, generator=generator)}
    ids, mask = (torch.zeros(rows, width, dtype=torch.long) for _ in range(2))
    for row, length in enumerate(lengths):
        at = slice(width - length, width) if name in CAUSAL else slice(length)
        ids[row, at] = torch.randint(3, VOCAB, (length,), generator=generator)
        mask[row, at] = 1
    return {"input_ids": ids, "attention_mask": mask}


def generate(model: Any, **options: Any) -> Any:
    """`model.generate`, without what Whisper puts around it."""
    return GenerationMixin.generate(model, **{"max_new_tokens": NEW, **options})


def eos_for(model: Any, batch: dict[str, Tensor], step: int = 4, row: int = 1) -> dict[str, int]:
    """Options that end at least one row before the others: a token of its own plain output."""
    plain = generate(model, **batch)
    return {"eos_token_id": int(plain[row, step - NEW]), "pad_token_id": 0}


def tokenizer() -> Any:
    """One character a token: id i is the i-th printable one."""
    words = {chr(33 + index) if index < 94 else f"<{index}>": index for index in range(VOCAB)}
    made = Tokenizer(BPE(words, [], unk_token="<96>"))
    made.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<96>", pad_token="<94>")
