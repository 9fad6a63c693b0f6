"""A GGUF file, run by llama.cpp."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
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
from ..transformers.loading import local_path
from .binding import complaints, has_amx, library
from .context import Context, Weights
from .header import check_header
from .memory import available_memory
from .options import CACHE_TYPES, LlamaOptions
from .runner import LlamaRunner
from .tokenizer import GgufTokenizer

__all__ = ["LlamaModel", "read_tokenizer"]

IDLE = 2  # contexts that are kept for the next generation
BLOCKS, BLOCK = 256, 4096  # of the file, in its fingerprint; bytes


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
        self.path = local_path(path)
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
        if trained < 1:
            raise LoadError(f"{self.name}: the file says that its context is {trained} tokens")
        self.context = self.options.n_ctx or trained
        if self.context > trained:
            raise ParameterError(
                f"n_ctx={self.context} is more than the {trained} tokens that {self.name} was "
                "trained for"
            )
        self._check_types()
        self._check_memory()
        self._idle: list[Context] = []
        self._lock = threading.RLock()  # a finalizer may come in between
        context = self.borrow()  # finds out now whether it runs
        if not context.causal:
            raise UnsupportedModelError(_NOT_A_DECODER.format(self.name))
        self.give_back(context)

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
            raise UnsupportedModelError(_NOT_A_DECODER.format(self.name))

    def _check_types(self) -> None:
        """Refuse quantized keys or values that heads do not fill: llama.cpp may end the process."""
        kinds = {"type_k": "key", "type_v": "value"}
        for option, part in kinds.items():
            kind, width = getattr(self.options, option), self._weights.widths[part]
            if not CACHE_TYPES[kind].is_float and width % BLOCK:
                raise ParameterError(
                    f"{option}={kind!r} takes {BLOCK} values at a time, and every {part} of "
                    f"{self.name} has {width}; use f16, bf16 or f32"
                )

    def _check_memory(self) -> None:
        """Refuse a context that was asked for and cannot fit, before it is filled."""
        if self.options.n_ctx is None:
            return
        needed = self.context * self._weights.cell_bytes(self.options)
        free = available_memory() if self.options.on_cpu else None
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
    def fingerprint(self) -> str:
        """See `Model.fingerprint`: of the file's length and of blocks from all over it."""
        size = self.path.stat().st_size
        found = hashlib.sha256(str(size).encode())
        with self.path.open("rb") as file:
            for part in range(BLOCKS):
                file.seek(part * max(0, size - BLOCK) // (BLOCKS - 1))
                found.update(file.read(BLOCK))
        return found.hexdigest()[:16]

    @cached_property
    def tokenizer(self) -> GgufTokenizer:
        """The file's own tokenizer."""
        return GgufTokenizer(self._weights)

    @cached_property
    def generation_config(self) -> tf.GenerationConfig:
        """See `Model.generation_config`: what ends a text, and the file's own way to sample."""
        ends = self.tokenizer.end_ids
        config = tf.GenerationConfig(eos_token_id=ends or None)
        if self._sampling("temp", math.inf):
            config.do_sample = True
            for key, (name, most) in SAMPLING.items():
                if (value := self._sampling(key, most)) is not None:
                    setattr(config, name, int(value) if name == "top_k" else value)
        config.repetition_penalty = self._sampling("penalty_repeat", math.inf) or 1.0
        return config

    def _sampling(self, key: str, most: float) -> float | None:
        """A setting of the file, within 0 … `most`: to llama.cpp, too, what is outside is the
        nearest that means something."""
        text = self._weights.metadata(f"general.sampling.{key}")
        if text is None:
            return None
        try:
            return min(max(0.0, float(text)), most)  # NaN is 0
        except ValueError as cause:
            raise LoadError(
                f"{self.name}: its general.sampling.{key} is {text!r}, not a number; correct the "
                "file, or take another"
            ) from cause

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

    def borrow(self, wanted: Context | None = None) -> Context:
        """A context that nobody else uses until it is given back: the wanted one, if it is free."""
        with self._lock:
            if wanted is None or wanted.lent or wanted.weights is not self._weights:
                wanted = self._idle[-1] if self._idle else None
            if wanted is not None:
                wanted.lent = True
                if wanted in self._idle:
                    self._idle.remove(wanted)
                return wanted
        return Context(self._weights, self.options, self.vocab, self.context)

    def give_back(self, context: Context) -> None:
        """Leave a context to the next runner, or free it if there are enough."""
        with self._lock:
            context.lent = False
            if len(self._idle) < IDLE:
                self._idle.append(context)


_NOT_A_DECODER = (
    "{} is not a decoder-only model; the llama.cpp engine runs no other kind (for T5-like models "
    "load a Hugging Face folder)"
)
BLOCK = 32  # values that are quantized together
FLOAT_TYPES = (0, 1, 32)  # llama.cpp's numbers of files in float32, float16 and bfloat16
SAMPLING = {  # transformers' names, and the highest values
    "temp": ("temperature", math.inf),
    "top_k": ("top_k", math.inf),
    "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 1.0),
}


def read_tokenizer(path: Path) -> GgufTokenizer:
    """A file's tokenizer, without its weights."""
    settings = library().llama_model_default_params()
    settings.vocab_only = True
    return GgufTokenizer(_load(path, settings))


def _settings(options: LlamaOptions) -> Any:
    settings = library().llama_model_default_params()
    settings.n_gpu_layers = options.n_gpu_layers
    settings.load_mode = LOAD_MMAP if options.use_mmap else LOAD_READ
    # A thread's tiles are configured once, in code that GCC 12 compiles to nothing (llama.cpp's
    # pull request 26954), and torch configures them anew in the same thread.
    settings.use_extra_bufts = not has_amx()
    return settings


LOAD_READ, LOAD_MMAP = 0, 1
NO_VOCABULARY = 0  # llama.cpp's number of that kind of tokenizer


def _load(path: Path, settings: Any) -> Weights:
    check_magic(path)
    check_header(path)
    complaints.clear()
    binding = library()
    pointer = binding.llama_model_load_from_file(os.fsencode(path), settings)
    if not pointer:
        raise LoadError(f"{path}: llama.cpp cannot load it: {_reason(list(complaints))}")
    weights = Weights(pointer)
    if binding.llama_vocab_type(binding.llama_model_get_vocab(pointer)) == NO_VOCABULARY:
        raise LoadError(f"{path}: the file has no tokenizer; give one that is a whole model")
    return weights


def _reason(lines: list[str]) -> str:
    """The first error, or complaint, without the names of the functions that pass it on."""
    errors = [line for line in lines if "error" in line]
    first = [*errors, *lines, "it does not say why"][0]
    return first.split(": ", 1)[-1].rstrip(".")
