"""Four-bit weights for a draft on a CPU.

At one token a pass, a CPU's time goes into reading weights. What drafts need not be exact: the
target checks it. In four bits a draft reads a quarter, and proposes nearly the same tokens.

Weights are quantized in groups of `GROUP` inputs of a row, each with a scale and a middle:
w ≈ (q - 8) · scale + middle with q of 0 … 15, which is what torch's own kernel computes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .fingerprint import made_of
from .packing import give_back, plain_linears

__all__ = ["GROUP", "QUANTIZATIONS", "Int4Linear", "can_quantize", "quantize_linears"]

QUANTIZATIONS = ("int4",)
GROUP = 32
KERNEL = torch.bfloat16  # what torch's kernel is fast in; other models' numbers are rounded to it
LEVELS = 15
MIDDLE = 8
ROWS = 16  # torch's kernel computes outputs in blocks of so many
SLICE = 4096  # rows that are quantized at a time, so that float32 copies stay small


class Int4Linear(nn.Module):
    """A linear layer over four-bit weights. For inference: it has no gradient."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.made_of = made_of(linear.weight, " in four bits")
        self.dtype = linear.weight.dtype
        parts = [_quantize(rows) for rows in linear.weight.detach().split(SLICE)]
        # Filled up with rows of nothing to whole blocks of the kernel.
        filling = -self.out_features % ROWS
        levels, grid = (
            nn.functional.pad(torch.cat(part), (0, 0) * (part[0].dim() - 1) + (0, filling))
            for part in zip(*parts, strict=True)
        )
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        self.register_buffer("packed", packed)
        self.register_buffer("grid", grid.transpose(0, 1).contiguous())  # [in / GROUP, outputs, 2]

    @property
    def weight(self) -> Tensor:
        """The weight without its values, [out, in]: for whoever asks for its dtype or shape."""
        return torch.empty(self.out_features, self.in_features, dtype=self.dtype, device="meta")

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        flat = inputs.reshape(-1, self.in_features).to(KERNEL).contiguous()
        output: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            flat, self.packed, GROUP, self.grid
        )
        output = output[:, : self.out_features].to(inputs.dtype)
        if self.bias is not None:
            output = output + self.bias
        return output.reshape(*inputs.shape[:-1], self.out_features)


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, in] → levels [rows, in] int32 and (scale, middle) [rows, in / GROUP, 2]."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.aminmax(dim=2)
    scale = ((high - low) / LEVELS).clamp(min=torch.finfo(KERNEL).tiny)
    grid = torch.stack([scale, low + MIDDLE * scale], 2).to(KERNEL)
    # By the scale and middle as they are kept, not as they were before rounding.
    scale, middle = grid.float().unbind(2)
    levels = ((groups - middle[..., None]) / scale[..., None]).round() + MIDDLE
    return levels.clamp(0, LEVELS).flatten(1).int(), grid


def can_quantize() -> bool:
    """Whether this build of torch has the kernel, and it computes what is written above."""
    try:
        linear = nn.Linear(GROUP, ROWS, bias=False)
        with torch.no_grad():
            linear.weight.copy_(torch.arange(ROWS * GROUP).view(ROWS, GROUP) % 16 - 8)
            inputs = torch.ones(1, GROUP)
            return torch.allclose(linear(inputs), Int4Linear(linear)(inputs), atol=1e-2, rtol=1e-2)
    except (AttributeError, RuntimeError):
        return False


@torch.no_grad()
def quantize_linears(model: nn.Module) -> int:
    """Quantize the model's linear layers on the CPU, in place; how many there were.

    A head that is tied to the embedding is quantized too; the embedding stays as it is. Layers
    whose inputs do not come in whole groups are left alone.
    """
    layers = [layer for layer in plain_linears(model) if layer.child.in_features % GROUP == 0]
    for parent, name, child in layers:
        setattr(parent, name, Int4Linear(child))
        if child.weight is not model.get_input_embeddings().weight:  # type: ignore[operator]
            give_back(child.weight)
    return len(layers)
