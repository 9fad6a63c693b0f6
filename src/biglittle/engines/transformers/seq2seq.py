"""Runner for encoder-decoder models: T5-like, BART-like, Whisper-like."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoEModelOutput

from ...errors import ParameterError
from ..base import Prompt
from .capability import (
    decoder_config,
    embedding_weight,
    layer_kinds,
    parameters_of,
    relative_bias_modules,
)
from .runner import TransformersRunner
from .slot_cache import PairedCache, SlotCache

__all__ = ["Seq2SeqRunner"]

MARK = "_biglittle_ragged"  # on modules that were helped already


class Seq2SeqRunner(TransformersRunner):
    """Rows of an encoder-decoder model. The encoder runs once a row, when it is admitted. The
    cross-attention's keys and values are computed once, too, by the decoder's first pass over the
    row; a row that was admitted without one is settled before any other row is touched."""

    cache: PairedCache
    _prefix = "decoder_"

    def __init__(self, model: PreTrainedModel, *, adapters: bool = True) -> None:
        super().__init__(model, adapters=adapters)
        self._encoded: list[tuple[int, Tensor | None]] = []  # length and mask [span] of each row
        self._pending: tuple[Tensor, Tensor | None] | None = None  # of the last row
        self._hidden_size: int = decoder_config(model).hidden_size
        make_ragged(model, self.limits.context)

    def _new_cache(self) -> PairedCache:
        layers = len(layer_kinds(self.model))
        return PairedCache(layers, wants_positions="decoder_position_ids" not in self._parameters)

    @property
    def _slots(self) -> SlotCache:
        return self.cache.own

    def admit(self, prompt: Prompt, saved: Any = None, *, most: int | None = None) -> Tensor:
        """See `Runner.admit`; an encoder's input is not a prefix, so nothing saved is reused."""
        self._settle()
        return super().admit(prompt, most=most)

    def read(self, row: int, tokens: Any) -> Tensor:
        """See `Runner.read`."""
        if row != len(self.lengths) - 1:
            self._settle()
        return super().read(row, tokens)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, counts: Any, *, last: bool = False) -> Tensor:
        """See `Runner.forward`."""
        if len(self.lengths) > 1:
            self._settle()
        return super().forward(tokens, counts, last=last)

    @torch.inference_mode()
    def _settle(self) -> None:
        """Do the first pass that the last row has put off, over any token."""
        if self._pending is not None:
            row = len(self.lengths) - 1
            self._append(torch.zeros(1, 1, dtype=torch.long, device=self.device), row, keep=1)
            self.lengths[row] -= 1

    def save(self, row: int, tokens: Any) -> None:
        """Encoder-decoder rows start from their own input: there is nothing to go on from."""
        return

    @torch.inference_mode()
    def release(self, row: int) -> None:
        """See `Runner.release`."""
        self._settle()
        super().release(row)
        last = self._encoded.pop()
        if row < len(self._encoded):
            self.cache.cross.copy_row(len(self._encoded), row, last[0])
            self._encoded[row] = last

    @torch.inference_mode()
    def fork(self, row: int, length: int | None = None) -> int:
        """See `Runner.fork`."""
        self._settle()
        span, mask = self._encoded[row]
        self.cache.cross.copy_row(row, len(self._encoded), span)
        self._encoded.append((span, mask))
        return super().fork(row, length)

    @torch.inference_mode()
    def swap(self, a: int, b: int) -> None:
        """See `Runner.swap`."""
        self._settle()
        super().swap(a, b)
        encoded = self._encoded
        self.cache.cross.swap_rows(a, b, max(encoded[a][0], encoded[b][0]))
        encoded[a], encoded[b] = encoded[b], encoded[a]

    def _admit_encoder(self, prompt: Prompt, row: int) -> None:
        if not prompt.encoder:
            raise ParameterError(f"{self.name} has an encoder; the prompt has no input for it")
        inputs = {name: value.to(self.device) for name, value in prompt.encoder.items()}
        mask = inputs.get("attention_mask")
        hidden = inputs.pop("encoder_outputs", None)
        if hidden is None:
            dtype = embedding_weight(self.model).dtype
            inputs = {n: v.to(dtype) if v.is_floating_point() else v for n, v in inputs.items()}
            hidden = self.model.get_encoder()(**inputs, return_dict=True).last_hidden_state
        if mask is not None and (mask.shape[1] != hidden.shape[1] or bool(mask.all())):
            mask = None  # no padding, or (audio) another time scale, which decoders do not mask
        self._pending = (hidden, mask)
        self.cache.cross.write_row(row)
        self._encoded.append((hidden.shape[1], None if mask is None else mask[0].bool()))

    def _call(self, first: int, last: int, arguments: dict[str, Any]) -> Any:
        computed = self._pending is None
        hidden, mask = self._encoder_view(first, last) if computed else self._pending  # type: ignore[misc]
        if mask is not None:
            arguments["attention_mask"] = mask
        self.cache.computed(computed)
        self._pending = None
        return self.model(
            # the output that has every field which models look for
            encoder_outputs=MoEModelOutput(last_hidden_state=hidden),
            **arguments,
        )

    def _encoder_view(self, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        """Stand-in hidden states [rows, span, dim] (the cross-attention states are cached; only
        their shape is read) and the mask [rows, span] where rows need one."""
        rows = self._encoded[first:last]
        span = max(length for length, _ in rows)
        self.cache.cross.show(first, last, span)
        weight = embedding_weight(self.model)
        hidden = weight.new_zeros(1).expand(len(rows), span, self._hidden_size)
        if all(length == span and mask is None for length, mask in rows):
            return hidden, None
        seen = torch.zeros(len(rows), span, dtype=torch.long, device=self.device)
        for index, (length, mask) in enumerate(rows):
            seen[index, :length] = 1 if mask is None else mask.long()
        return hidden, seen


def make_ragged(model: PreTrainedModel, context: int | None) -> None:
    """Let the decoder's positions differ between rows.

    Decoders without a `position_ids` argument compute positions from the cache's length. The slot
    cache answers with [rows, 1] lengths when rows are ragged; three kinds of modules need help with
    that shape. Whoever uses the model otherwise sees no change: the help acts on that shape only.
    """
    for module in relative_bias_modules(model):
        _bind(module, "compute_bias", _compute_bias)
    embedding = getattr(model.get_decoder(), "embed_positions", None)
    if hasattr(embedding, "create_position_ids_from_input_ids"):
        _bind(embedding, "forward", _sinusoids)
    elif isinstance(embedding, nn.Module) and not hasattr(embedding, MARK):
        setattr(embedding, MARK, True)
        embedding.register_forward_pre_hook(partial(_keep_inside, context), with_kwargs=True)
        embedding.register_forward_hook(_drop_leading)


def _bind(module: Any, name: str, function: Any) -> None:
    """Put a method in place of the class's, on one module."""
    function.__name__ = name  # by which pickle finds a method, the class's own, when it loads
    setattr(module, name, types.MethodType(function, module))


def _is_ragged(lengths: Any) -> bool:
    return isinstance(lengths, Tensor) and lengths.dim() == 2


def _compute_bias(
    self: Any, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0
) -> Any:
    """T5's relative bias; for rows at different lengths [rows, heads, queries, keys]."""
    if not _is_ragged(past_seen_tokens):
        return type(self).compute_bias(self, query_length, key_length, device, past_seen_tokens)
    queries = past_seen_tokens + torch.arange(query_length, device=past_seen_tokens.device)
    keys = torch.arange(key_length, device=past_seen_tokens.device)
    distances = keys[None, None, :] - queries[:, :, None]
    bucket = self._relative_position_bucket(distances, **_bucket_settings(self))
    return self.relative_attention_bias(bucket).permute(0, 3, 1, 2)


def _bucket_settings(module: Any) -> dict[str, Any]:
    """What T5's bucket function is told; UMT5's knows it by itself."""
    if "bidirectional" not in parameters_of(module._relative_position_bucket):
        return {}
    return {
        "bidirectional": not module.is_decoder,
        "num_buckets": module.relative_attention_num_buckets,
        "max_distance": module.relative_attention_max_distance,
    }


def _sinusoids(
    self: Any, input_ids: Any = None, inputs_embeds: Any = None, cache_length: Any = 0
) -> Any:
    """M2M-100's position embedding, which compares the lengths with its table's."""
    if not _is_ragged(cache_length):
        return type(self).forward(self, input_ids, inputs_embeds, cache_length)
    slots = self.create_position_ids_from_input_ids(input_ids, self.padding_idx, cache_length)
    return self.weights[slots.clamp(max=len(self.weights) - 1)]


def _keep_inside(context: int | None, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Padding may lie past the context; what it computes is never read, but must be computable."""
    positions = kwargs.get("position_ids")
    if context is None or not _is_ragged(positions):
        return None
    return args, {**kwargs, "position_ids": positions.clamp(max=context - 1)}


def _drop_leading(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """BART's position embedding adds a leading dimension to positions that have rows already."""
    return output.squeeze(0) if output.dim() == 4 else output
