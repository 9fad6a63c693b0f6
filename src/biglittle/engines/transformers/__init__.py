"""The transformers engine: any causal or encoder-decoder model whose layers are attention."""

from dataclasses import replace
from typing import Any

from .capability import base_model, is_seq2seq
from .causal import CausalRunner
from .probe import rows_limit
from .runner import TransformersRunner
from .seq2seq import Seq2SeqRunner

__all__ = ["CausalRunner", "Seq2SeqRunner", "TransformersRunner", "make_runner"]


def make_runner(model: Any, *, adapters: bool = True) -> TransformersRunner:
    """The runner of a model's kind.

    Args:
        model: A transformers model, or a PEFT model around one.
        adapters: Whether PEFT adapters inside it act.

    Raises:
        UnsupportedModelError: A model whose state cannot be rolled back, by name.
    """
    model = base_model(model)
    kind = Seq2SeqRunner if is_seq2seq(model) else CausalRunner
    runner = kind(model, adapters=adapters)
    runner.limits = replace(runner.limits, rows=rows_limit(runner))
    return runner
