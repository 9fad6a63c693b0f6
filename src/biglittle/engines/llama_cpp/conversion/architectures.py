"""Hugging Face architectures as llama.cpp has them: metadata, tensors, and what it cannot do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import torch
import transformers as tf
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ....errors import UnsupportedModelError

__all__ = ["EMBEDDING", "FAMILIES", "FREQUENCIES", "HEAD", "Family", "Planned"]
__all__ += ["check_config", "plan", "write_config"]

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"  # transformers' names
FREQUENCIES = "rope_freqs.weight"  # llama.cpp's
MOST_LAYERS = 512  # llama.cpp ends the process over more, and over none


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Architectures that are converted alike.

    Attributes:
        title: For people.
        arch: llama.cpp's.
        activation: The only one that llama.cpp has for it.
        interleaved: Whether llama.cpp rotates neighbours, where transformers rotates halves.
        shift: What is added to the weights of norms.
        windowed: Whether llama.cpp has layers with a sliding window for it.
    """

    title: str
    arch: gguf.MODEL_ARCH
    activation: str = "silu"
    interleaved: bool = False
    shift: float = 0.0
    windowed: bool = False


FAMILIES = {  # by transformers' model type
    "llama": Family(title="Llama", arch=gguf.MODEL_ARCH.LLAMA, interleaved=True),
    "mistral": Family(title="Mistral", arch=gguf.MODEL_ARCH.LLAMA, interleaved=True),
    "qwen2": Family(title="Qwen 2", arch=gguf.MODEL_ARCH.QWEN2),
    "qwen3": Family(title="Qwen 3", arch=gguf.MODEL_ARCH.QWEN3),
    "gemma3_text": Family(
        title="Gemma 3 (text)",
        arch=gguf.MODEL_ARCH.GEMMA3,
        activation="gelu_pytorch_tanh",
        shift=1.0,
        windowed=True,
    ),
}


def check_config(name: str, config: Any) -> Family:
    """The family of a model.

    Raises:
        UnsupportedModelError: An architecture or a setting that llama.cpp cannot reproduce.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(family.title for family in FAMILIES.values())
        raise UnsupportedModelError(
            f"{name}: cannot convert its architecture {config.model_type!r}; known: {known}"
        )
    for reason in _obstacles(config, family):
        raise UnsupportedModelError(
            f"{name}: llama.cpp cannot run it as it is, because of {reason}; use it through "
            "transformers"
        )
    return family


def _obstacles(config: Any, family: Family) -> list[str]:
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    rope, window = _rope(config), getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    narrow = window is not None and window < config.max_position_embeddings
    scalings = ["default", "linear"] + ["llama3"] * family.interleaved
    heads = _head_dim(config) * config.num_attention_heads
    found = {
        f"its {config.num_hidden_layers} layers": not 0 < config.num_hidden_layers <= MOST_LAYERS,
        f"its context of {config.max_position_embeddings}": config.max_position_embeddings < 2,
        "its quantized weights": getattr(config, "quantization_config", None) is not None,
        f"its activation {activation!r}": activation != family.activation,
        f"its sliding window of {window} tokens": (
            narrow and not family.windowed and "sliding_attention" in kinds
        ),
        f"its RoPE scaling {rope['rope_type']!r}": rope["rope_type"] not in scalings,
        "the RoPE scaling of its sliding layers": _local_rope(config)["rope_type"] != "default",
        "its partial rotation": rope.get("partial_rotary_factor", 1.0) != 1.0,
        "its bidirectional attention": bool(getattr(config, "use_bidirectional_attention", False)),
        "its capped attention scores": bool(getattr(config, "attn_logit_softcapping", None)),
        "its scale of attention scores": not _scales_alike(config),
        "heads that are not as wide as its layers": (
            family.arch == gguf.MODEL_ARCH.QWEN2 and heads != config.hidden_size
        ),
    }
    return [reason for reason, hinders in found.items() if hinders]


def _scales_alike(config: Any) -> bool:
    """llama.cpp divides by the root of the head's width, but knows Gemma 3 27B by its layers."""
    wanted = getattr(config, "query_pre_attn_scalar", None)
    large = config.num_hidden_layers == 62
    wide = config.hidden_size // config.num_attention_heads if large else _head_dim(config)
    return wanted is None or wanted == wide


def _head_dim(config: Any) -> int:
    given = getattr(config, "head_dim", None)
    return int(given or config.hidden_size // config.num_attention_heads)


def _rope(config: Any) -> dict[str, Any]:
    parameters: dict[str, Any] = config.rope_parameters
    full: dict[str, Any] = parameters.get("full_attention", parameters)
    return full


def _local_rope(config: Any) -> dict[str, Any]:
    """That of layers with a sliding window, where it is another."""
    default = {"rope_type": "default"}
    local: dict[str, Any] = config.rope_parameters.get("sliding_attention", default)
    return local


def write_config(writer: gguf.GGUFWriter, config: Any, family: Family) -> None:
    """Write what llama.cpp must know of the model besides its tensors and tokenizer."""
    width, rope = _head_dim(config), _rope(config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_vocab_size(config.vocab_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if family.windowed:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind != "full_attention" for kind in config.layer_types])
        writer.add_rope_freq_base_swa(_local_rope(config)["rope_theta"])
    if cap := getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(cap)


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor of the GGUF file: its name, its shape, and how it is made of one in the folder."""

    name: str
    shape: tuple[int, ...]
    source: str
    make: Callable[[Tensor], Tensor]


def plan(config: Any, family: Family, *, own_head: bool) -> list[Planned]:
    """All tensors of the model.

    Args:
        config: Its configuration.
        family: Its family.
        own_head: Whether the head is written; llama.cpp takes the embedding where it is not.
    """
    with torch.device("meta"):
        shapes = tf.AutoModelForCausalLM.from_config(config).state_dict()
    names = gguf.get_tensor_name_map(family.arch, config.num_hidden_layers)
    found = []
    for source, tensor in shapes.items():
        if source == HEAD and not own_head:
            continue
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise UnsupportedModelError(f"llama.cpp has no place for the tensor {source}")
        found.append(Planned(name, tuple(tensor.shape), source, _maker(source, config, family)))
    if _rope(config)["rope_type"] == "llama3":
        factors = _frequency_factors(config)
        found.append(Planned(FREQUENCIES, tuple(factors.shape), EMBEDDING, lambda _: factors))
    return found


def _maker(source: str, config: Any, family: Family) -> Callable[[Tensor], Tensor]:
    layer = source.rsplit(".", 2)[-2]
    if family.interleaved and layer in ("q_proj", "k_proj"):
        counts = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        return lambda tensor: _interleave(tensor, counts[layer])
    if family.shift and layer.endswith("norm"):
        return lambda tensor: tensor.float() + family.shift
    return lambda tensor: tensor


def _interleave(tensor: Tensor, heads: int) -> Tensor:
    """Rows of every head from (first half, second half) to pairs: what is rotated together."""
    halves = tensor.view(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _frequency_factors(config: Any) -> Tensor:
    """What llama.cpp divides each frequency by, [head_dim / 2]; Llama 3.1's scaling."""
    width = _head_dim(config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    plain: Tensor = 1.0 / _rope(config)["rope_theta"] ** exponents
    return plain / scaled
