"""Tiny targets that are easy to learn, and what they answer."""

from __future__ import annotations

from typing import Any

import torch
from tests.models import VOCAB, build

from biglittle import Pair
from biglittle.align import Sample
from biglittle.align.evaluation import prompt_of


def simple(kind: str, seed: int = 0) -> Any:
    """A random model whose weights are so small that it repeats itself."""
    model = build(kind, seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(0.05 / 0.3)
    return model


def samples_of(target: Any, count: int, new: int = 12) -> list[Sample]:
    """Random prompts, and the target's greedy answers."""
    generator = torch.Generator().manual_seed(7)
    pair = Pair(target)
    found = []
    for number in range(count):
        ids = tuple(torch.randint(3, VOCAB, (3 + number % 5,), generator=generator).tolist())
        asked = Sample((0,), (0,), ids) if target.config.is_encoder_decoder else Sample(ids, (0,))
        answer = pair.generate(prompt_of(asked), temperature=0.0, max_new_tokens=new)
        found.append(Sample(asked.prompt, answer.token_ids, asked.source))
    return found
