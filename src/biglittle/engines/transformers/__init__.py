"""The transformers engine: any causal or encoder-decoder model whose layers are attention."""

from .causal import CausalRunner
from .model import TransformersModel, make_runner
from .runner import TransformersRunner
from .seq2seq import Seq2SeqRunner

__all__ = [
    "CausalRunner",
    "Seq2SeqRunner",
    "TransformersModel",
    "TransformersRunner",
    "make_runner",
]
