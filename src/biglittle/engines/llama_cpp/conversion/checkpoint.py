"""Weights in safetensors files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ....errors import LoadError
from .architectures import FREQUENCIES, Planned

__all__ = ["Checkpoint"]


class Checkpoint:
    """Tensors in safetensors files, read one at a time."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        index = folder / "model.safetensors.index.json"
        files = _parts(name, index) if index.is_file() else [folder / "model.safetensors"]
        self.names: dict[str, Any] = {}
        for file in files:
            if not file.is_file():
                raise LoadError(f"{name}: there is no {file.name}; weights must be safetensors")
            try:
                opened: Any = safe_open(file, "pt")
            except SafetensorError as cause:
                raise LoadError(
                    f"{name}: {file.name} is damaged ({cause}); fetch it again"
                ) from cause
            except OSError as cause:
                raise LoadError(f"{name}: {file.name} cannot be read") from cause
            self.names |= dict.fromkeys(opened.keys(), opened)

    def get(self, name: str) -> Tensor:
        """A tensor."""
        tensor: Tensor = self.names[name].get_tensor(name)
        return tensor

    def dtype(self, name: str) -> str:
        """The name of a tensor's type; f32 for one that a GGUF file does not have."""
        kind = str(self.names[name].get_slice(name).get_dtype()).lower()
        return kind if kind in ("bf16", "f16") else "f32"

    def check(self, planned: Sequence[Planned]) -> None:
        """Raise `LoadError` for tensors that are missing or have another shape."""
        for tensor in planned:
            if tensor.source not in self.names:
                raise LoadError(
                    f"{self._name}: the tensor {tensor.source} is missing; fetch the model again, "
                    "or convert one with a language-model head"
                )
            shape = tuple(self.names[tensor.source].get_slice(tensor.source).get_shape())
            if tensor.shape != shape and tensor.name != FREQUENCIES:
                raise LoadError(
                    f"{self._name}: {tensor.source} has shape {list(shape)}, but by config.json it "
                    f"is {list(tensor.shape)}; fetch the model again"
                )


def _parts(name: str, index: Path) -> list[Path]:
    """The files that an index names."""
    try:
        entries = json.loads(index.read_text(encoding="utf8"))["weight_map"]
        return [index.parent / file for file in sorted(set(entries.values()))]
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise LoadError(f"{name}: {index.name} is damaged; fetch it again") from cause
