"""From a name, a folder, a file or an object to a model and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError

from ... import catalogue
from ...errors import LoadError, ParameterError, nearest
from .cut_head import DraftVocab, cut_head, saved_vocab, vocabulary
from .gguf import converted
from .packing import can_pack, pack_linears
from .quantizing import GROUP, QUANTIZATIONS, can_quantize, quantize_linears

__all__ = ["check_quantize", "guarded", "is_adapter", "load_model", "load_tokenizer"]
__all__ += ["locate", "pick_device", "pick_dtype"]

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
        reason = str(cause).splitlines()[0].split(". ")[0]
        raise ParameterError(
            f"device {str(device)!r} is not available here ({reason}); try 'auto' or 'cpu'"
        ) from cause
    return found


def pick_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """The dtype of that name; "auto" is left for the checkpoint to say."""
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    if dtype not in DTYPES:
        hint = nearest(str(dtype), DTYPES)
        raise ParameterError(f"unknown dtype {dtype!r}; known: auto, {', '.join(DTYPES)}{hint}")
    return DTYPES[dtype]


def check_quantize(quantize: str | None, source: Source, device: str | torch.device) -> None:
    """Raise `ParameterError` for a draft that cannot be quantized so."""
    if quantize is None:
        return
    if quantize not in QUANTIZATIONS:
        hint = nearest(str(quantize), QUANTIZATIONS)
        raise ParameterError(
            f"unknown draft_quantize {quantize!r}; known: {', '.join(QUANTIZATIONS)}{hint}"
        )
    if source is None:
        raise ParameterError(f"draft_quantize={quantize!r} needs a draft model; give one as draft")
    if not isinstance(source, str | Path):
        raise ParameterError(
            f"draft_quantize={quantize!r} is for a draft that is loaded here, by a name or a path; "
            "a model in memory is used as it is"
        )
    if (where := pick_device(device)).type != "cpu":
        raise ParameterError(
            f"draft_quantize={quantize!r} is for a draft on a CPU, and this one is on {where}; "
            "there, load a checkpoint that is quantized already"
        )
    if not can_quantize():
        raise ParameterError(
            f"draft_quantize={quantize!r}: this build of torch has no kernel for it"
        )


def load_model(
    source: Source,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    adapter: str | Path | None = None,
    quantize: str | None = None,
    vocab: DraftVocab | None = None,
    pack: bool = True,
    trust_remote_code: bool = False,
    draft: bool = False,
) -> Any:
    """Load a model, or take the one that is given.

    Args:
        source: A hub id, a local folder, a GGUF file, a name from the catalogue, or a model
            object, which is used where and as it is.
        dtype: "auto" is the checkpoint's own (bfloat16 for a float16 one on a CPU).
        device: "auto" is a GPU where there is one.
        adapter: A PEFT adapter to put on it; a folder or a hub id.
        quantize: "int4" for four-bit linear layers, on a CPU; see `quantizing`.
        vocab: Tokens that the head is cut to; see `cut_head`.
        pack: Whether bfloat16 weights on a CPU are laid out for it; see `packing`.
        trust_remote_code: As in transformers.
        draft: Whether the model will draft. Then an adapter's folder is merged into its base, for
            one product a layer rather than three, which rounds otherwise; and its head is cut to
            the tokens that lie beside it, see `saved_vocab`.

    Raises:
        LoadError: A model that cannot be found or read, with the reason in a line.
    """
    if not isinstance(source, str | Path):
        return source if adapter is None else _with_adapter(source, adapter)
    where = pick_device(device)
    kind = pick_dtype(dtype)
    folder = locate(source, kind)
    if (base := _adapter_base(folder)) is not None:
        adapter, folder = folder, locate(base, kind)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    model, report = guarded(
        source,
        lambda: _model_class(folder, options).from_pretrained(
            folder, dtype=kind, output_loading_info=True, ignore_mismatched_sizes=True, **options
        ),
    )
    _check_weights(source, report)
    if kind == "auto" and where.type == "cpu" and model.dtype == torch.float16:
        model = model.to(torch.bfloat16)
    if (entry := catalogue.find(str(source))) is not None:
        # Rather than a folder of the cache; the hub's name is for the hub's own weights.
        model.config._name_or_path = entry.name if catalogue.is_unpacked(entry) else entry.hub_id
    model = model.to(where)
    if adapter is not None:
        model = _with_adapter(model, adapter)
    if draft:
        model = _merged(model, source)
        vocab = saved_vocab(locate(source)) if vocab is None else vocab
    if vocab is not None:
        tokenizer = load_tokenizer(source, dtype=dtype, trust_remote_code=trust_remote_code)
        cut_head(model, vocabulary(vocab, tokenizer, model))
    if quantize is not None and not quantize_linears(model):
        raise LoadError(
            f"cannot quantize {str(source)!r}: it has no linear layer whose inputs come in "
            f"groups of {GROUP}; load it without"
        )
    if pack and can_pack():
        pack_linears(model)
    return model


def load_tokenizer(
    source: Source, *, dtype: str | torch.dtype = "auto", trust_remote_code: bool = False
) -> Any:
    """The tokenizer that lies beside a model; None for one without (an audio model, an object).

    `dtype` is what the model is loaded in: a GGUF file is converted once, for both.
    """
    if not isinstance(source, str | Path):
        return None
    folder = locate(source, pick_dtype(dtype))
    if (base := _adapter_base(folder)) is not None:
        folder = locate(base)
    if Path(folder).is_dir() and not any(any(Path(folder).glob(name)) for name in TOKENIZERS):
        return None
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    return guarded(source, lambda: tf.AutoTokenizer.from_pretrained(folder, **options))


TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "spiece*")  # files that one of them leaves behind


def local_path(source: str | Path) -> Path:
    """What a source is if it is a file or a folder here, the user's own folder filled in.

    Raises:
        LoadError: No file can have that name, or nobody may look at it.
    """
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, RuntimeError) as cause:  # RuntimeError: the folder of an unknown user
        reason = getattr(cause, "strerror", None) or cause
        raise LoadError(
            f"{source}: {reason}; give a hub id, a folder or a GGUF file that can be read"
        ) from None
    return path


def locate(source: str | Path, dtype: str | torch.dtype = "auto") -> str:
    """A folder or hub id for `from_pretrained`.

    A GGUF file is dequantized into a folder in the user's cache, in `dtype` (bfloat16 for "auto").

    Raises:
        LoadError: A path that does not exist, or a file or folder that holds no model.
    """
    if not str(source):
        raise LoadError("the model's name is empty; give a hub id, a folder or a GGUF file")
    path = local_path(source)
    if path.is_file():
        if path.suffix != ".gguf":
            raise LoadError(f"{source}: not a GGUF file; give a folder, a hub id or a .gguf file")
        kind = dtype if isinstance(dtype, torch.dtype) else torch.bfloat16
        return str(guarded(source, lambda: converted(path, kind)))
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise LoadError(f"{source}: the folder has no config.json; it holds no model")
        return str(path)
    if (entry := catalogue.find(str(source))) is not None:
        return str(catalogue.fetch(entry))
    looks_local = str(source).startswith(("/", ".", "~")) or path.suffix == ".gguf"
    if looks_local or str(source).count("/") > 1:
        raise LoadError(f"{source}: no such file or folder")
    return _from_hub(str(source))


def _from_hub(name: str) -> str:
    """A hub id that the hub has, or the copy that its cache holds: found out in a few seconds,
    where loading would try again and again."""
    if catalogue.hub_answers(name):
        return name
    try:
        copy = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        copy = None
    if isinstance(copy, str):
        return str(Path(copy).parent)
    hint = nearest(name, [entry.name for entry in catalogue.entries()])
    raise LoadError(
        f"cannot find {name!r}: it is no folder or file here and not in the catalogue (see "
        f"`biglittle models`), and the hub does not have it or cannot be reached{hint}"
    )


def _model_class(folder: str, options: dict[str, Any]) -> Any:
    config = tf.AutoConfig.from_pretrained(folder, **options)
    if not getattr(config, "is_encoder_decoder", False):
        return tf.AutoModelForCausalLM
    if type(config) in tf.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
        return tf.AutoModelForSpeechSeq2Seq
    return tf.AutoModelForSeq2SeqLM


def _check_weights(source: Source, report: dict[str, Any]) -> None:
    """Raise `LoadError` for weights that are missing or do not fit: transformers makes them up."""
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise LoadError(
            f"cannot load {str(source)!r}: {name} has shape {list(found)}, but by config.json it "
            f"is {list(wanted)}; fetch the model again"
        )
    if missing := sorted(report["missing_keys"]):
        raise LoadError(
            f"cannot load {str(source)!r}: {len(missing)} of its weights are missing, e.g. "
            f"{missing[0]}; fetch the model again, or load one with a language-model head"
        )


def guarded(source: Source, load: Any) -> Any:
    """Run a loading step; whatever it raises becomes one line."""
    try:
        return load()
    except (MemoryError, LoadError):
        raise
    except Exception as cause:  # loaders raise anything, from OSError to errors of their formats
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        reason = lines[0] if lines else type(cause).__name__
        if reason.endswith(":"):  # what it announces is on the next line
            reason = " ".join(lines[:2])
        if isinstance(cause, SafetensorError):
            reason = f"its weights are damaged ({reason}); fetch them again"
        raise LoadError(f"cannot load {str(source)!r}: {reason}") from cause


def _adapter_base(folder: str) -> str | None:
    """The base model that an adapter's folder names; None for a folder that is no adapter."""
    file = Path(folder) / "adapter_config.json"
    if not file.is_file():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf8"))["base_model_name_or_path"])
    except (ValueError, KeyError) as cause:
        raise LoadError(f"{folder}: adapter_config.json names no base model") from cause


def is_adapter(folder: str | Path) -> bool:
    """Whether a folder holds an adapter rather than a model."""
    return (Path(folder) / "adapter_config.json").is_file()


def _merged(model: Any, source: Source) -> Any:
    """A model with its adapter in its weights, named after the adapter; or itself without one."""
    if not hasattr(model, "merge_and_unload"):
        return model
    model = model.merge_and_unload()
    model.config._name_or_path = str(source)  # the base goes by another
    return model


def _with_adapter(model: Any, adapter: str | Path) -> Any:
    try:
        from peft import PeftModel
    except ImportError as cause:
        raise LoadError("adapters need the package peft: pip install 'biglittle[align]'") from cause
    return guarded(adapter, lambda: PeftModel.from_pretrained(model, str(adapter)).eval())
