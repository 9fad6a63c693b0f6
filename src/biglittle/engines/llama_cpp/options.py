"""How llama.cpp runs a model; the names are its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

from ...errors import ParameterError, nearest
from .binding import library

__all__ = ["CACHE_TYPES", "LlamaOptions"]


class CacheType(NamedTuple):
    """A type that keys and values can have."""

    ggml: int
    """ggml's number."""
    bytes: float
    """Of one value."""

    @property
    def is_float(self) -> bool:
        """Whether values are kept one by one, rather than in quantized blocks."""
        return float(self.bytes).is_integer()


CACHE_TYPES = {
    "f32": CacheType(0, 4),
    "f16": CacheType(1, 2),
    "bf16": CacheType(30, 2),
    "q8_0": CacheType(8, 34 / 32),
    "q5_1": CacheType(7, 24 / 32),
    "q5_0": CacheType(6, 22 / 32),
    "q4_1": CacheType(3, 20 / 32),
    "q4_0": CacheType(2, 18 / 32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """How llama.cpp runs a model.

    Attributes:
        n_ctx: Most tokens of one text, prompt and answer; None is what the model was trained for.
            Keys and values take memory as texts grow, not before.
        n_threads: Threads for one token at a time; None is as many as `torch.get_num_threads()`,
            usually the cores.
        n_threads_batch: Threads for many tokens, the prompt's or a draft's to be checked; None is
            `n_threads`.
        n_gpu_layers: Layers on a GPU, where llama.cpp is built for one; -1 is all.
        type_k: Type of cached keys: f32, f16, bf16, q8_0 …
        type_v: Type of cached values; a quantized one needs `flash_attn`.
        flash_attn: Whether attention is computed in one fused step; None leaves it to llama.cpp.
            On a CPU it rounds to float16, but alike at every width, which keeps a target's
            greedy output what it is alone. A draft need not: `load` turns it off there, for it
            can be three times slower.
        use_mmap: Whether the file is mapped rather than read.
    """

    n_ctx: int | None = None
    n_threads: int | None = None
    n_threads_batch: int | None = None
    n_gpu_layers: int = -1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool | None = None
    use_mmap: bool = True

    def __post_init__(self) -> None:
        for name in ("n_ctx", "n_threads", "n_threads_batch"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ParameterError(f"{name}={value!r} must be a whole number of at least 1")
        if type(self.n_gpu_layers) is not int or self.n_gpu_layers < -1:
            raise ParameterError(
                f"n_gpu_layers={self.n_gpu_layers!r} must be a whole number, or -1 for all layers"
            )
        for name in ("type_k", "type_v"):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in CACHE_TYPES:
                hint = nearest(str(value), CACHE_TYPES)
                raise ParameterError(
                    f"{name}={value!r} is no type of cache; known: {', '.join(CACHE_TYPES)}{hint}"
                )
        if not isinstance(self.use_mmap, bool):
            raise ParameterError(f"use_mmap={self.use_mmap!r} must be True or False")
        if not isinstance(self.flash_attn, bool | None):
            raise ParameterError(f"flash_attn={self.flash_attn!r} must be True, False or None")
        if self.flash_attn is False and not CACHE_TYPES[self.type_v].is_float:
            raise ParameterError(
                f"flash_attn=False is not for type_v={self.type_v!r}, which the fused kernel alone "
                "reads; leave it out, or use type_v='f16'"
            )

    @property
    def on_cpu(self) -> bool:
        """Whether all of the model is on the CPU."""
        return self.n_gpu_layers == 0 or not library().llama_supports_gpu_offload()

    def for_draft(self) -> Self:
        """The same, with what a draft does faster where nobody decided otherwise."""
        # Quantized values need the fused kernel; on a GPU it is the faster one.
        free = self.flash_attn is None and self.on_cpu and CACHE_TYPES[self.type_v].is_float
        return replace(self, flash_attn=False) if free else self

    def without_gpu(self) -> Self:
        """The same, all of it on the CPU."""
        return replace(self, n_gpu_layers=0)

    @classmethod
    def make(cls, options: LlamaOptions | Mapping[str, Any] | None) -> Self:
        """Options from a mapping; an unknown name is told with the nearest known one."""
        if isinstance(options, cls):
            return options
        if not isinstance(options, Mapping | None):
            raise ParameterError(
                f"options of llama.cpp are a mapping, such as {{'n_ctx': 4096}}, not {options!r}"
            )
        given = dict(options or {})
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ParameterError(
                    f"unknown option {name!r} of llama.cpp; known: {', '.join(known)}"
                    f"{nearest(str(name), known)}"
                )
        made = cls(**given)
        if given.get("n_gpu_layers") and not library().llama_supports_gpu_offload():
            raise ParameterError(
                f"n_gpu_layers={made.n_gpu_layers} needs a llama.cpp that is built for a GPU, and "
                "this one is not; leave it out, or build llama-cpp-python for yours"
            )
        return made
