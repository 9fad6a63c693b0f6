"""What a Hugging Face model can do here, found out before any work starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ...errors import UnsupportedModelError

__all__ = [
    "base_model",
    "check_supported",
    "context_limit",
    "decoder_config",
    "is_seq2seq",
    "layer_kinds",
    "model_name",
    "parameters_of",
    "relative_bias_modules",
    "vocab_size",
]

ATTENTION = ("sdpa", "eager")
SLIDING = ("sliding_attention", "chunked_attention")


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
    raise UnsupportedModelError(
        f"{type(model).__name__} is not a transformers model; give a PreTrainedModel, a hub id, "
        "a local folder or a GGUF file"
    )


def model_name(model: PreTrainedModel) -> str:
    """How messages call the model: where it was loaded from, or its class."""
    return getattr(model.config, "_name_or_path", "") or type(model).__name__


def is_seq2seq(model: PreTrainedModel) -> bool:
    """Whether the model has an encoder and a decoder."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def decoder_config(model: PreTrainedModel) -> Any:
    """The configuration of the part that decodes."""
    return model.config.get_text_config(decoder=True)


def vocab_size(model: PreTrainedModel) -> int:
    """Entries of the prediction head, padding included."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    return int(weight.shape[0] if weight is not None else decoder_config(model).vocab_size)


def relative_bias_modules(model: PreTrainedModel) -> list[Any]:
    """The decoder's attention modules that compute a T5-like relative bias."""
    return [
        module
        for module in model.get_decoder().modules()
        if hasattr(module, "compute_bias") and getattr(module, "has_relative_attention_bias", False)
    ]


def context_limit(model: PreTrainedModel) -> int | None:
    """The most tokens a row may have; None for relative positions, which have no end."""
    if is_seq2seq(model) and relative_bias_modules(model):
        return None
    config = decoder_config(model)
    for name in ("max_target_positions", "max_position_embeddings", "n_positions"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """Names of a forward's parameters, behind its decorators."""
    return set(inspect.signature(inspect.unwrap(function)).parameters)


def layer_kinds(model: PreTrainedModel) -> list[tuple[str, int]]:
    """Kind and window of every attention layer: ("full_attention", 0), ("sliding_attention", 512),
    ("chunked_attention", 8192)."""
    config = decoder_config(model)
    kinds = getattr(config, "layer_types", None)
    layers = DynamicCache(config=model.config).layers
    found = []
    for index, layer in enumerate(layers):
        if not isinstance(layer, DynamicSlidingWindowLayer):
            found.append(("full_attention", 0))
            continue
        kind = kinds[index] if kinds else "sliding_attention"
        if not kinds and getattr(config, "attention_chunk_size", None) == layer.sliding_window:
            kind = "chunked_attention"
        found.append((kind, layer.sliding_window))
    return found


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
    if getattr(model, "_is_stateful", False) or not _rolls_back(model):
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
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise UnsupportedModelError(f"{name} has weights on the meta device; load them first")


def _rolls_back(model: PreTrainedModel) -> bool:
    try:
        layers = DynamicCache(config=model.config).layers
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError):
        return False  # transformers has no attention cache for it
    known = (DynamicLayer, DynamicSlidingWindowLayer)
    return bool(layers) and all(type(layer) in known for layer in layers)


def layer_list(model: PreTrainedModel, layers: int) -> tuple[nn.Module, str]:
    """The module that holds the decoder's list of `layers` layers, and the list's name there."""
    for module in model.get_decoder().modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == layers:
                return module, name
    raise UnsupportedModelError(
        f"{model_name(model)} has no list of {layers} layers to exit early from; use a draft model"
    )


def compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """The dtype that the model computes in."""
    return model.get_input_embeddings().weight.dtype
