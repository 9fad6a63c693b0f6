"""Rejection sampling: the output follows the target's distribution (Leviathan et al. 2023, §2.3).

Accept x drawn from q with probability min(1, p(x)/q(x)); on rejection draw from the normalised
residual (p − q)₊. Then q·accept + (1 − Σ q·accept)·residual = p, whatever q is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import sample

__all__ = ["rejection_accepts", "rejection_replace", "residual"]


def rejection_accepts(tokens: Tensor, p: Tensor, q: Tensor, uniforms: Tensor) -> Tensor:
    """Whether each token survives.

    Args:
        tokens: [rows, width].
        p: The target's distributions, [rows, width, vocab].
        q: The distributions that the tokens were really drawn from, of the same shape.
        uniforms: [rows, width] in [0, 1).

    Returns:
        [rows, width] bool. A token with p(x) = 0 never survives, even when the uniform is 0:
        the inequality u·q(x) < p(x) is strict.
    """
    at = tokens[..., None]
    p_token = p.gather(-1, at).squeeze(-1).to(torch.float64)
    q_token = q.gather(-1, at).squeeze(-1).to(torch.float64)
    return uniforms * q_token < p_token


def residual(p: Tensor, q: Tensor) -> Tensor:
    """(p − q)₊, unnormalised; p itself where nothing is left (p = q): [rows, vocab]."""
    left = (p - q).clamp(min=0)
    return torch.where(left.sum(dim=-1, keepdim=True) > 0, left, p)


def rejection_replace(p: Tensor, q: Tensor | None, rejected: Tensor, uniforms: Tensor) -> Tensor:
    """Draw from the residual where a token was rejected, from p elsewhere: → [rows].

    q may be None where no token was drafted.
    """
    if q is None:
        return sample(p, uniforms)
    return sample(torch.where(rejected[:, None], residual(p, q), p), uniforms)
