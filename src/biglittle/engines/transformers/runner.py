"""What causal and encoder-decoder runners share: rows in a slot cache."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..base import Limits, Prompt, Saved
from ..timing import Stopwatch
from .capability import (
    check_supported,
    context_limit,
    embedding_weight,
    layer_kinds,
    model_name,
    parameters_of,
    shallow_model,
    vocab_size,
)
from .exit_adapter import ExitAdapter
from .slot_cache import SlotCache

__all__ = ["TransformersRunner"]

CHUNK = 1024  # prompt tokens that are read in one forward, which bounds its activations


class TransformersRunner(ABC):
    """Rows of one transformers model; see `biglittle.engines.Runner` for the protocol.

    While rows are uniform (a single row always is) the model's own masks and positions are used,
    so that nothing differs from transformers. Ragged rows get a 4-D mask and positions of their
    own, one slot index = one position.

    Args:
        model: A model with attention layers only; put into eval mode.
        adapters: Whether PEFT adapters inside the model act. False for a draft that is the
            target's own base model.
    """

    def __init__(self, model: PreTrainedModel, *, adapters: bool = True) -> None:
        check_supported(model)
        modules = list(model.modules())
        if any(module.training for module in modules):
            model.eval()
        self.model = model
        self.name = model_name(model)
        self.vocab = vocab_size(model)
        self.device = embedding_weight(model).device
        self.limits = Limits(context=context_limit(model))
        self.lengths: list[int] = []
        self.reused = 0
        self.stopwatch = Stopwatch(self.device)
        layers = _tuner_layers(modules)
        self._disabled = [] if adapters else layers
        self._turn = _turns.setdefault(layers[0], RLock()) if layers else nullcontext()
        self._parameters = parameters_of(model.forward)
        self._kinds = dict.fromkeys(layer_kinds(model))
        self.cache = self._new_cache()
        self._slots.window.lengths = self.lengths

    # What the two kinds of models do differently.

    @abstractmethod
    def _new_cache(self) -> Any:
        """An empty cache."""

    @property
    @abstractmethod
    def _slots(self) -> SlotCache:
        """The self-attention part of the cache."""

    _prefix = ""
    """Before the names of the decoder's arguments."""

    @abstractmethod
    def _call(self, first: int, last: int, arguments: dict[str, Any]) -> Any:
        """Run the model on rows `first` … `last` − 1 with the decoder's arguments."""

    # The protocol.

    @torch.inference_mode()
    def admit(
        self, prompt: Prompt, saved: Saved | None = None, *, most: int | None = None
    ) -> Tensor:
        """See `Runner.admit`."""
        row = len(self.lengths)
        self._admit_encoder(prompt, row)
        self.reused = done = self._restore(prompt, row, saved)
        self.lengths.append(done)
        tokens = prompt.tokens[done:][:most]
        return self.read(row, tokens) if tokens else torch.empty(0, self.vocab, device=self.device)

    @torch.inference_mode()
    def read(self, row: int, tokens: Sequence[int]) -> Tensor:
        """See `Runner.read`."""
        logits = None
        for part in torch.tensor([tokens], device=self.device).split(CHUNK, dim=1):
            logits = self._append(part, row, keep=1)
        assert logits is not None, "there is at least one token to read"
        return logits[:, -1]

    @torch.inference_mode()
    def fork(self, row: int, length: int | None = None) -> int:
        """See `Runner.fork`."""
        length = self.lengths[row] if length is None else length
        self._slots.copy_row(row, len(self.lengths), length)
        self.lengths.append(length)
        return length

    @torch.inference_mode()
    def forward(self, tokens: Tensor, counts: Sequence[int], *, last: bool = False) -> Tensor:
        """See `Runner.forward`."""
        rows, width = tokens.shape
        start = self.lengths[0]
        even = all(c == width for c in counts)
        if even and all(n == start for n in self.lengths[:rows]):
            self._slots.window.uniform(0, rows, start, width)
            ragged = None
        else:
            ragged = self._ragged(rows, width)
        logits = self._logits(self._run(tokens, 0, rows, ragged, keep=int(last and even)))
        self.lengths[:rows] = [n + c for n, c in zip(self.lengths[:rows], counts, strict=True)]
        if not last:
            return logits
        # Counted from behind, which holds whether all positions were kept or the last alone.
        ends = (torch.tensor(counts, device=logits.device) - 1 - width).clamp(min=-width)
        return logits[torch.arange(rows, device=logits.device), ends][:, None]

    def truncate(self, lengths: Sequence[int]) -> None:
        """See `Runner.truncate`."""
        first = self.lengths[: len(lengths)]
        self.lengths[: len(lengths)] = [min(a, b) for a, b in zip(first, lengths, strict=True)]

    @torch.inference_mode()
    def swap(self, a: int, b: int) -> None:
        """See `Runner.swap`."""
        lengths = self.lengths
        self._slots.swap_rows(a, b, max(lengths[a], lengths[b]))
        lengths[a], lengths[b] = lengths[b], lengths[a]

    @torch.inference_mode()
    def release(self, row: int) -> None:
        """See `Runner.release`."""
        length = self.lengths.pop()
        if row < len(self.lengths):
            self._slots.copy_row(len(self.lengths), row, length)
            self.lengths[row] = length

    @torch.inference_mode()
    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        """See `Runner.save`."""
        length = self.lengths[row]
        return Saved(tuple(tokens[:length]), self._slots.export(row, length))

    def early_exit(self, layers: int, adapter: ExitAdapter | None = None) -> TransformersRunner:
        """A runner of the first `layers` layers with the model's final norm and head, and between
        them the adapter.

        It shares this runner's weights and, for those layers, its K/V slots: no second copy. Its
        rows are this runner's; set its `lengths` to this runner's before a forward.
        """
        runner = copy.copy(self)
        runner.model = shallow_model(self.model, layers, adapter)
        runner.name = f"{self.name} (first {layers} layers)"
        runner.lengths = []
        runner.stopwatch = Stopwatch(self.device)
        return runner

    # Inside.

    @abstractmethod
    def _admit_encoder(self, prompt: Prompt, row: int) -> None:
        """Read the encoder's inputs, where there is an encoder."""

    def _restore(self, prompt: Prompt, row: int, saved: Saved | None) -> int:
        """Put back what `saved` shares with the prompt; how many tokens that is."""
        shared = 0 if saved is None else saved.shared(prompt.tokens)
        if saved is not None and shared:
            self._slots.restore(row, saved.state, shared)
        return shared

    def _append(self, tokens: Tensor, row: int, keep: int) -> Tensor:
        """Append [1, width] tokens to one row; logits [1, ≥ keep, vocab] of the last positions."""
        start = self.lengths[row]
        self._slots.window.uniform(row, row + 1, start, tokens.shape[1])
        self.lengths[row] = start + tokens.shape[1]
        return self._logits(self._run(tokens, row, row + 1, None, keep))

    def _run(
        self, tokens: Tensor, first: int, last: int, ragged: dict[str, Any] | None, keep: int = 0
    ) -> Any:
        known, prefix = self._parameters, self._prefix
        arguments = {
            f"{prefix}input_ids": tokens,
            "cache" if "cache" in known else "past_key_values": self.cache,
            "use_cache": True,
        }
        if keep and "logits_to_keep" in known:
            arguments["logits_to_keep"] = keep
        if ragged is not None:
            arguments[f"{prefix}attention_mask"] = ragged["mask"]
            if f"{prefix}position_ids" in known:
                arguments[f"{prefix}position_ids"] = ragged["positions"]
        with self._turn, self.stopwatch, _without(self._disabled):
            return self._call(first, last, arguments)

    def _logits(self, output: Any) -> Tensor:
        logits: Tensor = output.logits
        return logits

    def _ragged(self, rows: int, width: int) -> dict[str, Any]:
        """A mask that lets a query see the slots up to its own, and every token's position."""
        lengths = self.lengths[:rows]
        starts = torch.tensor(lengths, device=self.device)
        slots = starts[:, None] + torch.arange(width, device=self.device)
        span = max(lengths) + width
        self._slots.window.ragged(rows, slots, span)
        masks = {kind: self._mask(slots, span, *kind) for kind in self._kinds}
        mask = next(iter(masks.values()))
        if len(masks) > 1:
            mask = {kind[0]: value for kind, value in masks.items()}
        context = self.limits.context
        # Padding may lie past the context; what it computes is never read, but must be computable.
        positions = slots if context is None else slots.clamp(max=context - 1)
        return {"mask": mask, "positions": positions}

    def _mask(self, slots: Tensor, span: int, kind: str, window: int) -> Any:
        """[rows, 1, width, span]: bool for sdpa, additive for eager attention."""
        keys = torch.arange(span, device=self.device)
        query = slots[:, None, :, None]
        seen = keys <= query
        if kind == "chunked_attention":
            seen &= keys // window == query // window
        elif window:
            seen &= keys > query - window
        if self.model.config._attn_implementation == "sdpa":
            return seen
        dtype = embedding_weight(self.model).dtype
        return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


_turns: WeakKeyDictionary[Any, AbstractContextManager[Any]] = WeakKeyDictionary()
"""Of models with adapters, by their first layer that has one: in another thread a runner may have
switched them off for the forward that it runs."""


def _tuner_layers(modules: Iterable[Any]) -> list[Any]:
    """Those that PEFT put adapters into."""
    return [m for m in modules if hasattr(type(m), "enable_adapters") and hasattr(m, "base_layer")]


@contextmanager
def _without(layers: list[Any]) -> Iterator[None]:
    """Adapters off, and on again as they were.

    PEFT's own switch, `enable_adapters`, would also decide anew which weights can be trained.
    """
    active = [layer for layer in layers if not layer.disable_adapters]
    for layer in active:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in active:
            layer._disable_adapters = False
