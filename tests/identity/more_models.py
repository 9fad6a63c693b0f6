"""Tiny random models of further architectures, by the name of their class."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
import transformers as tf
from tests.models import VOCAB

# Every configuration takes what it has a field for.
SETTINGS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    # GPT-2's names
    "n_positions": 128,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 48,
    "rotary_dim": 4,
    # MPT's, XGLM's
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 3,
    "num_layers": 3,
    "attention_heads": 4,
    "ffn_dim": 48,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # compressed keys and values
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    # encoder and decoder
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
    "attention_window": 8,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "num_decoder_layers": 3,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
}
MIXED = ["sliding_attention", "full_attention", "full_attention"]
COMPRESSED = {"num_key_value_heads": 4, "qk_head_dim": 16}
TEXT = {key: SETTINGS[key] for key in list(SETTINGS)[:12]}  # of a model that also sees

EXTRA: dict[str, dict[str, Any]] = {
    "BartForCausalLM": {"decoder_layers": 2},
    "DeepseekV2ForCausalLM": COMPRESSED,
    "DeepseekV3ForCausalLM": COMPRESSED,
    "MiniCPM3ForCausalLM": COMPRESSED,
    "Gemma2ForCausalLM": {"layer_types": MIXED},
    "Gemma3ForConditionalGeneration": {
        "text_config": {**TEXT, "layer_types": MIXED},
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        "image_token_index": VOCAB - 1,
    },
    "Gemma3nForCausalLM": {  # the last two layers attend to the states of the first two
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [48] * 4,
        "laurel_rank": 4,
    },
    "Gemma4ForCausalLM": {
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "layer_types": MIXED,
    },
    "GraniteMoeHybridForCausalLM": {
        "layer_types": ["full_attention"] * 3,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
    },
    "GPTNeoForCausalLM": {
        "attention_types": [[["global", "local", "global"], 1]],
        "window_size": 8,
    },
}

CAUSAL = (
    "CodeGenForCausalLM",
    "CohereForCausalLM",
    "Cohere2ForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Exaone4ForCausalLM",
    "Ernie4_5ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForCausalLM",
    "Gemma4ForCausalLM",
    "GlmForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "GPTBigCodeForCausalLM",
    "GPTJForCausalLM",
    "GptOssForCausalLM",
    "GraniteForCausalLM",
    "GraniteMoeForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "HeliumForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "Llama4ForCausalLM",
    "MiniCPM3ForCausalLM",
    "MinistralForCausalLM",
    "MixtralForCausalLM",
    "NemotronForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "OlmoeForCausalLM",
    "Phi3ForCausalLM",
    "PhimoeForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "SeedOssForCausalLM",
    "SmolLM3ForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
    "XGLMForCausalLM",
)
ENCODER_DECODER = (
    "BlenderbotForConditionalGeneration",
    "LongT5ForConditionalGeneration",
    "M2M100ForConditionalGeneration",
    "MBartForConditionalGeneration",
    "NllbMoeForConditionalGeneration",
    "PegasusForConditionalGeneration",
    "PLBartForConditionalGeneration",
    "SwitchTransformersForConditionalGeneration",
    "UMT5ForConditionalGeneration",
)
LONE_ROWS = (  # positions or masks from a length that all rows are taken to share
    "BloomForCausalLM",
    "MptForCausalLM",
    "GPTNeoForCausalLM",
    "BartForCausalLM",
    "LEDForConditionalGeneration",
)
REFUSED = (  # they look ahead, keep a cache of their own, or take one token at a time
    "BertLMHeadModel",
    "RobertaForCausalLM",
    "CpmAntForCausalLM",
    "OpenAIGPTLMHeadModel",
    "XLNetLMHeadModel",
    "ProphetNetForConditionalGeneration",
    "FSMTForConditionalGeneration",
)


def build(name: str, **settings: Any) -> Any:
    """A random model in fp32 eval mode whose logits are spread enough to be unambiguous."""
    torch.manual_seed(0)
    kind = getattr(tf, name)
    known = kind.config_class.__dataclass_fields__
    chosen = {key: value for key, value in SETTINGS.items() if key in known}
    config = kind.config_class(**{**chosen, **EXTRA.get(name, {}), **settings})
    with contextlib.redirect_stdout(io.StringIO()):  # models that warn by printing
        model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
