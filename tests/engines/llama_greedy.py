"""llama.cpp by itself: what its engine is held to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from biglittle import LlamaModel
from biglittle.engines.llama_cpp.binding import library
from biglittle.engines.llama_cpp.context import FLASH_ATTENTION
from biglittle.engines.llama_cpp.options import CACHE_TYPES

__all__ = ["own_greedy"]


def own_greedy(model: LlamaModel, prompt: Sequence[int], new: int) -> list[int]:
    """llama.cpp's own greedy decoding, token by token, in a context of its own."""
    binding = library()
    settings = binding.llama_context_default_params()
    ours = model.options  # the same kernels
    settings.n_ctx, settings.n_threads = 512, ours.n_threads or 1
    settings.flash_attn_type = FLASH_ATTENTION[ours.flash_attn]
    settings.type_k, settings.type_v = (
        CACHE_TYPES[kind].ggml for kind in (ours.type_k, ours.type_v)
    )
    context = binding.llama_init_from_model(model._weights.pointer, settings)
    feed, written = list(prompt), []
    for _ in range(new):
        tokens = (ctypes.c_int32 * len(feed))(*feed)
        assert binding.llama_decode(context, binding.llama_batch_get_one(tokens, len(feed))) == 0
        logits = binding.llama_get_logits_ith(context, -1)
        feed = [int(np.argmax(np.ctypeslib.as_array(logits, (model.vocab,))))]
        written += feed
    binding.llama_free(context)
    return written
