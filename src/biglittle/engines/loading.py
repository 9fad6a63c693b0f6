"""Which engine runs a model, and loading it there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import catalogue
from ..errors import LoadError, ParameterError, nearest
from . import llama_cpp
from .transformers import loading as transformers_loading

__all__ = ["ENGINES", "Recipe"]

ENGINES = ("transformers", "llama.cpp")

log = logging.getLogger("biglittle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one model is loaded: checked when it is made, before anything large is read.

    Attributes:
        source: A name, a path, or a model in memory.
        engine: One of `ENGINES`, or "auto": llama.cpp for GGUF files where it is installed,
            unless something is asked for that only transformers does.
        dtype, device, adapter, quantize, pack, trust_remote_code: See
            `transformers.loading.load_model`.
        llama: See `llama_cpp.LlamaOptions`.
    """

    source: Any
    engine: str = "auto"
    dtype: str | torch.dtype = "auto"
    device: str | torch.device = "auto"
    adapter: str | Path | None = None
    quantize: str | None = None
    pack: bool = True
    trust_remote_code: bool = False
    llama: llama_cpp.LlamaOptions | Mapping[str, Any] | None = None
    draft: bool = False
    """Whether the model will draft: then it may be rougher, and faster."""

    def __post_init__(self) -> None:
        if self.engine not in ("auto", *ENGINES):
            hint = nearest(str(self.engine), ENGINES)
            raise ParameterError(
                f"unknown engine {self.engine!r}; known: auto, {', '.join(ENGINES)}{hint}"
            )
        transformers_loading.pick_dtype(self.dtype)
        device = transformers_loading.pick_device(self.device)
        transformers_loading.check_quantize(self.quantize, self.source, self.device)
        llama_cpp.LlamaOptions.make(self.llama)
        if self.engine == "llama.cpp":
            self._check_llama(device)

    def _check_llama(self, device: torch.device) -> None:
        if isinstance(self.source, str | Path) and not self._is_gguf and not self._entry:
            raise ParameterError(
                f"{self.source}: the llama.cpp engine runs GGUF files; give one, make one of a "
                "folder with `biglittle convert`, or leave the engine to be chosen"
            )
        for name, wanted in self._only_transformers.items():
            raise ParameterError(
                f"{name}={wanted!r} is not for the llama.cpp engine, which runs a file as it is; "
                "leave it out, or use engine='transformers'"
            )
        if device.type not in ("cpu", "cuda"):
            raise ParameterError(f"device {str(device)!r} is not one of the llama.cpp engine's")

    @property
    def _entry(self) -> catalogue.CatalogueEntry | None:
        return catalogue.find(str(self.source))

    @property
    def _is_gguf(self) -> bool:
        named = isinstance(self.source, str | Path) and str(self.source).lower().endswith(".gguf")
        return named or isinstance(self.source, llama_cpp.LlamaModel)

    @property
    def _only_transformers(self) -> dict[str, Any]:
        """What was asked for that only transformers does."""
        asked = {
            "dtype": None if self.dtype == "auto" else self.dtype,
            "adapter": self.adapter,
            "draft_quantize": self.quantize,
        }
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def in_llama(self) -> bool:
        """Whether llama.cpp runs the model."""
        if self.engine != "auto":
            return self.engine == "llama.cpp"
        wanted = self._is_gguf and not self._only_transformers
        return wanted and llama_cpp.available()

    def load(self) -> Any:
        """The model."""
        if not self.in_llama:
            self._say_what_is_faster()
            return transformers_loading.load_model(
                self.source,
                dtype=self.dtype,
                device=self.device,
                adapter=self.adapter,
                quantize=self.quantize,
                pack=self.pack,
                trust_remote_code=self.trust_remote_code,
            )
        if isinstance(self.source, llama_cpp.LlamaModel):
            return self.source
        options = llama_cpp.LlamaOptions.make(self.llama)
        on_cpu = transformers_loading.pick_device(self.device).type == "cpu"
        if self.device != "auto" and on_cpu:
            options = options.without_gpu()
        if self.draft:
            options = options.for_draft()
        return llama_cpp.LlamaModel(self._path(), options)

    def tokenizer(self) -> Any:
        """The model's tokenizer, read without its weights; None for one that has none."""
        if not self.in_llama:
            return transformers_loading.load_tokenizer(
                self.source, dtype=self.dtype, trust_remote_code=self.trust_remote_code
            )
        if isinstance(self.source, llama_cpp.LlamaModel):
            return self.source.tokenizer
        return llama_cpp.read_tokenizer(self._path())

    def _path(self) -> Path:
        path = Path(self.source).expanduser()
        if self._entry is not None and not path.exists():
            return catalogue.fetch_gguf(self._entry)
        if not path.is_file():
            raise LoadError(f"{self.source}: no such file")
        return path

    def _say_what_is_faster(self) -> None:
        if self._is_gguf and self.engine == "auto" and not self._only_transformers:
            log.warning(
                "%s goes through transformers, dequantized; %s runs it as it is, and faster",
                self.source,
                llama_cpp.INSTALL,
            )
