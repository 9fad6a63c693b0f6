"""GGUF files, dequantized once into an ordinary Hugging Face folder in the user's cache."""

from __future__ import annotations

import hashlib
import io
import shutil
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from filelock import FileLock

from ...cache import cache_dir
from ...errors import LoadError

__all__ = ["check_magic", "converted", "write_folder"]

MAGIC = b"GGUF"


def converted(gguf: Path, dtype: torch.dtype) -> Path:
    """The folder that a GGUF file was converted to; converts it the first time.

    Args:
        gguf: The file. A file that changed (size or time) is converted again.
        dtype: Of the folder's weights.

    Raises:
        LoadError: A file that is not GGUF, is cut off, or holds an architecture that transformers
            cannot read.
    """
    check_magic(gguf)
    status = gguf.stat()
    key = f"{gguf.resolve()}:{status.st_size}:{status.st_mtime_ns}:{dtype}"
    name = f"{gguf.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    folder = cache_dir() / "gguf" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{name}.lock")):
        if not folder.is_dir():
            work = folder.with_name(f".{name}")
            shutil.rmtree(work, ignore_errors=True)
            write_folder(gguf, work, dtype)
            work.rename(folder)  # atomic: a folder under its final name is complete
    return folder


def check_magic(file: Path) -> None:
    """Raise `LoadError` for a file that cannot be read or is not GGUF."""
    try:
        with file.open("rb") as opened:
            magic = opened.read(len(MAGIC))
    except OSError as cause:
        raise LoadError(f"{file}: {cause.strerror or cause}") from cause
    if magic != MAGIC:
        raise LoadError(f"{file}: not a GGUF file (it does not begin with {MAGIC.decode()})")


def write_folder(gguf: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write a GGUF file as a Hugging Face folder with dense weights: config, safetensors,
    tokenizer, chat template."""
    with redirect_stderr(io.StringIO()):  # transformers' own progress bars
        model: Any = tf.AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=dtype,
            quantization_config=tf.GgufConfig(dequantize=True),
        )
        tokenizer = tf.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model.hf_quantizer = None  # the weights are dense now, and may be saved
        model.save_pretrained(folder)
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(folder)
