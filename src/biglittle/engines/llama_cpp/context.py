"""A llama.cpp context: sequences of tokens whose keys and values are cached."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import BiglittleError, ContextError
from .binding import complaints, library
from .memory import available_memory
from .options import CACHE_TYPES, LlamaOptions

__all__ = ["ROWS", "Context", "Kept", "Weights"]

SEQUENCES = 256  # of one context, rows and what finished rows left for later: llama.cpp's limit
ROWS = SEQUENCES // 2  # the other half is for what finished rows leave behind
FIRST_SEQUENCES = 4  # that a new context has room for
FIRST_CELLS = 2048  # tokens that a new context has room for, of all its sequences together
STEP = 256  # room grows in multiples of it, as llama.cpp's own does
BATCH = 512  # tokens of one decode call
OUTPUTS = 16  # positions a sequence, on average, whose logits one decode call can return
FLASH_ATTENTION = {None: -1, False: 0, True: 1}
NO_ROOM = 1  # llama_decode found no cells


class Weights:
    """A llama.cpp model in memory, freed when nobody holds it any more."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        weakref.finalize(self, library().llama_model_free, pointer)

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as text; None if it has no such key."""
        buffer = ctypes.create_string_buffer(1024)
        found = library().llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf8", errors="replace") if found >= 0 else None

    @cached_property
    def widths(self) -> dict[str, int]:
        """How many values a head's key has, and its value."""
        binding, arch = library(), self.metadata("general.architecture")
        heads = max(1, int(binding.llama_model_n_head(self.pointer)))
        usual = int(binding.llama_model_n_embd(self.pointer)) // heads
        return {
            part: int(self.metadata(f"{arch}.attention.{part}_length") or usual)
            for part in ("key", "value")
        }

    def cell_bytes(self, options: LlamaOptions) -> float:
        """Memory that the keys and values of a token take."""
        binding = library()
        layers = int(binding.llama_model_n_layer(self.pointer))
        heads = layers * int(binding.llama_model_n_head_kv(self.pointer))
        key, value = (CACHE_TYPES[kind].bytes for kind in (options.type_k, options.type_v))
        return heads * (key * self.widths["key"] + value * self.widths["value"])


class Context:
    """Sequences over one model's weights. Its room grows with what is put in.

    One runner at a time uses a context (`lent`). What it keeps for later (`keep`) stays as a
    sequence of its own, and goes when the `Kept` does.
    """

    lent = True

    def __init__(self, weights: Weights, options: LlamaOptions, vocab: int, context: int) -> None:
        self.weights = weights
        self._options = options
        self._vocab = vocab
        self.cells = self.sequences = 0
        self._most = SEQUENCES * context
        self._pointer: Any = None
        self._memory: Any = None
        self._close: Any = None
        self._free: list[int] = []
        self._forsaken: deque[int] = deque()  # by finalizers, which may run in any thread
        self._lengths: dict[int, int] = {}
        self._kept: set[int] = set()
        self._batch = _Batch(BATCH)
        self._open(min(FIRST_CELLS, context), FIRST_SEQUENCES)

    @property
    def causal(self) -> bool:
        """Whether a token sees those before it, and they are cached; not so in encoders."""
        return bool(self._memory) and bool(library().llama_get_causal_attn(self._pointer))

    def whole(self, length: int, cut: int) -> bool:
        """Whether a sequence of this length may go on from where it is cut.

        In layers with a sliding window, llama.cpp gives the cells that the window hides to other
        tokens; a sequence that is cut would see them again.
        """
        window = int(library().llama_model_n_swa(self.weights.pointer))
        return cut == length or not 0 < window < length

    # Sequences.

    def take(self) -> int | None:
        """A new, empty sequence; None if all are taken."""
        self._tidy()
        if not self._free:
            if self.sequences == SEQUENCES:
                return None
            self._open(self.cells, 2 * self.sequences)
        sequence = self._free.pop()
        self._lengths[sequence] = 0
        return sequence

    def drop(self, sequence: int) -> None:
        """Give a sequence and its cells back."""
        self._check(library().llama_memory_seq_rm(self._memory, sequence, -1, -1))
        del self._lengths[sequence]
        self._free.append(sequence)

    def cut(self, sequence: int, length: int) -> None:
        """Shorten a sequence."""
        if length < self._lengths[sequence]:
            self._check(library().llama_memory_seq_rm(self._memory, sequence, length, -1))
            self._lengths[sequence] = length

    def copy(self, source: int, sequence: int, length: int) -> None:
        """Let an empty sequence begin with the first tokens of another; the cells are shared."""
        library().llama_memory_seq_cp(self._memory, source, sequence, 0, length)
        self._lengths[sequence] = length

    def keep(self, sequence: int, length: int) -> Kept | None:
        """A copy of a sequence that lives as long as what is returned; None without room."""
        self._tidy()
        copied = self.take() if len(self._kept) < SEQUENCES - ROWS else None
        if copied is None:
            return None
        self._kept.add(copied)
        self.copy(sequence, copied, length)
        return Kept(self, copied)

    def _tidy(self) -> None:
        while self._forsaken:
            sequence = self._forsaken.popleft()
            self._kept.remove(sequence)
            self.drop(sequence)

    @staticmethod
    def _check(removed: bool) -> None:
        if not removed:  # the capability check let a model through that it should not
            raise BiglittleError("llama.cpp cannot take back tokens of this model")

    # Decoding.

    def decode(
        self, sequences: Sequence[int], tokens: Sequence[Sequence[int]], *, last: bool
    ) -> Tensor:
        """Append tokens to sequences, in as few calls as they fit in.

        Args:
            sequences: Different ones.
            tokens: Of every sequence.
            last: Whether only the logits after each sequence's last token are wanted.

        Returns:
            Logits [positions, vocab] float32, sequence by sequence; a view of llama.cpp's own
            memory where one call was enough, valid until the next.
        """
        self._tidy()
        flat = [
            (sequence, self._lengths[sequence] + at, token, not last or at == len(row) - 1)
            for sequence, row in zip(sequences, tokens, strict=True)
            for at, token in enumerate(row)
        ]
        size, outputs = min(BATCH, self.cells), OUTPUTS * self.sequences
        parts = []
        for first, end in _parts([wanted for *_, wanted in flat], size, outputs):
            logits = self._decode(flat[first:end], len(flat) - first)
            whole = (first, end) == (0, len(flat))
            parts.append(logits if whole else logits.clone())
        for sequence, row in zip(sequences, tokens, strict=True):
            self._lengths[sequence] += len(row)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, entries: list[tuple[int, int, int, bool]], coming: int) -> Tensor:
        """One call for entries of so many that are coming."""
        binding = library()
        outputs = self._batch.fill(entries)
        complaints.clear()
        code = binding.llama_decode(self._pointer, self._batch.struct)
        if code == NO_ROOM:
            self._open(max(2 * self.cells, self.cells + coming), self.sequences)
            code = binding.llama_decode(self._pointer, self._batch.struct)
        if code != 0:
            reason = complaints[-1] if complaints else f"code {code}"
            raise BiglittleError(f"llama.cpp could not run the model: {reason}")
        if not outputs:
            return torch.empty(0, self._vocab)
        pointer = binding.llama_get_logits(self._pointer)  # waits for the result
        array = np.ctypeslib.as_array(
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (outputs, self._vocab)
        )
        return torch.from_numpy(array)

    # Room.

    def _open(self, cells: int, sequences: int) -> None:
        """A llama.cpp context with so much room, and in it what the last one held.

        Without enough memory all stays as it was.
        """
        cells = -(-min(cells, self._most) // STEP) * STEP
        self._check_memory(cells)
        binding = library()
        complaints.clear()
        settings = self._settings(cells, sequences)
        pointer = binding.llama_init_from_model(self.weights.pointer, settings)
        if not pointer:
            reason = f": {complaints[-1]}" if complaints else ""
            raise ContextError(f"llama.cpp has no room for {cells} tokens{reason}")
        # The weights are an argument, so that they outlive the context.
        close = weakref.finalize(self, _free, pointer, self.weights)
        try:
            if self._pointer is not None:
                _move(self._pointer, pointer)
        except BaseException:
            close()
            raise
        self._pointer, self._memory = pointer, binding.llama_get_memory(pointer)
        self._free += range(sequences - 1, self.sequences - 1, -1)
        self.cells, self.sequences = cells, sequences
        close, self._close = self._close, close
        if close is not None:
            close()

    def _check_memory(self, cells: int) -> None:
        """Refuse what memory cannot hold: the system would end the process for it."""
        needed = self.weights.cell_bytes(self._options) * cells
        free = available_memory() if self._options.on_cpu else None
        if free is not None and needed > free:
            raise ContextError(
                f"keys and values of {cells} tokens need {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} GiB are free; give fewer or shorter prompts, or smaller "
                "type_k and type_v"
            )

    def _settings(self, cells: int, sequences: int) -> Any:
        options = self._options
        settings = library().llama_context_default_params()
        settings.n_ctx = cells
        settings.n_batch = settings.n_ubatch = BATCH
        settings.n_outputs_max = settings.n_outputs_max_per_seq = OUTPUTS * sequences
        settings.n_seq_max = sequences
        settings.kv_unified = True  # sequences share cells
        settings.swa_full = True  # a sliding window must be able to roll back
        settings.n_threads = options.n_threads or torch.get_num_threads()
        settings.n_threads_batch = options.n_threads_batch or settings.n_threads
        settings.type_k, settings.type_v = (
            CACHE_TYPES[kind].ggml for kind in (options.type_k, options.type_v)
        )
        settings.no_perf = True
        settings.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
        return settings


class Kept:
    """A sequence that a context keeps for later."""

    def __init__(self, context: Context, sequence: int) -> None:
        self.context = context
        self.sequence = sequence
        weakref.finalize(self, context._forsaken.append, sequence)


def _free(pointer: Any, weights: Weights) -> None:
    library().llama_free(pointer)


def _move(source: Any, target: Any) -> None:
    """Copy all that a context holds into another: what sequences share, they share there too."""
    binding = library()
    size = binding.llama_state_get_size(source)
    buffer = (ctypes.c_uint8 * size)()
    binding.llama_state_get_data(source, buffer, size)
    if not binding.llama_state_set_data(target, buffer, size):
        raise BiglittleError("llama.cpp could not move rows to a larger context")


def _parts(wanted: Sequence[bool], size: int, most: int) -> list[tuple[int, int]]:
    """Cut positions into decode calls of at most `size` tokens and `most` outputs."""
    parts, first, outputs = [], 0, 0
    for at, asked in enumerate(wanted):
        if at - first == size or outputs + asked > most:
            parts.append((first, at))
            first, outputs = at, 0
        outputs += asked
    return [*parts, (first, len(wanted))]


class _Batch:
    """llama.cpp's batch over arrays that are written in place."""

    def __init__(self, size: int) -> None:
        binding = library()
        self._token: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self._pos: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self._count: npt.NDArray[np.int32] = np.ones(size, np.int32)
        self._sequence: npt.NDArray[np.int32] = np.zeros(size, np.int32)
        self._wanted: npt.NDArray[np.int8] = np.zeros(size, np.int8)
        pointer = ctypes.POINTER(ctypes.c_int32)
        base, step = self._sequence.ctypes.data, self._sequence.itemsize
        self._rows = (pointer * size)(
            *[ctypes.cast(base + step * at, pointer) for at in range(size)]
        )
        self.struct = binding.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(pointer),
            embd=None,
            pos=self._pos.ctypes.data_as(pointer),
            n_seq_id=self._count.ctypes.data_as(pointer),
            seq_id=ctypes.cast(self._rows, ctypes.POINTER(pointer)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, entries: list[tuple[int, int, int, bool]]) -> int:
        """Write (sequence, position, token, wanted) entries; how many are wanted."""
        count = len(entries)
        sequences, positions, tokens, wanted = zip(*entries, strict=True)
        self._sequence[:count], self._pos[:count] = sequences, positions
        self._token[:count], self._wanted[:count] = tokens, wanted
        self.struct.n_tokens = count
        return sum(wanted)
