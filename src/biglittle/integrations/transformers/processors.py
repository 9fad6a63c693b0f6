"""transformers' processors, made for a batch, for one row at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf
from torch import Tensor

from ...errors import ParameterError

__all__ = ["Processor", "View", "of_row", "split"]

Processor = Callable[[Any, Any], Any]

# transformers' own that have no state; subclasses may have some. These look at the scores alone,
POINTWISE: frozenset[type] = frozenset(
    {
        tf.EpsilonLogitsWarper,
        tf.EtaLogitsWarper,
        tf.InfNanRemoveLogitsProcessor,
        tf.LogitNormalization,
        tf.MinPLogitsWarper,
        tf.SuppressTokensLogitsProcessor,
        tf.TemperatureLogitsWarper,
        tf.TopHLogitsWarper,
        tf.TopKLogitsWarper,
        tf.TopPLogitsWarper,
        tf.TypicalLogitsWarper,
    }
)
# these at the prefix too,
PREFIX: frozenset[type] = frozenset(
    {
        tf.EncoderNoRepeatNGramLogitsProcessor,
        tf.EncoderRepetitionPenaltyLogitsProcessor,
        tf.ExponentialDecayLengthPenalty,
        tf.ForcedBOSTokenLogitsProcessor,
        tf.ForcedEOSTokenLogitsProcessor,
        tf.MinLengthLogitsProcessor,
        tf.MinNewTokensLengthLogitsProcessor,
        tf.NoBadWordsLogitsProcessor,
        tf.NoRepeatNGramLogitsProcessor,
        tf.RepetitionPenaltyLogitsProcessor,
        tf.SequenceBiasLogitsProcessor,
        tf.SuppressTokensAtBeginLogitsProcessor,
        tf.WhisperTimeStampLogitsProcessor,
    }
)
# and these may not be asked about prefixes that are only drafted, but know their row.
BATCHED: frozenset[type] = frozenset(
    {tf.PrefixConstrainedLogitsProcessor, tf.UnbatchedClassifierFreeGuidanceLogitsProcessor}
)


def split(processors: Sequence[Any], *, pointwise: bool) -> tuple[int, int]:
    """Where a list of processors, whose order is kept, falls into the stages of a `Pipeline`.

    Args:
        processors: In their order.
        pointwise: Whether processors may run on all rows at once.

    Returns:
        The ends of the first two stages: what only reads prefixes, up to the first processor of
        unknown kind; all that follows; and, from the second number on, the pointwise ones.
    """
    kinds = [type(processor) for processor in processors]
    end = len(kinds)
    while pointwise and end and kinds[end - 1] in POINTWISE:
        end -= 1
    known = [kind in POINTWISE or kind in PREFIX for kind in kinds[:end]]
    return (known.index(False) if False in known else end), end


def of_row(processor: Any, row: int, rows: int) -> Any:
    """A processor for one row of a batch.

    Some of transformers' own hold a batch, of which this takes the row's part. One of unknown kind
    may hold state, so each row has its own copy; a single row has the processor itself.

    Raises:
        ParameterError: A processor that cannot be copied.
    """
    kind = type(processor)
    if rows == 1 or kind in POINTWISE:
        return processor
    if kind in PREFIX or kind in BATCHED:
        return _part_of(copy.copy(processor), row, rows)
    try:
        return copy.deepcopy(processor)
    except Exception as cause:  # whatever a class refuses to be copied with
        raise ParameterError(
            f"{kind.__name__} cannot be copied ({cause}), and each row of a batch needs its own; "
            "generate the rows one at a time, or give it a __deepcopy__"
        ) from cause


def _part_of(own: Any, row: int, rows: int) -> Any:
    """Leave a processor with what it holds for one row. Some hold a prompt once for its samples."""

    def part(held: Any) -> Any:
        return held[row * len(held) // rows :][:1]

    kind = type(own)
    if kind is tf.RepetitionPenaltyLogitsProcessor:
        if isinstance(own.prompt_ignore_length, Tensor):
            own.prompt_ignore_length = part(own.prompt_ignore_length)
    elif kind is tf.EncoderRepetitionPenaltyLogitsProcessor:
        own.encoder_input_ids = part(own.encoder_input_ids)
    elif kind is tf.EncoderNoRepeatNGramLogitsProcessor:
        own.generated_ngrams, own.batch_size = part(own.generated_ngrams), 1
    elif kind is tf.PrefixConstrainedLogitsProcessor:
        allowed, index = own._prefix_allowed_tokens_fn, row // own._num_beams
        own._prefix_allowed_tokens_fn = lambda _, ids: allowed(index, ids)
        own._num_beams = 1
    elif kind is tf.UnbatchedClassifierFreeGuidanceLogitsProcessor:
        held = own.unconditional_context
        given = [name for name in ("input_ids", "attention_mask") if held[name] is not None]
        own.unconditional_context = {**held, **{name: part(held[name]) for name in given}}
    return own


@dataclass(frozen=True, slots=True)
class View:
    """A row as transformers shows it: with the prompt as it was given, masked entries included, and
    on the prompt's device, where transformers has put its processors and criteria."""

    given: Tensor
    """The prompt, [width]."""
    kept: int
    """Entries that are not masked: what the row's own tokens begin with."""

    def __call__(self, ids: Tensor) -> Tensor:
        """The row's own tokens [1, kept + new] → [1, width + new]."""
        return torch.cat([self.given, ids[0, self.kept :].to(self.given.device)])[None]

    def needed(self, device: torch.device) -> bool:
        """Whether it differs from what a row on this device has itself."""
        return self.kept < len(self.given) or self.given.device != device

    def shown_to(self, processor: Processor) -> Processor:
        """A processor that sees the row this way."""

        def process(ids: Tensor, scores: Tensor) -> Tensor:
            ids = self(ids)
            processed: Tensor = processor(ids, scores.to(ids.device))
            return processed.to(scores.device)

        return process
