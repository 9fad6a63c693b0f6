"""One call of `generate`, taken apart into rows and put together again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import transformers as tf
from torch import Tensor
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from ...decoding import Engine, Request, Row
from ...decoding.sampling import Pipeline
from ...engines.base import Prompt
from ...engines.transformers import make_runner
from ...engines.transformers.capability import is_seq2seq
from ...errors import ContextError, ParameterError
from ...pair import Pair
from .processors import Processor, View, of_row, split

__all__ = ["Batch"]

MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.ASSISTED_GENERATION)
REPORTS = ("output_attentions", "output_hidden_states")

# What `generate` hands over beside the prompt. The encoder has read the embeddings already.
CAUSAL = {"attention_mask", "position_ids", "cache", "use_cache", "logits_to_keep", *REPORTS}
SEQ2SEQ = {"decoder_attention_mask", "encoder_outputs", "inputs_embeds", *CAUSAL}

Criterion = Callable[..., bool]


@dataclass
class Batch:
    """What `generate` has prepared.

    Raises:
        ParameterError: Something that a draft cannot help with.
    """

    pair: Pair
    engine: Engine
    input_ids: Tensor
    """Prompts (of the decoder), [rows, width]."""
    processors: tuple[Processor, ...]
    criteria: tuple[Any, ...]
    config: Any
    inputs: Tensor | None
    """The encoder's, [rows / samples, ...]."""
    extra: Mapping[str, Any]
    """Masks, encoder outputs and so on, all of [rows, ...]."""

    def __post_init__(self) -> None:
        self.model = self.pair.target
        self.seq2seq = is_seq2seq(self.model)
        self._check_mode()
        self._check_inputs()
        # Where there is EOS, rows that have ended are padded; else they write on until all end.
        self.pads = any(hasattr(criterion, "eos_token_id") for criterion in self.criteria)
        if self.pads and self.config._pad_token_tensor is None and len(self.input_ids) > 1:
            raise ParameterError("rows that end before others are padded; set pad_token_id")

    def _check_mode(self) -> None:
        mode = self.config.get_generation_mode()
        if mode not in MODES:
            raise ParameterError(
                f"{mode.value} (num_beams={self.config.num_beams}) cannot be assisted by a draft; "
                "use greedy decoding or sampling, or leave custom_generate out"
            )
        for name in REPORTS if self.config.return_dict_in_generate else ():
            if getattr(self.config, name):
                raise ParameterError(
                    f"{name} is not available with a draft; leave it out, or custom_generate"
                )

    def _check_inputs(self) -> None:
        known = SEQ2SEQ if self.seq2seq else CAUSAL
        for name, value in self.extra.items():
            if value is not None and name not in known:
                raise ParameterError(
                    f"a draft assists on token ids alone, and {name} was given; leave it out, or "
                    "custom_generate"
                )
        cache = self.extra.get("cache")
        if cache is not None and int(cache.get_seq_length()):
            raise ParameterError(
                f"the cache holds {int(cache.get_seq_length())} tokens already, which cannot be "
                "gone on from here; give the whole prompt without a cache"
            )
        if not self._usual(self.extra.get("position_ids")):
            raise ParameterError(
                "position_ids other than the usual ones cannot be used with a draft; leave them out"
            )
        if self.seq2seq and self.pair.draft is not None and self._encoder_input() is None:
            raise ParameterError(
                "the draft has an encoder of its own; give the encoder's input rather than "
                "encoder_outputs or inputs_embeds"
            )

    def _usual(self, positions: Tensor | None) -> bool:
        """Whether the tokens of every prompt are numbered from 0."""
        usual = self.mask.long().cumsum(-1) - 1
        if positions is None:
            return True
        if positions.shape[1:] != usual.shape[1:]:
            return False
        return bool((positions.expand_as(usual) == usual)[self.mask].all())

    # Taking apart.

    @cached_property
    def mask(self) -> Tensor:
        """Which entries of `input_ids` are tokens of a prompt, [rows, width] bool."""
        mask = self.extra.get("decoder_attention_mask" if self.seq2seq else "attention_mask")
        return torch.ones_like(self.input_ids, dtype=torch.bool) if mask is None else mask.bool()

    def requests(self) -> list[Request]:
        """A request for every row. Samples of one prompt share it, so that it is read once."""
        config, rows = self.config, len(self.input_ids)
        samples = config.num_return_sequences or 1
        prompts = [self._prompt(row, row // samples) for row in range(0, rows, samples)]
        wanted = config.return_dict_in_generate
        criteria, pipelines = self._row_criteria(), self._pipelines()
        limit, eos = self._limit(prompts), self._eos_ids()
        return [
            Request(
                prompt=prompts[row // samples],
                policy=self.pair.policy,
                pipeline=pipelines[row],
                max_new_tokens=limit,
                eos_ids=eos,
                criteria=criteria[row],
                keep_scores=bool(wanted and config.output_scores),
                keep_logits=bool(wanted and config.output_logits),
                index=row,
            )
            for row in range(rows)
        ]

    def _prompt(self, row: int, source: int) -> Prompt:
        tokens = tuple(self.input_ids[row][self.mask[row]].tolist())
        if not tokens:
            raise ParameterError(f"prompt {source} is empty: its attention mask is 0 throughout")
        if not self.seq2seq:
            return Prompt(tokens)
        encoder = {"encoder_outputs": self.extra["encoder_outputs"][0][row : row + 1]}
        mask, inputs = self.extra.get("attention_mask"), self._encoder_input()
        if mask is not None:
            encoder["attention_mask"] = mask[row : row + 1]
        if inputs is not None:
            encoder[self.model.main_input_name] = inputs[source : source + 1]
        return Prompt(tokens, encoder)

    def _encoder_input(self) -> Tensor | None:
        """What the encoder has read; None where only its outputs, or embeddings, were given."""
        inputs = self.inputs
        if inputs is None or self.model.main_input_name != "input_ids":
            return inputs
        ids = not inputs.is_floating_point() and int(inputs.min()) >= 0  # transformers' dummy: -100
        return inputs if ids else None

    def _limit(self, prompts: Sequence[Prompt]) -> int:
        """Tokens that every row may write: `max_length` counts masked entries, the context not."""
        width = self.input_ids.shape[1]
        most = min(c.max_length for c in self.criteria if isinstance(c, tf.MaxLengthCriteria))
        limit = max(1, most - width)  # transformers looks after the first token
        context = self.engine.target.limits.context
        longest = max(len(prompt.tokens) for prompt in prompts)
        if context is None:
            return limit
        if longest >= context:
            raise ContextError(
                f"a prompt has {longest} tokens, but {self.pair.name} has a context of {context}; "
                f"shorten it to {context - 1} at most"
            )
        return min(limit, context - longest)

    def _eos_ids(self) -> frozenset[int]:
        found = [c.eos_token_id for c in self.criteria if type(c) is tf.EosTokenCriteria]
        return frozenset(int(token) for ids in found for token in ids)

    def _row_criteria(self) -> list[tuple[Criterion, ...]]:
        """All criteria but length and EOS, as one, for every row."""
        counted = (tf.MaxLengthCriteria, tf.EosTokenCriteria)
        own = [criterion for criterion in self.criteria if type(criterion) not in counted]
        rows = len(self.input_ids)
        if not own:
            return [()] * rows
        together = None if self.pads else Together(rows)

        def row_criterion(row: int) -> Criterion:
            view = self._view(row)

            def stops(ids: Tensor, scores: Any = None) -> bool:
                ids = view(ids)
                every = [bool(torch.as_tensor(c(ids, scores)).all()) for c in own]  # each is asked
                met = any(every)
                return met if together is None else together.stops(row, ids.shape[1], met)

            return stops

        return [(row_criterion(row),) for row in range(rows)]

    def _pipelines(self) -> list[Pipeline]:
        """Every row's processors; the draft goes through the first stage and the last."""
        rows, device = len(self.input_ids), self.engine.target.device
        first, end = split(self.processors, pointwise=self.input_ids.device == device)
        pointwise = self.processors[end:]  # one tuple for all rows: they run together
        pipelines = []
        for row in range(rows):
            view = self._view(row)
            own = tuple(of_row(processor, row, rows) for processor in self.processors[:end])
            if view.needed(device):
                own = tuple(view.shown_to(processor) for processor in own)
            stages = own[:first], own[first:], pointwise
            pipelines.append(Pipeline(bool(self.config.do_sample), *stages))
        return pipelines

    def _view(self, row: int) -> View:
        return View(self.input_ids[row], int(self.mask[row].sum()))

    # Putting together.

    def steps(self, rows: Sequence[Row]) -> int:
        """How many steps of transformers' loop all rows have been through."""
        ended = [row.finished and self.pads for row in rows]
        if all(ended):
            return max(row.stats.new_tokens for row in rows)
        return min(row.stats.new_tokens for row, end in zip(rows, ended, strict=True) if not end)

    def token(self, row: Row, step: int) -> int:
        """What a row wrote at a step, or padding after its end."""
        position = row.prompt_length + step
        if position < len(row.tokens):
            return row.tokens[position]
        return int(self.config._pad_token_tensor)

    def output(self, rows: Sequence[Row]) -> Any:
        """What `generate` returns."""
        config, steps = self.config, self.steps(rows)
        new = [[self.token(row, step) for step in range(steps)] for row in rows]
        sequences = torch.cat([self.input_ids, self.input_ids.new_tensor(new)], dim=1)
        if not config.return_dict_in_generate:
            return sequences
        for row, tokens in zip(rows, new, strict=True):
            self._complete(row, tokens)
        kind: Any = GenerateEncoderDecoderOutput if self.seq2seq else GenerateDecoderOnlyOutput
        return kind(
            sequences=sequences,
            scores=self._stacked([r.scores for r in rows], steps) if config.output_scores else None,
            logits=self._stacked([r.logits for r in rows], steps) if config.output_logits else None,
        )

    def _stacked(self, rows: list[list[Tensor]], steps: int) -> tuple[Tensor, ...]:
        """[vocab] of every row and step → a tuple of [rows, vocab], one a step."""
        device = self.input_ids.device
        return tuple(torch.stack([row[step] for row in rows]).to(device) for step in range(steps))

    def _complete(self, row: Row, tokens: list[int]) -> None:
        """Go on with a row that has ended: transformers runs it on padding until all have, and
        reports what the model says of that."""
        request = row.request
        if not (request.keep_scores or request.keep_logits):
            return
        prefix = [*request.prompt.tokens, *tokens]
        known = len(row.tokens)
        for raw in continued(self.model, request.prompt, prefix, known):
            if request.keep_scores:
                row.scores.append(row.pipeline.at(prefix[:known], raw, custom=True))
            row.logits.append(raw.float())
            known += 1


def continued(model: Any, prompt: Prompt, tokens: Sequence[int], known: int) -> list[Tensor]:
    """The model's logits [vocab] at every position of `tokens` from `known` on."""
    if known >= len(tokens):
        return []
    runner = make_runner(model)
    logits = [runner.admit(Prompt(tuple(tokens[:known]), prompt.encoder)).clone()]
    if rest := list(tokens[known:-1]):
        logits += runner.forward(torch.tensor([rest], device=runner.device), [len(rest)])
    return list(torch.cat(logits))


class Together:
    """Ends rows together, where no EOS is set.

    transformers then lets a row that has met its criteria write on until all rows have met theirs.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.lengths: dict[int, int] = {}  # at which each row met its criteria

    def stops(self, row: int, length: int, met: bool) -> bool:
        """Whether a row ends at this length."""
        if met:
            self.lengths.setdefault(row, length)
        return len(self.lengths) == self.rows and length >= max(self.lengths.values())
