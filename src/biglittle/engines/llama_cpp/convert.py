"""From a Hugging Face folder to a GGUF file that llama.cpp runs, checked against the original."""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers as tf
from gguf import GGMLQuantizationType, LlamaFileType
from huggingface_hub import snapshot_download
from torch import Tensor

from ... import catalogue
from ...errors import BiglittleError, LoadError, ParameterError, UnsupportedModelError, nearest
from ...params import GenerationParams
from ..transformers import loading
from .binding import complaints, library
from .conversion.architectures import (
    EMBEDDING,
    HEAD,
    Family,
    Planned,
    check_config,
    plan,
    write_config,
)
from .conversion.checkpoint import Checkpoint
from .conversion.comparison import (
    BOUNDS,
    Closeness,
    closeness,
    converted_logits,
    original_logits,
    sample,
)
from .conversion.vocabulary import Vocabulary, fit, read_vocabulary

__all__ = ["QUANTIZATIONS", "Closeness", "ConversionReport", "Progress", "convert"]


class Floats(NamedTuple):
    """A type of floats, as all who are involved call it."""

    file: LlamaFileType
    ggml: GGMLQuantizationType
    torch: torch.dtype


FLOATS = {
    "f32": Floats(LlamaFileType.ALL_F32, GGMLQuantizationType.F32, torch.float32),
    "bf16": Floats(LlamaFileType.MOSTLY_BF16, GGMLQuantizationType.BF16, torch.bfloat16),
    "f16": Floats(LlamaFileType.MOSTLY_F16, GGMLQuantizationType.F16, torch.float16),
}
QUANTIZED = {
    kind.name.removeprefix("MOSTLY_").lower(): kind
    for kind in (
        LlamaFileType.MOSTLY_Q8_0,
        LlamaFileType.MOSTLY_Q6_K,
        LlamaFileType.MOSTLY_Q5_K_M,
        LlamaFileType.MOSTLY_Q5_K_S,
        LlamaFileType.MOSTLY_Q5_1,
        LlamaFileType.MOSTLY_Q5_0,
        LlamaFileType.MOSTLY_Q4_K_M,
        LlamaFileType.MOSTLY_Q4_K_S,
        LlamaFileType.MOSTLY_Q4_1,
        LlamaFileType.MOSTLY_Q4_0,
        LlamaFileType.MOSTLY_Q3_K_M,
    )
}
QUANTIZATIONS = (*FLOATS, *QUANTIZED)
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
BLOCK = 32  # values that are quantized together, at least
QUANTIZED_BITS = 8.5  # of a value, at most
BUFFER = 1 << 28  # bytes that llama.cpp may hold while it quantizes

Progress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and out of how much; both in bytes, or 0 if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """What was converted, and how close it came.

    Attributes:
        path: The GGUF file.
        quantize: Its type.
        architecture: llama.cpp's name.
        tokenizer: llama.cpp's names for the kind of tokenizer and its way of splitting.
        bytes: Size of the file.
        difference: Where its tokenizer places spaces otherwise than the original, if anywhere.
        closeness: To the original; None if not checked.
    """

    path: Path
    quantize: str
    architecture: str
    tokenizer: str
    bytes: int
    difference: str | None
    closeness: Closeness | None


def convert(
    source: str | Path,
    out: str | Path,
    quantize: str = "bf16",
    *,
    force: bool = False,
    check: bool = True,
    progress: Progress | None = None,
) -> ConversionReport:
    """Write a Hugging Face model as a GGUF file.

    The file gets its name when it is complete and, unless `check` is off, when llama.cpp gives the
    same logits with it as transformers does with the original. For a quantized type this is said
    of the file in floats from which it is made. The original is loaded for the check, whole; the
    conversion itself holds a tensor at a time.

    Args:
        source: A hub id, a folder, or a name from the catalogue; an adapter is merged into its
            model. Text models of the families Llama, Mistral, Qwen 2 and 2.5, Qwen 3 and Gemma 3.
        out: The file, `*.gguf`.
        quantize: One of `QUANTIZATIONS`.
        force: Whether to replace `out` if it exists.
        check: Whether to compare logits.
        progress: Told what goes on.

    Raises:
        ParameterError: An unknown type, or a name for `out` that cannot be used.
        LoadError: A model that cannot be found or read, no llama-cpp-python, not enough disk.
        UnsupportedModelError: An architecture, setting or tokenizer that llama.cpp cannot
            reproduce, or one that it does not reproduce, by the check.
    """
    say = progress or _silent
    kind, target = str(quantize).lower(), Path(out).expanduser()
    _check_request(kind, target, force)
    library()
    folder = _folder(source)
    with _scratch(target) as work:
        if loading.is_adapter(folder):
            say("merging the adapter into its model", 0, 0)
            folder = _merge(folder, work / "merged")
        say("reading", 0, 0)
        original = _Original(str(source), folder)
        planned = original.plan(kind)
        base = kind if kind in FLOATS else original.dtype
        _check_space(target, planned, base, kind)
        say("fitting the tokenizer", 0, 0)
        vocabulary, difference = original.vocabulary(work / "vocabulary.gguf")
        floats = made = work / "floats.gguf"
        original.write(floats, vocabulary, planned, base, say)
        if kind != base:
            made = work / "quantized.gguf"
            _quantize(floats, made, kind, say)
        found = None
        if check:
            say("checking", 0, 0)
            found = _check(original, base, floats, made)
        made.replace(target)
    return ConversionReport(
        path=target,
        quantize=kind,
        architecture=original.arch,
        tokenizer=f"{vocabulary.model}/{vocabulary.pre}",
        bytes=target.stat().st_size,
        difference=difference,
        closeness=found,
    )


def _silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def _check_request(kind: str, target: Path, force: bool) -> None:
    if kind not in QUANTIZATIONS:
        usual = f"{kind}_m"  # what most people mean by q4_k
        hint = nearest(usual if usual in QUANTIZATIONS else kind, QUANTIZATIONS)
        raise ParameterError(
            f"unknown quantization {kind!r}; known: {', '.join(QUANTIZATIONS)}{hint}"
        )
    if target.suffix != ".gguf":
        raise ParameterError(f"{target}: the output's name must end in .gguf")
    try:
        exists = target.exists()
    except OSError as cause:
        raise ParameterError(f"{target}: {cause.strerror}; give another name") from None
    if not target.parent.is_dir():
        raise LoadError(f"{target.parent}: no such folder")
    if target.is_dir():
        raise ParameterError(f"{target} is a folder; give a file's name")
    if exists and not force:
        raise ParameterError(f"{target} exists; give another name, or force=True to replace it")


def _check_space(target: Path, planned: Sequence[Planned], base: str, kind: str) -> None:
    values = sum(math.prod(tensor.shape) for tensor in planned)
    need = values * FLOATS[base].torch.itemsize
    if kind != base:
        need += int(values * QUANTIZED_BITS / 8)
    free = shutil.disk_usage(target.parent).free
    if free < need:
        raise LoadError(
            f"{target}: converting needs {need / 1e9:.1f} GB of free disk space and "
            f"{target.parent} has {free / 1e9:.1f}; make room, or write to another disk"
        )


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A folder beside the output, so that the file can be renamed; it goes whatever happens."""
    try:
        with TemporaryDirectory(prefix=".biglittle-convert-", dir=target.parent) as scratch:
            yield Path(scratch)
    except BiglittleError:
        raise
    except OSError as cause:  # all that is read was found readable before
        reason = cause.strerror or cause
        raise LoadError(f"{target.parent}: cannot write there ({reason})") from cause


class _Original:
    """What lies in a Hugging Face folder, found fit to be converted."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.config: Any = loading.guarded(name, lambda: tf.AutoConfig.from_pretrained(folder))
        self.family: Family = check_config(self.name, self.config)
        self.arch: str = gguf.MODEL_ARCH_NAMES[self.family.arch]
        self.checkpoint = Checkpoint(name, folder)
        self.tokenizer: Any = loading.load_tokenizer(folder)
        if self.tokenizer is None:
            raise LoadError(f"{self.name}: the folder has no tokenizer, which a GGUF file needs")
        self.generation = self._generation()
        self.sampling = self._sampling()

    def _generation(self) -> tf.GenerationConfig:
        if (self.folder / "generation_config.json").is_file():
            load = tf.GenerationConfig.from_pretrained
            found: tf.GenerationConfig = loading.guarded(self.name, lambda: load(self.folder))
            return found
        return tf.GenerationConfig.from_model_config(self.config)

    def _sampling(self) -> dict[str, Any]:
        """How the model's authors would have it sample, by llama.cpp's names; empty if not."""
        if not self.generation.do_sample:
            return {}
        values = {ours: getattr(self.generation, name) for ours, name in SAMPLING.items()}
        values["temp"] = 1.0 if values["temp"] is None else values["temp"]
        try:
            GenerationParams(**{SAMPLING[ours]: value for ours, value in values.items()})
        except ParameterError as cause:
            raise LoadError(f"{self.name}: in its generation_config.json, {cause}") from cause
        return {name: value for name, value in values.items() if value is not None}

    @property
    def dtype(self) -> str:
        """The type of its embedding, and so by all custom of the rest."""
        return self.checkpoint.dtype(EMBEDDING)

    def plan(self, kind: str) -> list[Planned]:
        """All tensors, found in the folder in the right shapes."""
        planned = plan(self.config, self.family, own_head=self._own_head())
        self.checkpoint.check(planned)
        for tensor in planned:
            if kind in QUANTIZED and len(tensor.shape) > 1 and tensor.shape[-1] % BLOCK:
                raise UnsupportedModelError(
                    f"{self.name}: {tensor.source} has rows of {tensor.shape[-1]} values, and "
                    f"{kind} takes {BLOCK} at a time; convert to f32, bf16 or f16"
                )
        return planned

    def _own_head(self) -> bool:
        """As transformers: a head that is there and differs is not tied, whatever is said."""
        if not self.config.tie_word_embeddings:
            return True
        if not {HEAD, EMBEDDING} <= self.checkpoint.names.keys():
            return False
        return not torch.equal(self.checkpoint.get(HEAD), self.checkpoint.get(EMBEDDING))

    def vocabulary(self, scratch: Path) -> tuple[Vocabulary, str | None]:
        """Its tokenizer, as llama.cpp tokenizes alike; a file is written to try it out."""
        ends = self.generation.eos_token_id
        ends = [ends] if isinstance(ends, int) else list(ends or ())
        found = read_vocabulary(self.name, self.tokenizer, self.config.vocab_size, ends)

        def write(vocabulary: Vocabulary) -> Path:
            with closing(self._writer(scratch, vocabulary)) as writer:
                _write_head(writer)
            return scratch

        return fit(self.name, found, self.tokenizer, write)

    def _writer(self, path: Path, vocabulary: Vocabulary) -> gguf.GGUFWriter:
        writer = gguf.GGUFWriter(path, self.arch)
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_name(Path(self.name).name)
        write_config(writer, self.config, self.family)
        vocabulary.write(writer)
        for name, value in self.sampling.items():
            getattr(writer, f"add_sampling_{name}")(value)
        return writer

    def write(
        self,
        path: Path,
        vocabulary: Vocabulary,
        planned: Sequence[Planned],
        base: str,
        say: Progress,
    ) -> None:
        """Write the file in a type of floats, one tensor after another."""
        kinds = [FLOATS["f32" if len(tensor.shape) == 1 else base] for tensor in planned]
        sizes = [
            math.prod(tensor.shape) * kind.torch.itemsize
            for tensor, kind in zip(planned, kinds, strict=True)
        ]
        with closing(self._writer(path, vocabulary)) as writer:
            writer.add_file_type(FLOATS[base].file)
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            for tensor, kind, size in zip(planned, kinds, sizes, strict=True):
                writer.add_tensor_info(
                    tensor.name, tensor.shape, np.dtype(np.float32), size, raw_dtype=kind.ggml
                )
            _write_head(writer)
            for at, (tensor, kind) in enumerate(zip(planned, kinds, strict=True)):
                say("writing", sum(sizes[:at]), sum(sizes))
                made = tensor.make(self.checkpoint.get(tensor.source))
                writer.write_tensor_data(_array(made, kind.torch))


def _folder(source: str | Path) -> Path:
    """The folder of a model; one of the hub's is downloaded."""
    path = loading.local_path(source)
    if path.is_file():
        raise LoadError(f"{source}: a file; convert reads a Hugging Face folder, or a hub id")
    here = path.exists()
    found = loading.locate(source)
    if not here:
        catalogue.warn_of_substitute(str(source))
    if not Path(found).is_dir():
        patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
        found = loading.guarded(source, lambda: snapshot_download(found, allow_patterns=patterns))
    return Path(found)


def _merge(adapter: Path, folder: Path) -> Path:
    """The model that an adapter makes of its base, as a folder."""
    loading.load_model(adapter, device="cpu", pack=False).merge_and_unload().save_pretrained(folder)
    if (tokenizer := loading.load_tokenizer(adapter)) is not None:
        tokenizer.save_pretrained(folder)
    return folder


def _array(tensor: Tensor, dtype: torch.dtype) -> npt.NDArray[Any]:
    tensor = tensor.to(dtype).contiguous()
    if dtype == torch.bfloat16:  # numpy has no such type
        tensor = tensor.view(torch.int16)
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def _write_head(writer: gguf.GGUFWriter) -> None:
    """Write everything before the tensors' data."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _quantize(source: Path, target: Path, kind: str, say: Progress) -> None:
    """Let llama.cpp quantize a file.

    In a thread, so that progress is shown and Ctrl-C heard meanwhile.
    """
    binding = library()
    settings = binding.llama_model_quantize_default_params()
    settings.ftype = QUANTIZED[kind]
    settings.nthread = torch.get_num_threads()
    settings.max_buf_size = BUFFER
    names = os.fsencode(source), os.fsencode(target)
    codes: list[int] = []
    complaints.clear()

    def run() -> None:
        codes.append(binding.llama_model_quantize(*names, settings))

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(0.2)
        say("quantizing", target.stat().st_size if target.exists() else 0, 0)
    if codes != [0]:
        reason = complaints[-1] if complaints else "it does not say why"
        raise BiglittleError(f"llama.cpp could not quantize to {kind}: {reason}")


def _check(original: _Original, base: str, floats: Path, made: Path) -> Closeness:
    """Compare logits with the original's; those of the file in floats must be within a bound.

    Raises:
        UnsupportedModelError: What llama.cpp computes with the file in floats is something else.
    """
    config, window = original.config, 0
    if original.family.windowed:
        window = config.sliding_window
    tokens = sample(original.tokenizer, window, config.max_position_embeddings)
    wanted = original_logits(original.folder, tokens, exact=base == "f32")
    found = closeness(wanted, converted_logits(floats, tokens))
    if not found.error <= BOUNDS[base]:  # or not a number
        raise UnsupportedModelError(
            f"{original.name}: llama.cpp computes something else with it (logits off by "
            f"{found.error:.2g} of their spread in {base}); use it through transformers, and "
            "please report this"
        )
    return found if made == floats else closeness(wanted, converted_logits(made, tokens))
