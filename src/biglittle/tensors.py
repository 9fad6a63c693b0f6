"""Operations on logits that torch has, but slowly on a CPU.

NumPy does them in the calling thread. torch would wake its pool for them, whose threads find the
cores still taken by those of the model's engine, which wait for the next pass by spinning.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["argmax", "probability"]

BLOCK = 16_384  # entries at a time: larger temporaries are new pages from the system at every call


def argmax(scores: Tensor) -> Tensor:
    """The first index of the largest score: [..., vocab] → [...] int64."""
    if scores.device.type != "cpu":
        return scores.argmax(dim=-1)
    rows = _rows(scores if scores.dim() > 1 else scores[None])
    # Row by row: over one row, NumPy's search runs at the speed of memory.
    found = [row.argmax() for row in rows]
    return torch.tensor(found, dtype=torch.long).view(scores.shape[:-1])


def probability(scores: Tensor, tokens: Tensor) -> Tensor:
    """The softmax's value for one entry a row: [rows, vocab], [rows] → [rows] float32."""
    if scores.device.type != "cpu":
        scores = scores.float()
        chosen = scores.gather(-1, tokens[:, None]).squeeze(-1)
        return (chosen - scores.logsumexp(-1)).exp()
    found = [
        _softmax(row, token) for row, token in zip(_rows(scores), tokens.tolist(), strict=True)
    ]
    return torch.tensor(found, dtype=torch.float32)


def _rows(scores: Tensor) -> npt.NDArray[np.float32]:
    """[..., vocab] → [rows, vocab]; a view where the scores are float32 already."""
    flat: npt.NDArray[np.float32] = scores.detach().float().flatten(0, -2).numpy()
    return flat


def _softmax(scores: npt.NDArray[np.float32], token: int) -> float:
    """The softmax's value for one entry of [vocab]; NaN where all are -inf."""
    top, total = scores.max(), 0.0
    with np.errstate(invalid="ignore"):
        for start in range(0, len(scores), BLOCK):
            weights = scores[start : start + BLOCK] - top
            total += float(np.exp(weights, out=weights).sum())
        return float(np.exp(scores[token] - top)) / total
