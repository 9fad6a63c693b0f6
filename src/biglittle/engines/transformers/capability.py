"""What a Hugging Face model can do here, found out before any work starts."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from ...errors import ParameterError, UnsupportedModelError, nearest
from ..base import EncoderInput

__all__ = [
    "base_model",
    "check_layers",
    "check_supported",
    "context_limit",
    "decoder_config",
    "decoder_layers",
    "embedding_weight",
    "encoder_input",
    "is_seq2seq",
    "layer_kinds",
    "model_name",
    "parameters_of",
    "relative_bias_modules",
    "shallow_model",
    "vocab_size",
]

ATTENTION = ("sdpa", "eager")
SLIDING = ("sliding_attention", "chunked_attention")

T = TypeVar("T")


def _asked_once(question: Callable[[PreTrainedModel], T]) -> Callable[[PreTrainedModel], T]:
    """Remember a model's answer as long as the model lives.

    What its class and configuration settle does not change, and transformers copies the whole
    configuration whenever it is asked for a part of it: milliseconds a generation.
    """
    answers: WeakKeyDictionary[PreTrainedModel, T] = WeakKeyDictionary()

    @wraps(question)
    def ask(model: PreTrainedModel) -> T:
        if model not in answers:
            answers[model] = question(model)
        return answers[model]

    return ask


def base_model(model: Any) -> PreTrainedModel:
    """The transformers model inside a PEFT model (its adapters act from within), or itself."""
    if isinstance(model, PreTrainedModel):
        return model
    if hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
        if getattr(model.active_peft_config, "is_prompt_learning", False):
            raise UnsupportedModelError(
                "prompt-learning adapters are not supported; use LoRA or merge the adapter first"
            )
        return base_model(model.get_base_model())
    if isinstance(model, str | Path):
        raise UnsupportedModelError(
            f"{str(model)!r} is a name, not a model; give it to biglittle.load"
            f"{nearest(str(model), ('prompt-lookup', 'early-exit:layers=2'))}"
        )
    raise UnsupportedModelError(
        f"{type(model).__name__} is not a transformers model; give one, or give biglittle.load a "
        "hub id, a folder or a GGUF file"
    )


def model_name(model: PreTrainedModel) -> str:
    """How messages call the model: where it was loaded from, or its class."""
    return getattr(model.config, "_name_or_path", "") or type(model).__name__


def is_seq2seq(model: PreTrainedModel) -> bool:
    """Whether the model has an encoder and a decoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


@_asked_once
def decoder_config(model: PreTrainedModel) -> Any:
    """The configuration of the part that decodes."""
    return _own_config(model).get_text_config(decoder=True)


def _own_config(model: PreTrainedModel) -> Any:
    """The decoder's: a T5-like one has another number of layers in it than the encoder may have."""
    decoder = model.get_decoder() if is_seq2seq(model) else model
    return getattr(decoder, "config", model.config)  # old models' decoders have none


def vocab_size(model: PreTrainedModel) -> int:
    """Entries of the prediction head, padding included."""
    head: Any = model.get_output_embeddings()
    return int(head.weight.shape[0])


def embedding_weight(model: PreTrainedModel) -> Tensor:
    """The input embedding: where the model's inputs go, and the dtype that it computes in."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight


def relative_bias_modules(model: PreTrainedModel) -> list[Any]:
    """The decoder's attention modules that compute a T5-like relative bias."""
    return [
        module
        for module in model.get_decoder().modules()
        if hasattr(type(module), "compute_bias")
        and getattr(module, "has_relative_attention_bias", False)
    ]


@_asked_once
def context_limit(model: PreTrainedModel) -> int | None:
    """The most tokens a row may have; None for relative positions, which have no end."""
    if is_seq2seq(model) and relative_bias_modules(model):
        return None
    config = decoder_config(model)
    names = ("max_target_positions", "max_decoder_position_embeddings")
    for name in (*names, "max_position_embeddings", "n_positions"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def encoder_input(model: PreTrainedModel) -> EncoderInput | None:
    """What the model's encoder reads; None without one."""
    if not is_seq2seq(model):
        return None
    encoder = model.get_encoder()
    positions = getattr(encoder, "embed_positions", None)
    room = None
    if isinstance(positions, nn.Embedding):
        room = positions.num_embeddings - int(getattr(positions, "offset", 0))
    bins = getattr(model.config, "num_mel_bins", None)
    inputs = {model.main_input_name, "attention_mask", "inputs_embeds"}
    heard = (bins, 2 * room) if room and bins and model.config.model_type == "whisper" else None
    return EncoderInput(
        model=model_name(model),
        main=model.main_input_name,
        names=frozenset(parameters_of(encoder.forward) & inputs | {"encoder_outputs"}),
        tokens=room if model.main_input_name == "input_ids" else None,
        features=heard,
    )


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Names of a forward's parameters, behind its decorators."""
    return set(inspect.signature(inspect.unwrap(function)).parameters)


@_asked_once
def layer_kinds(model: PreTrainedModel) -> tuple[tuple[str, int], ...]:
    """Kind and window of every attention layer: ("full_attention", 0), ("sliding_attention", 512),
    ("chunked_attention", 8192)."""
    config = decoder_config(model)
    kinds = getattr(config, "layer_types", None)
    layers = DynamicCache(config=_own_config(model)).layers
    found = []
    for index, layer in enumerate(layers):
        if not isinstance(layer, DynamicSlidingWindowLayer):
            found.append(("full_attention", 0))
            continue
        kind = kinds[index] if kinds else "sliding_attention"
        if not kinds and getattr(config, "attention_chunk_size", None) == layer.sliding_window:
            kind = "chunked_attention"
        found.append((kind, layer.sliding_window))
    return tuple(found)


def check_supported(model: PreTrainedModel) -> None:
    """Raise `UnsupportedModelError` for a model whose state cannot be rolled back.

    Whether a layer's state can, transformers' own cache for the model tells: attention layers
    keep keys and values a token; recurrent, convolutional and compressed layers do not.
    """
    name, kind = model_name(model), model.config.model_type
    if not hasattr(model, "generate") or model.get_output_embeddings() is None:
        raise UnsupportedModelError(
            f"{name} ({kind}) has no language-model head; load it with "
            "AutoModelForCausalLM or AutoModelForSeq2SeqLM"
        )
    if not _rolls_back(model):
        raise UnsupportedModelError(
            f"{name} ({kind}) keeps a recurrent or compressed state that cannot be rolled back; "
            "use a model whose layers are all attention, or plain transformers"
        )
    attention = model.config._attn_implementation
    if attention not in ATTENTION:
        raise UnsupportedModelError(
            f"{name} uses attn_implementation={attention!r}, which takes no ragged masks; load it "
            "with attn_implementation='sdpa'"
        )
    _check_loaded(model)


@_asked_once
def _check_loaded(model: PreTrainedModel) -> None:
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise UnsupportedModelError(
            f"{model_name(model)} has weights on the meta device; load them first"
        )


@_asked_once
def _rolls_back(model: PreTrainedModel) -> bool:
    kinds = set(getattr(decoder_config(model), "layer_types", None) or ["unknown"])
    if getattr(model, "_is_stateful", False) and not kinds <= {"full_attention", *SLIDING}:
        return False
    try:
        layers = DynamicCache(config=_own_config(model)).layers
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError):
        return False  # transformers has no attention cache for it
    # A dummy layer is one that attends to an earlier layer's keys and values.
    known = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)
    return bool(layers) and all(type(layer) in known for layer in layers)


def check_layers(model: PreTrainedModel, layers: int) -> None:
    """Raise `ParameterError` for an exit that is not before the model's last layer."""
    total = len(layer_kinds(model))
    if not 1 <= layers < total:
        raise ParameterError(
            f"early exit after {layers} layers: {model_name(model)} has {total}, so give a "
            f"number from 1 to {total - 1}"
        )


def shallow_model(
    model: PreTrainedModel, layers: int, adapter: nn.Module | None = None
) -> PreTrainedModel:
    """The model with its first `layers` decoder layers only, sharing every weight.

    Args:
        model: The whole one, which does not change.
        layers: Layers to keep.
        adapter: What the last one's output goes through, [..., size] → [..., size].

    Raises:
        UnsupportedModelError: A model without a list of layers.
        ParameterError: A number of layers that is not below the model's own.
    """
    check_layers(model, layers)
    path, name = _layer_list(model, len(layer_kinds(model)))
    root: PreTrainedModel = _shallow_copy(model)
    clone: Any = root
    for part in filter(None, path.split(".")):
        child = _shallow_copy(getattr(clone, part))
        clone._modules[part] = child
        clone = child
    kept = list(getattr(clone, name))[:layers]
    if adapter is not None:
        kept[-1] = _adapted(kept[-1], adapter)
    clone._modules[name] = nn.ModuleList(kept)
    return root


def _adapted(layer: Any, adapter: nn.Module) -> Any:
    """A copy of a layer, with the same parameters, whose output goes through the adapter."""
    clone = _shallow_copy(layer)
    clone._modules["exit"] = adapter
    clone._forward_hooks = OrderedDict(layer._forward_hooks)
    clone.register_forward_hook(_adapt)
    return clone


def _adapt(layer: Any, args: Any, output: Any) -> Any:
    """Layers return hidden states, or a tuple that begins with them."""
    if isinstance(output, tuple):
        return layer.exit(output[0]), *output[1:]
    return layer.exit(output)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder's layers.

    Raises:
        UnsupportedModelError: A model without a list of them.
    """
    path, name = _layer_list(model, len(layer_kinds(model)))
    found = getattr(model.get_submodule(path), name)
    assert isinstance(found, nn.ModuleList)
    return found


def _layer_list(model: PreTrainedModel, layers: int) -> tuple[str, str]:
    """Path of the module that holds the decoder's list of layers, and the list's name there."""
    decoder = model.get_decoder()
    for path, module in model.named_modules():
        if module is not decoder and not any(module is m for m in decoder.modules()):
            continue
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == layers:
                return path, name
    raise UnsupportedModelError(
        f"{model_name(model)} has no list of {layers} layers to exit early from; use a draft model"
    )


def _shallow_copy(module: Any) -> Any:
    """A module with the same parameters, whose children can be replaced."""
    clone = module.__class__.__new__(module.__class__)
    clone.__dict__ = module.__dict__.copy()
    clone._modules = module._modules.copy()
    return clone
