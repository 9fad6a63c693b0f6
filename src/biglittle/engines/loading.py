"""Which engine runs a model, and loading it there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from .. import catalogue
from ..errors import LoadError, ParameterError, nearest
from . import llama_cpp
from .transformers import loading as transformers_loading
from .transformers.cut_head import DraftVocab, check_vocab

__all__ = ["ENGINES", "Recipe", "recipes"]

ENGINES = ("transformers", "llama.cpp")

log = logging.getLogger("biglittle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one model is loaded: checked when it is made, before anything large is read.

    Attributes:
        source: A name, a path, or a model in memory.
        engine: One of `ENGINES`, or "auto": llama.cpp for GGUF files where it is installed,
            unless something is asked for that only transformers does.
        dtype, device, adapter, quantize, vocab, pack, trust_remote_code: See
            `transformers.loading.load_model`.
        llama: See `llama_cpp.LlamaOptions`.
    """

    source: Any
    engine: str = "auto"
    dtype: str | torch.dtype = "auto"
    device: str | torch.device = "auto"
    adapter: str | Path | None = None
    quantize: str | None = None
    vocab: DraftVocab | None = None
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
        if self.is_read:
            transformers_loading.local_path(self.source)
        transformers_loading.pick_dtype(self.dtype)
        device = self._device()
        transformers_loading.check_quantize(self.quantize, self.source, self.device)
        check_vocab(self.vocab, self.source)
        llama_cpp.LlamaOptions.make(self.llama)
        self._check_own_engine()
        if self.engine == "llama.cpp":
            self._check_llama(device)

    def _device(self) -> torch.device:
        try:
            return transformers_loading.pick_device(self.device)
        except ParameterError as cause:
            if not self.in_llama:
                raise
            raise ParameterError(
                f"{cause}; layers of a GGUF file go to a GPU with n_gpu_layers"
            ) from cause

    def _check_own_engine(self) -> None:
        """A model in memory is in an engine already."""
        if self.source is None or self.is_read:
            return
        own = "llama.cpp" if self._in_memory else "transformers"
        if self.engine not in ("auto", own):
            option = "draft_engine" if self.draft else "engine"
            raise ParameterError(
                f"{option}={self.engine!r}: a model in memory stays in its own engine, which is "
                f"{own}; leave the option out, or give a file"
            )
        if self._in_memory and self.adapter is not None:
            raise ParameterError(
                f"adapter={str(self.adapter)!r} is not for the llama.cpp engine; leave it out, or "
                "give the model as a folder"
            )

    def _check_llama(self, device: torch.device) -> None:
        if self.is_read and not self.is_gguf and not self._entry:
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
    def is_read(self) -> bool:
        """Whether the model is loaded here, rather than given as an object."""
        return isinstance(self.source, str | Path)

    @property
    def _in_memory(self) -> bool:
        return isinstance(self.source, llama_cpp.LlamaModel)

    @property
    def _entry(self) -> catalogue.CatalogueEntry | None:
        here = not self.is_read or transformers_loading.local_path(self.source).exists()
        return None if here else catalogue.find(str(self.source))

    @property
    def on_cpu(self) -> bool:
        """Whether a CPU was asked for."""
        return self.device != "auto" and self._device().type == "cpu"

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return self.is_read and str(self.source).lower().endswith(".gguf")

    @property
    def _only_transformers(self) -> dict[str, Any]:
        """What was asked for that only transformers does."""
        asked = {
            "draft_dtype" if self.draft else "dtype": None if self.dtype == "auto" else self.dtype,
            "adapter": self.adapter,
            "draft_quantize": self.quantize,
            "draft_vocab": self.vocab,
        }
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def in_llama(self) -> bool:
        """Whether llama.cpp runs the model."""
        if self._in_memory:
            return True
        if self.engine != "auto":
            return self.engine == "llama.cpp"
        wanted = self.is_gguf and not self._only_transformers
        return wanted and llama_cpp.available()

    def load(self) -> Any:
        """The model."""
        if not self.in_llama:
            self._say_what_is_faster()
            model = transformers_loading.load_model(
                self.source,
                dtype=self.dtype,
                device=self.device,
                adapter=self.adapter,
                quantize=self.quantize,
                vocab=self.vocab,
                pack=self.pack,
                trust_remote_code=self.trust_remote_code,
                draft=self.draft,
            )
            if self._entry is not None:
                catalogue.warn_of_substitute(str(self.source))
            return model
        if self._in_memory:
            return self.source
        options = llama_cpp.LlamaOptions.make(self.llama)
        if self.on_cpu:
            options = options.without_gpu()
        if self.draft:
            options = options.for_draft()
        if self._entry is not None:
            catalogue.warn_of_substitute(str(self.source), gguf=True)
        return llama_cpp.LlamaModel(self._path(), options)

    def tokenizer(self) -> Any:
        """The model's tokenizer, read without its weights; None for one that has none."""
        if not self.in_llama:
            return transformers_loading.load_tokenizer(
                self.source, dtype=self.dtype, trust_remote_code=self.trust_remote_code
            )
        if self._in_memory:
            return self.source.tokenizer
        return llama_cpp.read_tokenizer(self._path())

    def fetch(self, *, progress: bool = True) -> None:
        """Bring a model of the catalogue into the cache; nothing for another."""
        if self._entry is not None:
            bring = catalogue.fetch_gguf if self.in_llama else catalogue.fetch
            bring(self._entry, progress=progress)

    def _path(self) -> Path:
        path = transformers_loading.local_path(self.source)
        if self._entry is not None:
            return catalogue.fetch_gguf(self._entry)
        if not path.is_file():
            raise LoadError(f"{self.source}: no such file")
        return path

    def _say_what_is_faster(self) -> None:
        if self.is_gguf and self.engine == "auto" and not self._only_transformers:
            log.warning(
                "%s goes through transformers, dequantized; %s runs it as it is, and faster",
                self.source,
                llama_cpp.INSTALL,
            )


def recipes(
    target: Any,
    draft: Any,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    draft_dtype: str | torch.dtype | None = None,
    draft_device: str | torch.device | None = None,
    draft_quantize: str | None = None,
    draft_vocab: DraftVocab | None = None,
    engine: str = "auto",
    draft_engine: str | None = None,
    adapter: str | Path | None = None,
    **shared: Any,
) -> tuple[Recipe, Recipe]:
    """How a pair's two models are loaded, by the arguments of `biglittle.load`: `draft` is None
    without a model that drafts, and `shared` are `pack`, `trust_remote_code` and `llama`.

    Raises:
        ParameterError: Options that cannot be used, or that neither model uses.
    """
    big = Recipe(
        source=target, engine=engine, dtype=dtype, device=device, adapter=adapter, **shared
    )
    little = Recipe(
        source=draft,
        engine=draft_engine or _engine_for(draft, engine),
        dtype="auto" if draft_dtype is None else draft_dtype,
        device=device if draft_device is None else draft_device,
        quantize=draft_quantize,
        vocab=draft_vocab,
        draft=True,
        **shared,
    )
    if draft is None:
        _need_draft(draft_dtype=draft_dtype, draft_device=draft_device, draft_engine=draft_engine)
    # The target's dtype is the draft's, too, but a file that is run as it is has its own.
    if inherits := draft_dtype is None and not little.in_llama:
        little = replace(little, dtype=dtype)
    _refuse_unused(big, little, inherits)
    return big, little


def _engine_for(draft: Any, engine: str) -> str:
    """The target's engine, for a draft that it can run."""
    if not isinstance(draft, str | Path):
        return "auto"
    gguf = str(draft).lower().endswith(".gguf") or catalogue.find(str(draft)) is not None
    return engine if gguf or engine != "llama.cpp" else "auto"


def _need_draft(**options: Any) -> None:
    """Raise `ParameterError` for options of a draft model where there is none."""
    for name, value in options.items():
        if value is not None:
            raise ParameterError(f"{name}={value!r} needs a draft model; give one as draft")


def _refuse_unused(big: Recipe, little: Recipe, inherits: bool) -> None:
    """Raise `ParameterError` for an option of an engine that loads no model it is for.

    `inherits` says whether the draft has the target's dtype.
    """
    read = [recipe for recipe in (big, little) if recipe.is_read]
    in_llama = [recipe for recipe in read if recipe.in_llama]
    in_torch = [recipe for recipe in read if not recipe.in_llama]
    typed = [recipe for recipe in in_torch if recipe is big or inherits]
    drafts = [recipe for recipe in in_torch if recipe is little]
    for name, value, default, users in (
        ("dtype", big.dtype, "auto", typed),
        ("draft_dtype", "auto" if inherits else little.dtype, "auto", drafts),
        ("pack", big.pack, True, in_torch),
        ("trust_remote_code", big.trust_remote_code, False, in_torch),
    ):
        if value != default and not users:
            raise ParameterError(
                f"{name}={value!r} is for a model that transformers loads, and here it loads none; "
                "leave it out"
            )
    for name in _asked(big.llama):
        if not in_llama:
            raise ParameterError(f"{name} is for the llama.cpp engine, {_not_in_llama(read)}")
        layers = llama_cpp.LlamaOptions.make(big.llama).n_gpu_layers
        if name == "n_gpu_layers" and layers and all(recipe.on_cpu for recipe in in_llama):
            raise ParameterError(
                f"n_gpu_layers={layers} and device={str(in_llama[0].device)!r} contradict each "
                "other; leave one of them out"
            )


def _asked(llama: llama_cpp.LlamaOptions | Mapping[str, Any] | None) -> list[str]:
    """The options of llama.cpp that were given."""
    if isinstance(llama, llama_cpp.LlamaOptions):
        usual = llama_cpp.LlamaOptions()
        names = [field.name for field in fields(llama)]
        return [name for name in names if getattr(llama, name) != getattr(usual, name)]
    return list(llama or ())


def _not_in_llama(read: list[Recipe]) -> str:
    if any(recipe.is_gguf for recipe in read) and not llama_cpp.available():
        return f"which is not installed: {llama_cpp.INSTALL}"
    return (
        "and neither model is loaded in it; leave it out, give a GGUF file, or choose "
        "engine='llama.cpp'"
    )
