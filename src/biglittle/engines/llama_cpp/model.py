"""A GGUF file, run by llama.cpp."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from ...errors import LoadError, ParameterError, UnsupportedModelError
from ..base import EncoderInput, Model
from ..transformers.gguf import check_magic
from .binding import complaints, library
from .context import Context, Weights
from .options import CACHE_TYPES, LlamaOptions
from .runner import LlamaRunner
from .tokenizer import GgufTokenizer

__all__ = ["LlamaModel", "read_tokenizer"]

IDLE = 2  # contexts that are kept for the next generation


class LlamaModel:
    """A GGUF file in memory, ready to run.

    Args:
        path: The file; of a split model, its first part.
        options: How llama.cpp runs it.

    Raises:
        LoadError: No GGUF file, a damaged one, or one that this llama.cpp does not know.
        UnsupportedModelError: A model whose state cannot be rolled back, or that does not decode.
        ParameterError: A context that the model was not made for or that memory cannot hold.
    """

    def __init__(
        self, path: str | Path, options: LlamaOptions | Mapping[str, Any] | None = None
    ) -> None:
        self.path = Path(path).expanduser()
        self.options = LlamaOptions.make(options)
        self.name = str(path)
        self.device = torch.device("cpu")  # where its logits are, whatever computes them
        binding = library()
        self._weights = _load(self.path, _settings(self.options))
        model = self._weights.pointer
        self._check_kind(model)
        vocab = binding.llama_model_get_vocab(model)
        self.vocab = int(binding.llama_vocab_n_tokens(vocab))
        trained = int(binding.llama_model_n_ctx_train(model))
        self.context = self.options.n_ctx or trained
        if self.context > trained:
            raise ParameterError(
                f"n_ctx={self.context} is more than the {trained} tokens that {self.name} was "
                "trained for"
            )
        self._check_memory(model)
        self._idle: list[Context] = []
        self._lock = threading.Lock()
        self.give_back(self.borrow())  # finds out now whether it runs

    def __repr__(self) -> str:
        return f"LlamaModel({self.name!r})"

    def _check_kind(self, model: Any) -> None:
        binding = library()
        if binding.llama_model_is_recurrent(model) or binding.llama_model_is_hybrid(model):
            raise UnsupportedModelError(
                f"{self.name} keeps a recurrent state that cannot be rolled back; use a model "
                "whose layers are all attention"
            )
        if binding.llama_model_has_encoder(model) or binding.llama_model_is_diffusion(model):
            raise UnsupportedModelError(
                f"{self.name} is not a decoder-only model; the llama.cpp engine runs no other "
                "kind (for T5-like models load a Hugging Face folder)"
            )

    def _check_memory(self, model: Any) -> None:
        """Refuse a context that was asked for and cannot fit, before it is filled."""
        binding = library()
        if self.options.n_ctx is None:
            return
        width = int(binding.llama_model_n_embd(model)) // int(binding.llama_model_n_head(model))
        heads = int(binding.llama_model_n_head_kv(model))
        each = int(binding.llama_model_n_layer(model)) * heads * width
        kinds = (self.options.type_k, self.options.type_v)
        needed = self.context * each * sum(CACHE_TYPES[kind].bytes for kind in kinds)
        free = _available_memory()
        if free is not None and needed > free:
            raise ParameterError(
                f"n_ctx={self.context} needs {needed / 2**30:.1f} GiB for keys and values, and "
                f"{free / 2**30:.1f} GiB are free; give a smaller n_ctx, or type_k and type_v"
            )

    # What a pair asks of a model.

    @property
    def summary(self) -> str:
        """See `Model.summary`."""
        buffer = ctypes.create_string_buffer(256)
        library().llama_model_desc(self._weights.pointer, buffer, len(buffer))
        return f"{buffer.value.decode('utf8', errors='replace')} in llama.cpp"

    @cached_property
    def tokenizer(self) -> GgufTokenizer:
        """The file's own tokenizer."""
        return GgufTokenizer(self._weights)

    @cached_property
    def generation_config(self) -> tf.GenerationConfig:
        """See `Model.generation_config`: what ends a text, and the file's own way to sample."""
        ends = self.tokenizer.end_ids
        config = tf.GenerationConfig(eos_token_id=ends or None)
        sampling = {key: self._number(f"general.sampling.{key}") for key in SAMPLING}
        if sampling["temp"]:
            config.do_sample = True
            for key, name in SAMPLING.items():
                if (value := sampling[key]) is not None:
                    setattr(config, name, int(value) if name == "top_k" else value)
        config.repetition_penalty = self._number("general.sampling.penalty_repeat") or 1.0
        return config

    def _number(self, key: str) -> float | None:
        text = self._weights.metadata(key)
        return None if text is None else float(text)

    @property
    def resolution(self) -> float:
        """See `Model.resolution`. With quantized weights llama.cpp rounds activations to eight
        bits in every layer, which magnifies the last place of what comes in to a few per cent."""
        exact = library().llama_model_ftype(self._weights.pointer) in FLOAT_TYPES
        return 2**-7 if exact else 2**-5

    def encoder_input(self) -> EncoderInput | None:
        """See `Model.encoder_input`: there is none."""
        return None

    def decoder_start(self) -> tuple[int, ...]:
        """See `Model.decoder_start`: rows start from their prompts."""
        return ()

    def runner(self, *, adapters: bool = True) -> LlamaRunner:
        """See `Model.runner`; there are no adapters."""
        return LlamaRunner(self)

    def shares_weights(self, other: Model) -> bool:
        """See `Model.shares_weights`."""
        return self is other

    # Contexts.

    def borrow(self) -> Context:
        """A context that nobody else uses until it is given back."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return Context(self._weights, self.options, self.vocab, self.context)

    def give_back(self, context: Context) -> None:
        """Leave a context to the next runner, or free it if there are enough."""
        with self._lock:
            if len(self._idle) < IDLE:
                self._idle.append(context)


FLOAT_TYPES = (0, 1, 32)  # llama.cpp's numbers of files in float32, float16 and bfloat16
SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}


def read_tokenizer(path: Path) -> GgufTokenizer:
    """A file's tokenizer, without its weights."""
    settings = library().llama_model_default_params()
    settings.vocab_only = True
    return GgufTokenizer(_load(path, settings))


def _settings(options: LlamaOptions) -> Any:
    settings = library().llama_model_default_params()
    settings.n_gpu_layers = options.n_gpu_layers
    settings.load_mode = LOAD_MMAP if options.use_mmap else LOAD_READ
    return settings


LOAD_READ, LOAD_MMAP = 0, 1


def _load(path: Path, settings: Any) -> Weights:
    check_magic(path)
    complaints.clear()
    pointer = library().llama_model_load_from_file(str(path).encode(), settings)
    if not pointer:
        raise LoadError(f"{path}: llama.cpp cannot load it: {_reason(list(complaints))}")
    return Weights(pointer)


def _reason(lines: list[str]) -> str:
    """The first complaint, without the names of the functions that pass it on."""
    first = lines[0] if lines else "it does not say why"
    return first.split(": ", 1)[-1].rstrip(".")


def _available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf8").splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return sizes[0] * 1024 if sizes else None
