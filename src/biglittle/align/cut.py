"""A little model cut out of a big one: some of its layers, and all that is around them."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..engines.transformers.capability import is_seq2seq, layer_kinds, model_name
from ..errors import ParameterError, UnsupportedModelError, nearest
from .data import Sample

__all__ = ["Cut", "check_cut", "cut_model", "frequent_tokens", "parse_cut"]

DECODER = ("num_decoder_layers", "decoder_layers")
ENCODER = ("encoder_layers", "num_encoder_layers", "num_layers")
OPTIONS = ("layers", "encoder", "head")

Layers = int | tuple[int, ...]
"""How many, spread evenly from the first to the last; or which, from 0."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What stays of a model."""

    layers: Layers
    """Of the decoder."""
    encoder: Layers | None = None
    """Of an encoder; None for all."""
    head: int | None = None
    """Tokens that the draft may propose, the most frequent ones; None for all."""

    def __str__(self) -> str:
        """What `parse_cut` reads back."""
        values = {name: getattr(self, name) for name in OPTIONS}
        return ",".join(f"{name}={_shown(value)}" for name, value in values.items() if value)


def parse_cut(text: str) -> Cut:
    """A cut from its string: `layers=4`, `layers=0+7+15+23,encoder=2,head=8000`.

    Raises:
        ParameterError: An unknown option, or a value that is no number of at least 1 or, for
            layers, no ascending numbers from 0.
    """
    values: dict[str, Layers] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in OPTIONS:
            raise ParameterError(
                f"init={text!r}: unknown option {name!r}; it has {', '.join(OPTIONS)}"
                f"{nearest(name, OPTIONS)}"
            )
        values[name] = _layers(text, name, value)
    if "layers" not in values:
        raise ParameterError(f"init={text!r} does not say how many layers; write e.g. layers=4")
    if not isinstance(head := values.pop("head", None), int | None):
        raise ParameterError(f"init={text!r}: head is how many tokens it may propose, e.g. 8000")
    return Cut(values["layers"], values.get("encoder"), head)


def _layers(text: str, name: str, value: str) -> Layers:
    parts = value.split("+")
    if not all(part.isdecimal() for part in parts):
        raise ParameterError(f"init={text!r}: {name}={value} is no number; write e.g. {name}=4")
    numbers = tuple(map(int, parts))
    if len(numbers) == 1 and numbers[0] < 1:
        raise ParameterError(f"init={text!r}: {name} must be at least 1")
    if any(b <= a for a, b in itertools.pairwise(numbers)):
        raise ParameterError(f"init={text!r}: {name}={value} must ascend")
    return numbers if len(numbers) > 1 else numbers[0]


def _shown(value: Layers) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def chosen_layers(wanted: Layers, total: int, what: str) -> tuple[int, ...]:
    """Which of `total` layers, ascending.

    Raises:
        ParameterError: More than there are.
    """
    found = _spread(wanted, total) if isinstance(wanted, int) else wanted
    if len(found) > total or found[-1] >= total:
        raise ParameterError(f"{what} has {total} layers, of which {_shown(wanted)} cannot be cut")
    return found


def _spread(count: int, total: int) -> tuple[int, ...]:
    """The first, the last, and what lies evenly between them."""
    if count == 1:
        return (0,)
    return tuple(round(i * (total - 1) / (count - 1)) for i in range(count))


@torch.no_grad()
def cut_model(model: PreTrainedModel, cut: Cut) -> PreTrainedModel:
    """A model of some layers of another, with its embeddings, final norm and head.

    Weights are copies. The result is an ordinary model of the same class.

    Raises:
        ParameterError, UnsupportedModelError: See `check_cut`.
    """
    config, stacks = check_cut(model, cut)
    made: Any = type(model)._from_config(config, dtype=model.dtype)
    weights: Mapping[str, Tensor] = model.state_dict()
    made.load_state_dict({key: weights[_origin(key, stacks, weights)] for key in made.state_dict()})
    made.generation_config = copy.deepcopy(model.generation_config)
    result: PreTrainedModel = made.to(model.device).eval()
    return result


def check_cut(model: PreTrainedModel, cut: Cut) -> tuple[Any, list[_Stack]]:
    """The configuration of a model that is cut so, and the lists of layers that it takes from.

    Raises:
        ParameterError: More layers than there are, or an encoder's of a model without one.
        UnsupportedModelError: A model whose layers are not found.
    """
    name = model_name(model)
    config = copy.deepcopy(model.config)
    decoder = _Stack(model, model.get_decoder(), len(layer_kinds(model)), cut.layers)
    if not is_seq2seq(model):
        if cut.encoder is not None:
            raise ParameterError(f"{name} has no encoder; leave encoder={_shown(cut.encoder)} out")
        _set_layers(config.get_text_config(decoder=True), "num_hidden_layers", decoder)
        return config, [decoder]
    field = _field(config, ENCODER, name)
    total = getattr(config, field)
    wanted = total if cut.encoder is None else cut.encoder
    encoder = _Stack(model, model.get_encoder(), total, wanted)
    _set_layers(config, _field(config, DECODER, name), decoder)
    _set_layers(config, field, encoder)
    return config, [decoder, encoder]


class _Stack:
    """A list of layers, and which of them stay.

    Args:
        model: The whole.
        part: The encoder or decoder within.
        total: Its layers.
        wanted: Those that stay.
    """

    def __init__(self, model: PreTrainedModel, part: nn.Module, total: int, wanted: Layers) -> None:
        self.kept = chosen_layers(wanted, total, model_name(model))
        self.total = total
        inside = {id(module) for module in part.modules()}
        lists = (
            path
            for path, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and len(module) == total and id(module) in inside
        )
        path = next(lists, None)
        if path is None:
            raise UnsupportedModelError(
                f"{model_name(model)} has no list of {total} layers to cut from; give a draft model"
            )
        self.prefix = f"{path}."

    def origin(self, key: str) -> str:
        """The name in the whole of a weight in the cut model."""
        if not key.startswith(self.prefix):
            return key
        number, _, rest = key.removeprefix(self.prefix).partition(".")
        return f"{self.prefix}{self.kept[int(number)]}.{rest}"


def _origin(key: str, stacks: Sequence[_Stack], weights: Mapping[str, Tensor]) -> str:
    """The whole model's name of a weight.

    What only a first layer has (T5 keeps the bias of all its layers there) stays in the first.
    """
    found = key
    for stack in stacks:
        found = stack.origin(found)
    return found if found in weights else key


def _field(config: Any, names: Sequence[str], model: str) -> str:
    found = [name for name in names if isinstance(getattr(config, name, None), int)]
    if not found:
        raise UnsupportedModelError(
            f"{model} does not say how many layers it has; give a draft model"
        )
    return found[0]


def _set_layers(config: Any, name: str, stack: _Stack) -> None:
    """Say how many layers there are, and keep their share of what is said of each."""
    for key, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == stack.total:
            setattr(config, key, [value[layer] for layer in stack.kept])
    setattr(config, name, len(stack.kept))


def frequent_tokens(samples: Sequence[Sample], count: int) -> list[int]:
    """The tokens that occur most often in the samples' outputs, ascending; fewer if fewer do."""
    counts = Counter(token for sample in samples for token in sample.output)
    return sorted(token for token, _ in counts.most_common(count))
