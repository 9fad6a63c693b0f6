"""A transformers model, as the core asks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from ..base import EncoderInput, Model
from .capability import (
    base_model,
    embedding_weight,
    encoder_input,
    is_seq2seq,
    model_name,
    vocab_size,
)
from .causal import CausalRunner
from .fingerprint import fingerprint
from .probe import rows_limit
from .runner import TransformersRunner
from .seq2seq import Seq2SeqRunner

__all__ = ["TransformersModel", "make_runner"]


class TransformersModel:
    """See `biglittle.engines.Model`.

    Args:
        model: A transformers model, or a PEFT model around one.
    """

    def __init__(self, model: Any) -> None:
        self.model: PreTrainedModel = base_model(model)
        self.name = model_name(self.model)

    @property
    def summary(self) -> str:
        """See `Model.summary`."""
        return f"{str(self.model.dtype).removeprefix('torch.')} on {self.device}"

    @property
    def resolution(self) -> float:
        """See `Model.resolution`: a number's last place in the model's dtype."""
        return torch.finfo(self.model.dtype).eps

    @property
    def fingerprint(self) -> str:
        """See `Model.fingerprint`."""
        return fingerprint(self.model)

    @property
    def vocab(self) -> int:
        """See `Model.vocab`."""
        return vocab_size(self.model)

    @property
    def device(self) -> torch.device:
        """See `Model.device`; the owner may move the model."""
        return embedding_weight(self.model).device

    @property
    def tokenizer(self) -> None:
        """See `Model.tokenizer`: a model of transformers does not hold it."""
        return None

    @property
    def generation_config(self) -> GenerationConfig:
        """See `Model.generation_config`."""
        config = self.model.generation_config
        assert config is not None
        return config

    def encoder_input(self) -> EncoderInput | None:
        """See `Model.encoder_input`."""
        return encoder_input(self.model)

    def decoder_start(self) -> tuple[int, ...]:
        """See `Model.decoder_start`."""
        if not is_seq2seq(self.model):
            return ()
        for config in (self.model.generation_config, self.model.config):
            for name in ("decoder_start_token_id", "bos_token_id"):
                token = getattr(config, name, None)
                if isinstance(token, int):
                    return (token,)
        return ()

    def runner(self, *, adapters: bool = True) -> TransformersRunner:
        """See `Model.runner`."""
        return make_runner(self.model, adapters=adapters)

    def shares_weights(self, other: Model) -> bool:
        """See `Model.shares_weights`: then an adapter in one is an adapter in the other."""
        if not isinstance(other, TransformersModel):
            return False
        ids = {id(module) for module in self.model.modules()}
        return any(id(module) in ids for module in other.model.modules())


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
