"""From a name, a folder, a file or an object to a model and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from ... import catalogue
from ...errors import LoadError, ParameterError, nearest
from .packing import can_pack, pack_linears

__all__ = ["load_model", "load_tokenizer", "pick_device", "pick_dtype"]

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}
Source = Any  # a string, a path, or a model


def pick_device(device: str | torch.device) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one.

    Raises:
        ParameterError: A device that this machine does not have.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as cause:
        reason = str(cause).splitlines()[0]
        raise ParameterError(
            f"device {str(device)!r} is not available here ({reason}); try 'auto' or 'cpu'"
        ) from cause
    return found


def pick_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """The dtype of that name; "auto" is left for the checkpoint to say."""
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    if dtype not in DTYPES:
        raise ParameterError(
            f"unknown dtype {dtype!r}; known: auto, {', '.join(DTYPES)}{nearest(dtype, DTYPES)}"
        )
    return DTYPES[dtype]


def load_model(
    source: Source,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    adapter: str | Path | None = None,
    pack: bool = True,
    trust_remote_code: bool = False,
) -> Any:
    """Load a model, or take the one that is given.

    Args:
        source: A hub id, a local folder, a GGUF file, a name from the catalogue, or a model
            object, which is used where and as it is.
        dtype: "auto" is the checkpoint's own (bfloat16 for a float16 one on a CPU).
        device: "auto" is a GPU where there is one.
        adapter: A PEFT adapter to put on it; a folder or a hub id.
        pack: Whether bfloat16 weights on a CPU are laid out for it; see `packing`.
        trust_remote_code: As in transformers.

    Raises:
        LoadError: A model that cannot be found or read, with the reason in a line.
    """
    if not isinstance(source, str | Path):
        return source if adapter is None else _with_adapter(source, adapter)
    where = pick_device(device)
    folder, file = locate(source)
    kind = pick_dtype(dtype)
    if file is None and (Path(folder) / "adapter_config.json").is_file():
        adapter, folder = folder, _adapter_base(folder)
        folder, file = locate(folder)
    options: dict[str, Any] = {"dtype": kind, "trust_remote_code": trust_remote_code}
    if file is not None:
        options["gguf_file"] = file
    model = _guarded(
        source, lambda: _model_class(folder, options).from_pretrained(folder, **options)
    )
    if kind == "auto" and where.type == "cpu" and model.dtype == torch.float16:
        model = model.to(torch.bfloat16)
    model = model.to(where)
    if adapter is not None:
        model = _with_adapter(model, adapter)
    if pack and can_pack():
        pack_linears(model)
    return model


def load_tokenizer(source: Source, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer that lies beside a model; None for one without (an audio model, an object)."""
    if not isinstance(source, str | Path):
        return None
    folder, file = locate(source)
    if file is None and (Path(folder) / "adapter_config.json").is_file():
        folder, file = locate(_adapter_base(folder))
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if file is not None:
        options["gguf_file"] = file
    return _guarded(source, lambda: tf.AutoTokenizer.from_pretrained(folder, **options))


def locate(source: str | Path) -> tuple[str, str | None]:
    """A folder or hub id for `from_pretrained`, and the GGUF file in it if that is what is meant.

    Raises:
        LoadError: A path that does not exist, or a folder that holds no model.
    """
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise LoadError(f"{source}: not a GGUF file; give a folder, a hub id or a .gguf file")
        return str(path.parent), path.name
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise LoadError(f"{source}: the folder has no config.json; it holds no model")
        return str(path), None
    if (entry := catalogue.find(str(source))) is not None:
        return str(catalogue.fetch(entry)), None
    looks_local = str(source).startswith(("/", ".", "~")) or path.suffix == ".gguf"
    if looks_local or str(source).count("/") > 1:
        raise LoadError(f"{source}: no such file or folder")
    return str(source), None


def _model_class(folder: str, options: dict[str, Any]) -> Any:
    known = {k: v for k, v in options.items() if k != "dtype"}
    config = tf.AutoConfig.from_pretrained(folder, **known)
    if not getattr(config, "is_encoder_decoder", False):
        return tf.AutoModelForCausalLM
    if type(config) in tf.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
        return tf.AutoModelForSpeechSeq2Seq
    return tf.AutoModelForSeq2SeqLM


def _guarded(source: Source, load: Any) -> Any:
    """Run a loading step; whatever it raises becomes one line."""
    try:
        return load()
    except MemoryError:
        raise
    except Exception as cause:  # loaders raise anything, from OSError to errors of their formats
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        reason = lines[0] if lines else type(cause).__name__
        names = [entry.name for entry in catalogue.entries()]
        hint = nearest(str(source), names)
        raise LoadError(f"cannot load {str(source)!r}: {reason}{hint}") from cause


def _adapter_base(folder: str) -> str:
    try:
        config = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf8"))
        return str(config["base_model_name_or_path"])
    except (ValueError, KeyError) as cause:
        raise LoadError(f"{folder}: adapter_config.json names no base model") from cause


def _with_adapter(model: Any, adapter: str | Path) -> Any:
    try:
        from peft import PeftModel
    except ImportError as cause:
        raise LoadError("adapters need the peft package: pip install peft") from cause
    return _guarded(adapter, lambda: PeftModel.from_pretrained(model, str(adapter)).eval())
