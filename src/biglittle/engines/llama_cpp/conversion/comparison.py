"""Whether llama.cpp computes with a converted file what transformers does with the original."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...base import Prompt
from ...transformers import loading
from ..model import LlamaModel
from ..options import LlamaOptions

__all__ = ["BOUNDS", "Closeness", "closeness", "converted_logits", "original_logits", "sample"]

TEXT = (
    "The quick brown fox jumps over the lazy dog. def fibonacci(n):\n    if n < 2:\n        "
    "return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\nIn 1969, people first walked on "
    "the Moon; it took them three days to get there, and they stayed for less than one."
)
POSITIONS = 64  # whose logits are compared
EXACT = LlamaOptions(type_k="f32", type_v="f32", flash_attn=False, n_gpu_layers=0)
BOUNDS = {"f32": 1e-3, "bf16": 0.06, "f16": 0.06}
"""Largest `Closeness.error` of a right conversion, by the type of floats.

The error is relative to the logits' own spread, so it does not depend on how sure a model is. In
float32 the order of sums makes 2e-6 (SmolLM2 135M), and the table that llama.cpp has for GELU 3e-4
(Gemma 3 270M). In 16 bits both sides round activations, each in its own places: 0.013 to 0.023 with
the catalogue's models. Heads in the wrong order, norms without their 1, or a missing bias make 0.7
to 1.6 there, a wrong ε 0.6, a wrong window 0.09 to 0.35; a RoPE base of half the size makes 0.026,
which float32 alone would show.
"""


@dataclass(frozen=True, slots=True)
class Closeness:
    """How close the file's logits come to the original's, at some positions of a short text.

    Attributes:
        error: ‖logits − original's‖ / ‖original's‖, both without their means.
        divergence: Mean of KL(original ‖ converted), in nats.
        agreement: Share of positions with the same most likely token.
        positions: How many.
    """

    error: float
    divergence: float
    agreement: float
    positions: int


def sample(tokenizer: Any, window: int, context: int) -> list[int]:
    """A short text's tokens, more than a sliding window holds."""
    length = min(window + POSITIONS + 1, context)
    ids: list[int] = tokenizer(TEXT)["input_ids"]
    return (ids * (length // len(ids) + 1))[:length]


@torch.inference_mode()
def original_logits(folder: Path, tokens: list[int], *, exact: bool) -> Tensor:
    """Logits [positions, vocab] after the last tokens; in float32, or in the model's own type."""
    dtype = torch.float32 if exact else "auto"
    model = loading.load_model(folder, dtype=dtype, device="cpu", pack=False).eval()
    keep = min(POSITIONS, len(tokens) - 1)
    logits: Tensor = model(torch.tensor([tokens]), logits_to_keep=keep).logits[0].float()
    return logits


def converted_logits(file: Path, tokens: list[int]) -> Tensor:
    """The same of a GGUF file."""
    runner = LlamaModel(file, EXACT).runner()
    keep = min(POSITIONS, len(tokens) - 1)
    runner.admit(Prompt(tuple(tokens[:-keep])))
    return runner.forward(torch.tensor([tokens[-keep:]]), [keep])[0].clone()


def closeness(wanted: Tensor, given: Tensor) -> Closeness:
    """Compare logits [positions, vocab]; their means do not matter to probabilities."""
    wanted, given = (logits - logits.mean(-1, keepdim=True) for logits in (wanted, given))
    p, q = wanted.log_softmax(-1), given.log_softmax(-1)
    return Closeness(
        error=float((given - wanted).norm() / wanted.norm()),
        divergence=max(0.0, float((p.exp() * (p - q)).sum(-1).mean())),
        agreement=float((wanted.argmax(-1) == given.argmax(-1)).float().mean()),
        positions=len(wanted),
    )
