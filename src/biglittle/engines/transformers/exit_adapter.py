"""An exit after one of the target's layers, trained, and used on the draft's path only.

The model's own final norm and head expect what its last layer writes. An exit adapter is a linear
map that brings what an earlier layer writes closer to that (the translator of a tuned lens, Belrose
et al. 2023), so that the first layers draft better. The target itself does not change: its output
and its keys and values are what they were, and what is lossless stays so.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...errors import IncompatiblePairError, LoadError
from .capability import (
    check_layers,
    decoder_config,
    embedding_weight,
    layer_kinds,
    model_name,
)

__all__ = ["CONFIG", "WEIGHTS", "ExitAdapter", "ExitConfig", "load_exit"]

CONFIG, WEIGHTS = "exit_config.json", "exit.safetensors"
FORMAT, VERSION = "biglittle exit", 1
TRAIN = "`biglittle align --early-exit` trains one"
SAMPLES = 512  # numbers of the target's embedding by which it is known again
TOLERANCE = 0.02  # of their norm: loading in another dtype, or quantized, moves them by less


@dataclass(frozen=True, slots=True)
class ExitConfig:
    """What an exit is, and for which target."""

    layers: int
    """It is after so many layers."""
    hidden: int
    """Width of the target's hidden states."""
    total: int
    """The target's layers."""
    target: str
    """The target's name."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: data, settings, versions, what was measured; plain data."""

    @classmethod
    def of(cls, model: PreTrainedModel, layers: int) -> ExitConfig:
        """Of an exit of this model.

        Raises:
            ParameterError: A number of layers that is not below the model's own.
        """
        check_layers(model, layers)
        size = decoder_config(model).hidden_size
        return cls(layers, size, len(layer_kinds(model)), model_name(model))

    @classmethod
    def read(cls, folder: str | Path) -> ExitConfig:
        """Of an exit's folder.

        Raises:
            LoadError: No such folder, or one that holds no exit.
        """
        path = Path(folder).expanduser() / CONFIG
        try:
            data = json.loads(path.read_text(encoding="utf8"))
        except OSError as cause:
            raise LoadError(f"{folder}: no exit adapter there ({CONFIG}); {TRAIN}") from cause
        except ValueError as cause:
            raise LoadError(f"{path} is not JSON; {TRAIN}") from cause
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise LoadError(f"{path} is of something else than an exit adapter; {TRAIN}")
        if (version := data.pop("version", None)) != VERSION:
            raise LoadError(f"{path} is of version {version} of the format, not {VERSION}; {TRAIN}")
        return cls._checked(data, path)

    @classmethod
    def _checked(cls, data: dict[str, Any], path: Path) -> ExitConfig:
        numbers = ("layers", "hidden", "total")
        whole = all(type(data.get(name)) is int and data[name] >= 1 for name in numbers)
        names = {field.name for field in dataclasses.fields(cls)}
        if not whole or not isinstance(data.get("target"), str) or not set(data) <= names:
            raise LoadError(f"{path} is damaged; {TRAIN}")
        return cls(**data)

    def save(self, folder: Path) -> None:
        """Write it to a folder."""
        data = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        text = json.dumps(data, indent=2, ensure_ascii=False)
        fresh = folder / f"{CONFIG}.new"
        fresh.write_text(text + "\n", encoding="utf8")
        fresh.replace(folder / CONFIG)


class ExitAdapter(nn.Module):
    """h' = W h + b. It begins as the plain exit: W is the identity and b is 0.

    Args:
        config: What it is.
    """

    target: Tensor

    def __init__(self, config: ExitConfig) -> None:
        super().__init__()
        self.config = config
        self.map = nn.Linear(config.hidden, config.hidden)
        nn.init.eye_(self.map.weight)
        nn.init.zeros_(self.map.bias)
        self.register_buffer("target", torch.zeros(SAMPLES))

    @classmethod
    def of(cls, model: PreTrainedModel, layers: int) -> ExitAdapter:
        """A new one for a model; see `ExitConfig.of`."""
        adapter = cls(ExitConfig.of(model, layers))
        adapter.target.copy_(_samples(model))
        return adapter

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., size] → [..., size], in the dtype that comes."""
        mapped: Tensor = self.map(hidden.to(self.map.weight.dtype))
        return mapped.to(hidden.dtype)

    def save(self, folder: str | Path) -> None:
        """Write it to a folder, which is made; each file is whole or not there."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        states = {name: value.float().contiguous() for name, value in self.state_dict().items()}
        fresh = folder / f"{WEIGHTS}.new"
        save_file(states, str(fresh), metadata={"format": "pt"})
        fresh.replace(folder / WEIGHTS)
        self.config.save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> ExitAdapter:
        """Read one, in float32.

        Raises:
            LoadError: No such folder, or one that holds no exit.
        """
        config = ExitConfig.read(folder)
        with torch.device("meta"):  # the file's tensors take the place of its own
            adapter = cls(config)
        path = Path(folder).expanduser() / WEIGHTS
        try:
            adapter.load_state_dict(load_file(str(path)), assign=True)
        except OSError as cause:
            raise LoadError(
                f"{path} cannot be read ({cause.strerror or cause}); {TRAIN}"
            ) from cause
        except (SafetensorError, RuntimeError) as cause:
            raise LoadError(f"{path} is damaged, or not what {CONFIG} says; {TRAIN}") from cause
        return adapter.requires_grad_(False).eval()

    def check(self, model: PreTrainedModel) -> None:
        """Raise `IncompatiblePairError` unless it was trained for this model, or for one whose
        weights are nearly the same."""
        ours, name = self.config, model_name(model)
        total, hidden = len(layer_kinds(model)), decoder_config(model).hidden_size
        if (ours.total, ours.hidden) != (total, hidden):
            raise IncompatiblePairError(
                f"the exit was trained for {ours.target}, which has {ours.total} layers of "
                f"{ours.hidden}, and {name} has {total} of {hidden}; {TRAIN}"
            )
        own = self.target.float().cpu()
        if (_samples(model) - own).norm() > TOLERANCE * own.norm():
            raise IncompatiblePairError(
                f"the exit was trained for {ours.target}, and {name} has other weights; {TRAIN}"
            )


def load_exit(folder: str | Path, model: PreTrainedModel) -> ExitAdapter:
    """A folder's exit, for a model: checked, on its device and in its dtype.

    Raises:
        LoadError: No such folder, or one that holds no exit.
        IncompatiblePairError: An exit of another model.
    """
    adapter = ExitAdapter.load(folder)
    adapter.check(model)
    weight = embedding_weight(model)
    return adapter.to(weight.device, weight.dtype)


@torch.no_grad()
def _samples(model: PreTrainedModel) -> Tensor:
    """Numbers of the embedding, from its beginning to its end, [SAMPLES] float32."""
    flat = embedding_weight(model).detach().reshape(-1)
    places = torch.linspace(0, flat.numel() - 1, SAMPLES, dtype=torch.float64).long()
    return flat[places.to(flat.device)].float().cpu()
