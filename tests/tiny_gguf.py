"""Tiny GGUF files, made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf

__all__ = ["EXACT", "made_up", "tokens_of", "write_gguf"]

EXACT: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": False, "n_threads": 1}
"""Options with which llama.cpp computes in float32."""


def made_up(count: int) -> list[str]:
    """Names for so many tokens."""
    return [f"<{index}>" if index < 3 else f"w{index}" for index in range(count)]


def tokens_of(tokenizer: Any) -> list[str]:
    """A tokenizer's tokens in their order."""
    return sorted(tokenizer.get_vocab(), key=lambda token: int(tokenizer.get_vocab()[token]))


def write_gguf(
    model: Any,
    tokens: Sequence[str],
    path: Path,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    **sampling: Any,
) -> None:
    """What llama.cpp's converter makes of a Llama whose tokenizer has these tokens.

    `change` may add to the file's metadata, or say something else there.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(tokens))
    writer.add_token_types([3 if index < 3 else 1 for index in range(len(tokens))])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    for name, value in sampling.items():
        writer.add_key_value(f"general.sampling.{name}", value, gguf.GGUFValueType.get_type(value))
    if change is not None:
        change(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        array = weight.float().numpy()
        for part, heads in (
            ("q_proj", config.num_attention_heads),
            ("k_proj", config.num_key_value_heads),
        ):
            if part in name:  # rotary halves lie side by side there
                rows, columns = array.shape
                halves = array.reshape(heads, 2, rows // heads // 2, columns)
                array = halves.swapaxes(1, 2).reshape(rows, columns)
        writer.add_tensor(str(names.get_name(name, try_suffixes=(".weight",))), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
