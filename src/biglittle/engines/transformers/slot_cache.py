"""A K/V cache of slots: slot index = token position, every row with a length of its own.

Rolling back is lowering a row's length. Rejected slots lie past it and are overwritten before
anything can see them, so nothing is cleared, copied or concatenated. Active rows are contiguous,
which makes what attention reads a view of the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

__all__ = ["CrossCache", "PairedCache", "SlotCache", "SlotLayer", "Window"]

BLOCK = 256  # slots by which a layer grows


class Window:
    """What the forward that runs now writes and reads: rows `first` … `last` − 1, `span` slots.

    `start` is the rows' common length where they have one (the next slot to write), and None where
    rows are ragged; then `slots` [rows, width] says where each token goes.
    """

    lengths: Sequence[int] | None = None
    """Slots in use of every row in the cache, which are kept when it grows; None: all are."""

    def __init__(self) -> None:
        self.first = 0
        self.last = 0
        self.span = 0
        self.start: int | None = 0
        self.slots: Tensor | None = None

    def uniform(self, first: int, last: int, start: int, width: int) -> None:
        """All rows append `width` tokens at the same length."""
        self.first, self.last, self.start, self.span = first, last, start, start + width
        self.slots = None

    def ragged(self, last: int, slots: Tensor, span: int) -> None:
        """Row i appends at its own `slots[i]`; all rows from 0 take part."""
        self.first, self.last, self.start, self.span = 0, last, None, span
        self.slots = slots


class SlotLayer(CacheLayerMixin):
    """The slots of one attention layer: keys and values, [rows, heads, slots, dim]."""

    is_sliding = False  # windows are the mask's business: a slot is kept until overwritten

    def __init__(self, window: Window) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.window = window

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make empty storage of the right shape; `reserve` fills it."""
        self.keys = key_states.new_zeros(0, key_states.shape[1], 0, key_states.shape[3])
        self.values = value_states.new_zeros(0, value_states.shape[1], 0, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new states and return all that the window's rows may see, as views."""
        window = self.window
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.reserve(window.last, window.span)
        keys, values = self._visible(window.last)
        if window.slots is None:
            keys[:, :, window.start : window.span] = key_states
            values[:, :, window.start : window.span] = value_states
        else:
            rows = torch.arange(window.last, device=keys.device)[:, None]
            keys[rows, :, window.slots] = key_states.transpose(1, 2)
            values[rows, :, window.slots] = value_states.transpose(1, 2)
        return keys[:, :, : window.span], values[:, :, : window.span]

    def reserve(self, rows: int, slots: int) -> None:
        """Grow to hold so many rows and slots, in blocks; what is not in use goes meanwhile. New
        memory is zero: a masked NaN is still a NaN once attention multiplies it by 0."""
        assert self.keys is not None and self.values is not None
        held_rows, _, held_slots, _ = self.keys.shape
        if rows <= held_rows and slots <= held_slots:
            return
        lengths = self.window.lengths
        if rows > held_rows:
            rows = max(rows, held_rows * 5 // 4)
        else:
            rows = held_rows if lengths is None else max(rows, len(lengths))
        slots = max(slots, held_slots if lengths is None else max(lengths, default=0))
        slots = -(-slots // BLOCK) * BLOCK
        self.keys = _grown(self.keys, rows, slots)
        self.values = _grown(self.values, rows, slots)

    def _visible(self, last: int) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        return self.keys[self.window.first : last], self.values[self.window.first : last]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first `length` slots to another row."""
        self.reserve(target + 1, length)
        assert self.keys is not None and self.values is not None
        self.keys[target, :, :length] = self.keys[source, :, :length]
        self.values[target, :, :length] = self.values[source, :, :length]

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` slots of two rows."""
        assert self.keys is not None and self.values is not None
        for states in (self.keys, self.values):
            states[[a, b], :, :length] = states[[b, a], :, :length]

    def export(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        """Copies of a row's first `length` keys and values, [heads, length, dim]."""
        assert self.keys is not None and self.values is not None
        return self.keys[row, :, :length].clone(), self.values[row, :, :length].clone()

    def restore(self, row: int, keys: Tensor, values: Tensor) -> None:
        """Write exported keys and values to a row."""
        if not self.is_initialized:
            self.lazy_initialization(keys[None], values[None])
        self.reserve(row + 1, keys.shape[1])
        assert self.keys is not None and self.values is not None
        self.keys[row, :, : keys.shape[1]] = keys
        self.values[row, :, : values.shape[1]] = values

    def get_seq_length(self) -> int:
        """The common length of the rows before this forward; see `SlotCache.get_seq_length`."""
        return self.window.start or 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that attention sees, and the first one's position."""
        return self.window.span, 0

    def get_max_length(self) -> int:
        """Slots grow without a limit of their own."""
        return -1


class SlotCache(Cache):
    """The self-attention cache of one model, passed to its forward as any other cache.

    Ragged rows have no common length. Models that take `position_ids` do not ask for one; those
    that compute positions from the cache (`wants_positions`) are given [rows, 1] lengths.
    """

    def __init__(self, *, wants_positions: bool = False) -> None:
        self.slots: list[SlotLayer] = []
        super().__init__(layers=cast(Any, self.slots))  # one list, two names: ours is typed
        self.window = Window()
        self.wants_positions = wants_positions

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Append to one layer; see `SlotLayer.update`."""
        self._reach(layer_idx + 1)
        return self.slots[layer_idx].update(key_states, value_states)

    def _reach(self, layers: int) -> None:
        """Have at least so many layers."""
        while len(self.slots) < layers:
            self.slots.append(SlotLayer(self.window))

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """The rows' common length; for ragged rows their lengths [rows, 1] if positions are
        computed from them, else 0 (masks and positions are given, so nobody reads it)."""
        if self.window.start is not None:
            return self.window.start
        assert self.window.slots is not None
        return self.window.slots[:, :1] if self.wants_positions else 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The position of the first query, for masks that transformers builds itself."""
        return self.window.start or 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Keys that attention sees, and the first one's position."""
        return self.window.span, 0

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first `length` slots to another row, in every layer."""
        for layer in self.slots:
            layer.copy_row(source, target, length)

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` slots of two rows, in every layer."""
        for layer in self.slots:
            layer.swap_rows(a, b, length)

    def export(self, row: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of a row's keys and values, a pair a layer."""
        return [layer.export(row, length) for layer in self.slots]

    def restore(self, row: int, state: list[tuple[Tensor, Tensor]], length: int) -> None:
        """Write the first `length` slots of an exported row to a row."""
        self._reach(len(state))
        for layer, (keys, values) in zip(self.slots, state, strict=True):
            layer.restore(row, keys[:, :length], values[:, :length])


class CrossLayer(CacheLayerMixin):
    """Cross-attention keys and values, written once a row, when it is admitted.

    Afterwards models read `keys` and `values` straight from the layer: these are views of the
    storage that `show` renews before a forward.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.row = 0
        self.storage = SlotLayer(Window())

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make empty storage of the right shape."""
        self.storage.lazy_initialization(key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep the states [1, heads, length, dim] of the row that is being admitted."""
        self.is_initialized = True
        self.storage.restore(self.row, key_states[0], value_states[0])
        return key_states, value_states

    def show(self, first: int, last: int, span: int) -> None:
        """Let the model see rows `first` … `last` − 1, `span` slots of each."""
        assert self.storage.keys is not None and self.storage.values is not None
        self.keys = self.storage.keys[first:last, :, :span]
        self.values = self.storage.values[first:last, :, :span]

    def get_seq_length(self) -> int:
        """Slots of the view."""
        return 0 if self.keys is None else self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Cross-attention masks are built from the encoder's length, not from here."""
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class CrossCache(Cache):
    """The cross-attention cache of one encoder-decoder model."""

    def __init__(self, layers: int) -> None:
        self.crossings = [CrossLayer() for _ in range(layers)]
        super().__init__(layers=cast(Any, self.crossings))

    def write_row(self, row: int) -> None:
        """Send what the next forward computes to this row."""
        for layer in self.crossings:
            layer.row = row

    def show(self, first: int, last: int, span: int) -> None:
        """Let the model see rows `first` … `last` − 1, `span` slots of each."""
        for layer in self.crossings:
            layer.show(first, last, span)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy a row's first `length` slots to another row."""
        for layer in self.crossings:
            layer.storage.copy_row(source, target, length)

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, `length` slots of each."""
        for layer in self.crossings:
            layer.storage.swap_rows(a, b, length)


class PairedCache(EncoderDecoderCache):
    """Self-attention slots and cross-attention states, as encoder-decoder models expect them."""

    def __init__(self, layers: int, *, wants_positions: bool) -> None:
        self.own = SlotCache(wants_positions=wants_positions)
        self.cross = CrossCache(layers)
        super().__init__(self.own, self.cross)
        self.computed(True)

    def computed(self, done: bool) -> None:
        """Say whether cross-attention states are there, or to be computed by the next forward."""
        self.is_updated = dict.fromkeys(range(len(self.cross.crossings)), done)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """The position of the first query."""
        return self.own.get_query_offset(layer_idx)


def _grown(states: Tensor, rows: int, slots: int) -> Tensor:
    """A zeroed tensor [rows, heads, slots, dim] that begins with what `states` has of that."""
    held_rows, heads, held_slots, dim = states.shape
    grown = states.new_zeros(rows, heads, slots, dim)
    rows, slots = min(rows, held_rows), min(slots, held_slots)
    grown[:rows, :, :slots] = states[:rows, :, :slots]
    return grown
