"""From raw logits to the distribution that decoding really uses.

transformers' own processors do the work. They fall into three kinds, kept in transformers' order:

- *prefix*: stateless, but read the prefix (penalties, n-grams, bad words, minimum length). They run
  position by position on the right prefix, for the draft and for the target.
- *custom*: the user's. They may hold state, so they see accepted prefixes only: the target's
  positions one after another, and nothing after a rejection or an EOS.
- *pointwise*: look at the scores alone (temperature, top-k, top-p, min-p, suppressed tokens). They
  run once on all positions of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers as tf
from torch import Tensor

from ..errors import ParameterError, RowError
from ..params import DEFAULT_NEW_TOKENS, GenerationParams

if TYPE_CHECKING:
    from .rows import Row

__all__ = ["Pipeline", "Settings", "apply_pointwise", "process_block", "resolve"]

Processor = Callable[[Any, Any], Any]

COLDEST = 1e-5
"""Temperatures below are taken as this one: logits over less may be no numbers any more, and what
is drawn is the likeliest token anyway."""


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """The processors of one row."""

    sampling: bool = False
    prefix: tuple[Processor, ...] = ()
    custom: tuple[Processor, ...] = ()
    pointwise: tuple[Processor, ...] = ()
    head: int = 0
    """Entries of the model's head. The user's processors are shown all of them, as in transformers;
    those that are padding are ruled out already."""
    device: torch.device | None = None
    """Where the processors run; None is where the logits are."""

    @property
    def plain(self) -> bool:
        """Whether logits pass unchanged."""
        return not (self.prefix or self.custom or self.pointwise)

    def at(self, prefix: Sequence[int], logits: Tensor, *, custom: bool) -> Tensor:
        """Processed scores of one position.

        Args:
            prefix: The row's tokens before the position.
            logits: [vocab].
            custom: Whether the user's processors run too.

        Returns:
            [vocab] float32.
        """
        ids = torch.tensor([prefix], dtype=torch.long, device=logits.device)
        scores = logits[None].to(torch.float32, copy=True)  # processors may write in place
        for processor in self.prefix:
            scores = processor(ids, scores)
        if custom and self.custom:
            scores = self._apply_custom(ids, scores)
        for processor in self.pointwise:
            scores = processor(ids, scores)
        if custom and self.custom and not bool((scores > float("-inf")).any()):
            raise RowError("the logits processors ruled out every token")
        result: Tensor = scores[0]
        return result

    def _apply_custom(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Run the user's processors on scores [1, vocab], with the head's padding put back."""
        vocab = scores.shape[-1]
        padding = max(0, self.head - vocab)
        scores = torch.nn.functional.pad(scores, (0, padding), value=float("-inf"))
        for processor in self.custom:
            scores = processor(ids, scores)
        return scores[:, :vocab]


def apply_pointwise(processors: Sequence[Processor], logits: Tensor) -> Tensor:
    """Run prefix-free processors on [..., vocab] logits at once; float32."""
    if not processors:
        return logits
    flat = logits.float().flatten(0, -2)
    nothing = torch.zeros(flat.shape[0], 1, dtype=torch.long, device=flat.device)
    for processor in processors:
        flat = processor(nothing, flat)
    return flat.view(logits.shape)


def process_block(rows: Sequence[Row], drafts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """Processed scores of a block, for rows without processors of the user's.

    Args:
        rows: Their pipelines and prefixes.
        drafts: Drafted ids of every row.
        logits: [rows, width + 1, vocab].

    Returns:
        The same shape; the same tensor where no row has a processor.
    """
    pipelines = [row.pipeline for row in rows]
    if all(pipeline.plain for pipeline in pipelines):
        return logits
    first = pipelines[0].pointwise
    if all(not p.prefix and p.pointwise is first for p in pipelines):
        return apply_pointwise(first, logits)
    scores = logits.float().clone()
    for i, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
        if not row.pipeline.prefix:
            scores[i] = apply_pointwise(row.pipeline.pointwise, logits[i])
            continue
        for position in range(len(draft) + 1):
            prefix = [*row.tokens, *draft[:position]]
            scores[i, position] = row.pipeline.at(prefix, logits[i, position], custom=False)
    return scores


@dataclass(frozen=True, slots=True)
class Settings:
    """Parameters with every default filled in, for prompts of one length."""

    max_new_tokens: int
    eos_ids: frozenset[int]
    pipeline: Pipeline


def resolve(
    params: GenerationParams,
    defaults: Any,
    *,
    prompt_length: int,
    context: int | None,
    vocab: int,
    tokenizer: Any,
    device: torch.device,
    encoder_ids: Tensor | None = None,
    head: int = 0,
) -> Settings:
    """Fill in what the caller left open from the model's `generation_config`.

    Args:
        params: The caller's.
        defaults: A transformers `GenerationConfig`.
        prompt_length: Tokens of the prompt (of the decoder's, for encoder-decoder models).
        context: The most tokens of a row, or None.
        vocab: Token ids are below this.
        tokenizer: For bad words given as text; may be None.
        device: Where processors run.
        encoder_ids: What the encoder reads, [1, span]; None for a model without one, or for audio.
        head: Entries of the model's head where they are more than `vocab`.

    Raises:
        ParameterError: Settings that contradict each other or the model.
    """
    eos = _eos_ids(params, defaults, vocab)
    room = None if context is None else context - prompt_length
    limit = params.max_new_tokens or _default_limit(defaults, prompt_length)
    limit = limit if room is None else min(limit, room)
    sampling = _sampling(params, defaults)
    bad_words = _bad_words(params, defaults, vocab, tokenizer)
    pipeline = Pipeline(
        sampling=sampling is not None,
        prefix=(
            *_encoder_processors(defaults, None if encoder_ids is None else encoder_ids.to(device)),
            *_prefix_processors(params, defaults, prompt_length, limit, eos, bad_words, device),
        ),
        custom=tuple(params.logits_processors),
        pointwise=tuple(_suppressors(params, defaults, device)) + tuple(sampling or ()),
        head=head,
        device=device,
    )
    return Settings(limit, frozenset(() if params.ignore_eos else eos), pipeline)


def _default_limit(defaults: Any, prompt_length: int) -> int:
    if defaults.max_new_tokens is not None:
        return int(defaults.max_new_tokens)
    if defaults.max_length is not None and defaults.max_length > 20:  # 20 is transformers' filler
        return max(1, int(defaults.max_length) - prompt_length)
    return DEFAULT_NEW_TOKENS


def _eos_ids(params: GenerationParams, defaults: Any, vocab: int) -> list[int]:
    ids = params.eos_ids
    if ids is None:
        found = defaults.eos_token_id
        ids = () if found is None else (found,) if isinstance(found, int) else tuple(found)
    elif outside := [token for token in ids if token >= vocab]:
        raise ParameterError(f"eos_token_ids: {outside[0]} is not below the vocabulary of {vocab}")
    return [token for token in ids if token < vocab]


def _sampling(params: GenerationParams, defaults: Any) -> list[Processor] | None:
    """The warpers in transformers' order; None for greedy decoding."""
    own = bool(defaults.do_sample)

    def pick(name: str) -> Any:
        value = getattr(params, name)
        return getattr(defaults, name, None) if value is None and own else value

    temperature = params.temperature
    if temperature is None:
        temperature = (defaults.temperature or 1.0) if own else 0.0
    if temperature == 0:
        for name in ("top_p", "top_k", "min_p"):
            if getattr(params, name) is not None:
                raise ParameterError(
                    f"{name}={getattr(params, name)} has no effect on greedy decoding; "
                    "give a temperature above 0 to sample"
                )
        if params.n > 1:
            raise ParameterError(
                f"n={params.n} samples of greedy decoding are all the same; "
                "give a temperature above 0 to sample"
            )
        return None
    top_k, top_p, min_p = pick("top_k"), pick("top_p"), pick("min_p")
    warpers: list[Processor] = []
    if temperature != 1.0:
        warpers.append(tf.TemperatureLogitsWarper(max(float(temperature), COLDEST)))
    if top_k:
        warpers.append(tf.TopKLogitsWarper(int(top_k)))
    if top_p is not None and top_p < 1.0:
        warpers.append(tf.TopPLogitsWarper(float(top_p)))
    if min_p:
        warpers.append(tf.MinPLogitsWarper(float(min_p)))
    if own:
        warpers += _rare_warpers(defaults)
    return warpers


def _rare_warpers(defaults: Any) -> list[Processor]:
    """Warpers that only a model's own configuration can ask for."""
    found: list[Processor] = []
    kinds = (
        ("typical_p", tf.TypicalLogitsWarper),
        ("epsilon_cutoff", tf.EpsilonLogitsWarper),
        ("eta_cutoff", tf.EtaLogitsWarper),
    )
    for name, kind in kinds:
        value = getattr(defaults, name, None)
        if value and 0.0 < value < 1.0:
            found.append(kind(float(value)))
    return found


def _suppressors(params: GenerationParams, defaults: Any, device: torch.device) -> list[Processor]:
    tokens = params.suppress_tokens
    tokens = getattr(defaults, "suppress_tokens", None) if tokens is None else tokens
    return [tf.SuppressTokensLogitsProcessor(list(tokens), device=str(device))] if tokens else []


def _encoder_processors(defaults: Any, ids: Any) -> list[Processor]:
    """What the model's own configuration says of the encoder's tokens and of sequences."""
    found: list[Processor] = []
    if biases := getattr(defaults, "sequence_bias", None):
        found.append(tf.SequenceBiasLogitsProcessor(biases))
    if ids is None:
        return found
    penalty = getattr(defaults, "encoder_repetition_penalty", None)
    if penalty and penalty != 1.0:
        found.append(tf.EncoderRepetitionPenaltyLogitsProcessor(float(penalty), ids))
    if size := getattr(defaults, "encoder_no_repeat_ngram_size", None):
        found.append(tf.EncoderNoRepeatNGramLogitsProcessor(int(size), ids))
    return found


def _prefix_processors(
    params: GenerationParams,
    defaults: Any,
    prompt_length: int,
    limit: int,
    eos: list[int],
    bad_words: list[list[int]],
    device: torch.device,
) -> tuple[Processor, ...]:
    """Stateless processors that read the prefix, in transformers' order."""

    def pick(name: str) -> Any:
        value = getattr(params, name, None)
        return getattr(defaults, name, None) if value is None else value

    where = str(device)
    found: list[Processor] = []
    if (penalty := pick("repetition_penalty")) and penalty != 1.0:
        found.append(tf.RepetitionPenaltyLogitsProcessor(float(penalty)))
    if size := pick("no_repeat_ngram_size"):
        found.append(tf.NoRepeatNGramLogitsProcessor(int(size)))
    if bad_words:
        found.append(tf.NoBadWordsLogitsProcessor(bad_words, eos_token_id=eos or None))
    if eos and (least := getattr(defaults, "min_length", None)):
        found.append(tf.MinLengthLogitsProcessor(int(least), eos, device=where))
    if eos and (least := pick("min_new_tokens")):
        found.append(
            tf.MinNewTokensLengthLogitsProcessor(prompt_length, int(least), eos, device=where)
        )
    begin = prompt_length
    if (forced := getattr(defaults, "forced_bos_token_id", None)) is not None:
        found.append(tf.ForcedBOSTokenLogitsProcessor(forced))
        begin += prompt_length == 1  # the forced token belongs to the beginning
    if (forced := getattr(defaults, "forced_eos_token_id", None)) is not None:
        length = prompt_length + limit
        found.append(tf.ForcedEOSTokenLogitsProcessor(length, forced, device=where))
    if eos and (decay := getattr(defaults, "exponential_decay_length_penalty", None)):
        found.append(tf.ExponentialDecayLengthPenalty(tuple(decay), eos, prompt_length))
    if tokens := getattr(defaults, "begin_suppress_tokens", None):
        found.append(tf.SuppressTokensAtBeginLogitsProcessor(list(tokens), begin, device=where))
    return tuple(found)


def _bad_words(
    params: GenerationParams, defaults: Any, vocab: int, tokenizer: Any
) -> list[list[int]]:
    """Token ids of the caller's bad words, and of the model's own that it can write at all."""
    own = getattr(defaults, "bad_words_ids", None) or []
    words: list[list[int]] = [list(word) for word in own if max(word) < vocab]
    for word in params.bad_words:
        if not isinstance(word, str):
            if max(word) >= vocab:
                raise ParameterError(
                    f"bad_words: token id {max(word)} is not below the vocabulary of {vocab}"
                )
            words.append(list(word))
            continue
        if tokenizer is None:
            raise ParameterError("bad_words as text needs a tokenizer; give token ids instead")
        # A word may be written with a space before it or without; both are other tokens.
        for form in (word, " " + word):
            ids = tokenizer(form, add_special_tokens=False).input_ids
            if ids and ids not in words:
                words.append(ids)
    return words
