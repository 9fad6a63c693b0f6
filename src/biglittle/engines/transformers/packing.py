"""Weights laid out for the CPU: the same numbers, read faster.

In bfloat16 on a CPU, torch's linear layers reorder their weights into oneDNN's blocked layout at
every call. At the small widths of decoding that is much of the time. Reordered once, a layer
returns the same bits (for contiguous inputs, as models feed it) sooner.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .fingerprint import made_of

__all__ = ["PackedLinear", "can_pack", "give_back", "pack_linears", "plain_linears"]

WIDTH = 16  # oneDNN chooses the layout by the number of tokens; this choice serves 1 … 16 and more


class PackedLinear(nn.Module):
    """A linear layer over a packed weight. For inference: it has no gradient."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.made_of = made_of(linear.weight)
        # Not a buffer: it can neither move to another device nor change its dtype.
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            linear.weight.detach(), WIDTH
        )

    @property
    def weight(self) -> Tensor:
        """The packed weight, [out, in]: for whoever asks for its dtype or its shape."""
        return self._packed

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._packed, self.bias, "none", [], ""
        )
        return output

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedLinear:
        """The packed weight never changes, and copies share it."""
        clone = nn.Module.__new__(type(self))
        memo[id(self)] = clone
        clone.__dict__ = {k: v for k, v in self.__dict__.items() if k != "_parameters"}
        clone.__dict__["_parameters"] = deepcopy(self._parameters, memo)
        return clone

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """As an ordinary linear layer, so that a packed model can be saved."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self._packed.to_dense()


def can_pack() -> bool:
    """Whether this CPU and this build of torch have what packing needs."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        linear = nn.Linear(32, 32, dtype=torch.bfloat16)
        inputs = torch.ones(1, 1, 32, dtype=torch.bfloat16)
        with torch.inference_mode():
            return torch.equal(linear(inputs), PackedLinear(linear)(inputs))
    except (AttributeError, RuntimeError):
        return False  # a torch without oneDNN, or with another interface to it


DONT_NEED = 4  # Linux's MADV_DONTNEED


@torch.no_grad()
def pack_linears(model: nn.Module) -> int:
    """Pack the model's bfloat16 linear layers on the CPU, in place; how many there were.

    A weight that is tied to another module's (an output head to the embedding) is left alone: it
    would be held twice.
    """
    users = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    layers = [
        layer
        for layer in plain_linears(model)
        if layer.child.weight.dtype == torch.bfloat16 and users[id(layer.child.weight)] == 1
    ]
    for parent, name, child in layers:
        setattr(parent, name, PackedLinear(child))
        give_back(child.weight)
    return len(layers)


class Layer(NamedTuple):
    """A linear layer and where it hangs."""

    parent: nn.Module
    name: str
    child: nn.Linear


def plain_linears(model: nn.Module) -> list[Layer]:
    """The linear layers on the CPU that do nothing but multiply.

    The largest come first, to be replaced while little else is in memory: for a moment a layer
    is there twice.
    """
    layers = [
        Layer(parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        # Subclasses do more than multiply; a hooked layer has another forward.
        if type(child) is nn.Linear and "forward" not in vars(child)
        if child.weight.device.type == "cpu"
    ]
    return sorted(layers, key=lambda layer: -layer.child.weight.nbytes)


def give_back(weight: Tensor) -> None:
    """Let go of the checkpoint file's pages behind a weight that nobody reads any more.

    Loaded weights are a view of the mapped file; without this the pages stay resident until the
    whole file is unmapped, and packing would hold everything twice. A page of a file that is
    given back is read again if somebody needs it after all, so nothing can go wrong; memory that
    is no file's is left alone.
    """
    page = mmap.PAGESIZE
    first = -(-weight.data_ptr() // page) * page
    last = (weight.data_ptr() + weight.nbytes) // page * page
    if last > first and _is_of_file(first, last):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), DONT_NEED)


def _is_of_file(first: int, last: int) -> bool:
    """Whether addresses lie in a read-only or private map of a checkpoint file (Linux only)."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf8").splitlines()
    except OSError:
        return False
    for line in maps:
        if line.endswith(".safetensors"):
            start, end = (int(address, 16) for address in line.split(" ", 1)[0].split("-"))
            if start <= first and last <= end:
                return True
    return False
