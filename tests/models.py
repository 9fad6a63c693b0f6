"""Tiny random models of real architectures, made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

VOCAB = 97

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "eos_token_id": None,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}


def _causal(model: str, config: str, **extra: Any) -> Callable[[], Any]:
    def make() -> Any:
        settings = {**SMALL, **extra}
        settings = {k: v for k, v in settings.items() if v is not ...}
        return getattr(tf, model)(getattr(tf, config)(**settings))

    return make


def _seq2seq(model: str, config: str, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(tf, model)(getattr(tf, config)(**settings))


CAUSAL: dict[str, Callable[[], Any]] = {
    "llama": _causal("LlamaForCausalLM", "LlamaConfig"),
    "qwen2": _causal("Qwen2ForCausalLM", "Qwen2Config"),
    "gemma3": _causal(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "mistral": _causal("MistralForCausalLM", "MistralConfig", sliding_window=8),
    "gpt2": _causal("GPT2LMHeadModel", "GPT2Config", n_inner=48),
    "gpt_neox": _causal("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    "opt": _causal("OPTForCausalLM", "OPTConfig", ffn_dim=48, word_embed_proj_dim=32),
    "falcon": _causal("FalconForCausalLM", "FalconConfig", multi_query=True, alibi=False),
    "phi": _causal("PhiForCausalLM", "PhiConfig"),
}
ENCODER_DECODER: dict[str, Callable[[], Any]] = {
    "t5": _seq2seq("T5ForConditionalGeneration", "T5Config", **T5),
    "mt5": _seq2seq("MT5ForConditionalGeneration", "MT5Config", **T5, tie_word_embeddings=False),
    "bart": _seq2seq("BartForConditionalGeneration", "BartConfig", **SEQ2SEQ),
    "marian": _seq2seq("MarianMTModel", "MarianConfig", **SEQ2SEQ),
    "whisper": _seq2seq(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        **SEQ2SEQ,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=128,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
}
ALL = {**CAUSAL, **ENCODER_DECODER}


def build(name: str, seed: int = 0, attention: str = "sdpa") -> Any:
    """A random model in fp32 eval mode whose logits are spread enough to be unambiguous."""
    torch.manual_seed(seed)
    model = ALL[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    model.set_attn_implementation(attention)
    model.generation_config.eos_token_id = None
    return model


def encoder_inputs(name: str, length: int, seed: int = 0) -> dict[str, torch.Tensor] | None:
    """Inputs for one row's encoder, or None for causal models."""
    generator = torch.Generator().manual_seed(seed)
    if name in CAUSAL:
        return None
    if name == "whisper":
        return {"input_features": torch.randn(1, 8, 32, generator=generator)}
    ids = torch.randint(3, VOCAB, (1, length), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
