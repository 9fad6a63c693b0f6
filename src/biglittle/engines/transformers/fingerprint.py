"""What tells a model's weights from others' under the same name: a hash of a few numbers of each.

A model that was trained on, or given an adapter or another precision of four bits, has another
fingerprint. Rounding to bfloat16 and the layout of weights do not change it: what was found out
about a model holds however it is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["MadeOf", "fingerprint", "made_of"]

SAMPLES = 64  # numbers of a tensor


def fingerprint(model: nn.Module) -> str:
    """A short hash."""
    found = hashlib.sha256()
    for name, kept in _samples(model):
        found.update(name.encode())
        found.update(kept.view(torch.int16).numpy().tobytes())
    return found.hexdigest()[:16]


class MadeOf(NamedTuple):
    """What a layer keeps of the weight that it was made of."""

    name: str
    numbers: Tensor


def made_of(weight: Tensor, how: str = "") -> MadeOf:
    """For a layer that keeps a weight in a layout of its own, which a fingerprint cannot read.

    Args:
        weight: The weight.
        how: What became of it, where it is no longer the same.
    """
    return MadeOf(named("weight", weight) + how, sample(weight))


def named(key: str, tensor: Tensor) -> str:
    """A tensor's name and shape."""
    return f"{key} {tuple(tensor.shape)}"


def sample(tensor: Tensor) -> Tensor:
    """Numbers from all over a tensor, at most `SAMPLES` of them, as bfloat16 on the CPU."""
    flat = tensor.detach().reshape(-1)
    if flat.is_meta:
        return torch.zeros(0, dtype=torch.bfloat16)
    places = torch.linspace(0, len(flat) - 1, min(len(flat), SAMPLES), dtype=torch.float64)
    return flat[places.long().to(flat.device)].to("cpu", torch.bfloat16)


def _samples(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Of every weight, with its name."""
    for path, module in model.named_modules():
        tensors = dict(module._parameters)
        if (kept := getattr(module, "made_of", None)) is not None:
            yield f"{path}.{kept.name}", kept.numbers
        else:
            passing = module._non_persistent_buffers_set
            tensors |= {key: t for key, t in module._buffers.items() if key not in passing}
        for key, tensor in tensors.items():
            if tensor is not None:
                yield f"{path}.{named(key, tensor)}", sample(tensor)
