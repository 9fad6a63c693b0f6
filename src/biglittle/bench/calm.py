"""CALM beside early exit: every token leaves the target at the first layer that is sure enough.

Schuster et al. 2022, "Confident Adaptive Language Modeling", as Kim et al. 2023 (§7.2) compare
with it. There is no second look: a token that left early stays. Later tokens attend to it in the
layers that it skipped, too; there its keys and values are those layers' projections of the hidden
state that it left with. So the output is another than the target's: CALM is lossy.

It is for a model whose early layers were trained to predict. Its loop runs the model's own layers
on the cache that our own decoding uses, so that the two can be timed beside each other; and the
projections for skipped layers wait until a later token needs them, and are made together.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..decoding import Request, Row
from ..engines.base import Prompt
from ..engines.transformers import Seq2SeqRunner
from ..errors import PolicyError, UnsupportedModelError
from ..pair import Pair
from ..params import GenerationParams
from ..policy import build_rule, print_rule, split_rule
from ..results import Origin
from ..tensors import argmax
from .systems import Answer

__all__ = ["Calm", "CalmRule", "ExitRunner", "parse_calm"]

MODELS = ("t5", "mt5")


@dataclass(frozen=True, slots=True)
class CalmRule:
    """When a token leaves: after a layer whose confidence is above the threshold.

    Attributes:
        threshold: 0 … 1; at 1 no token leaves early.
        measure: "gap", the difference of the two largest probabilities that the head gives; or
            "similarity", the cosine of the layer's input and output, for which the head is not
            needed.
        decay: How fast the threshold sinks with the token's place: at token t of at most N it is
            0.9 · threshold + 0.1 · exp(−decay · t / N). 0 leaves it as it is.
        exits: The layers, from 1, after which a token may leave; () is all.

    Raises:
        PolicyError: A value out of its range.
    """

    name: ClassVar[str] = "calm"
    threshold: float
    measure: Literal["gap", "similarity"] = "gap"
    decay: float = 0.0
    exits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise PolicyError(f"calm: threshold={self.threshold!r} must be between 0 and 1")
        if not 0 <= self.decay < math.inf:
            raise PolicyError(f"calm: decay={self.decay!r} must be at least 0")
        ascending = all(a < b for a, b in itertools.pairwise((0, *self.exits)))
        if not ascending:
            raise PolicyError(f"calm: exits={self.exits!r} must ascend from 1 or later")

    def __str__(self) -> str:
        return print_rule(self.name, self)

    def at(self, token: int, most: int) -> float:
        """The threshold of the token at that place, from 0, of at most so many."""
        if not self.decay:
            return self.threshold
        return 0.9 * self.threshold + 0.1 * math.exp(-self.decay * token / most)


def parse_calm(text: str) -> CalmRule:
    """A rule from `0.9`, `0.9,decay=4` or `threshold=0.9,measure=similarity,exits=1/2`.

    Raises:
        PolicyError: Something else.
    """
    named = "=" in text.partition(",")[0]
    _, options = split_rule(f"calm:{text if named else f'threshold={text}'}", f"calm:{text}")
    if "threshold" not in options:
        raise PolicyError(f"calm: {text!r} has no threshold; write for example 0.9,{text}")
    rule = build_rule(CalmRule, CalmRule.name, options)
    assert isinstance(rule, CalmRule)
    return rule


@dataclass(frozen=True, slots=True)
class Calm:
    """The target, with tokens that leave early.

    Raises:
        UnsupportedModelError: A model that is not T5-like.
        PolicyError: An exit that the model does not have.
    """

    pair: Pair
    rule: CalmRule
    lossless: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        config = getattr(self.pair.target, "config", None)
        kind = getattr(config, "model_type", "GGUF")
        if kind not in MODELS:
            raise UnsupportedModelError(
                f"{self.pair.name}: CALM runs T5-like models ({', '.join(MODELS)}), and this one "
                f"is {kind}; leave CALM out"
            )
        total = len(self.pair.target.get_decoder().block)
        if self.rule.exits and self.rule.exits[-1] >= total:
            raise PolicyError(
                f"calm: exits={self.rule.exits!r}: {self.pair.name} has {total} layers, so they "
                f"must be below {total}"
            )

    @property
    def name(self) -> str:
        """The rule's string."""
        return str(self.rule)

    def answer(self, request: Request, params: GenerationParams) -> Answer:
        """See `System.answer`. Greedy; the first token has all layers."""
        started = time.perf_counter()
        row = Row(request, self.pair.tokenizer)
        runner = ExitRunner(self.pair.target, self.rule)
        logits = runner.begin(request.prompt)
        exits = [runner.total]
        while not row.push(self._choose(row, logits), Origin.TARGET):
            threshold = self.rule.at(len(exits), request.max_new_tokens)
            logits, layers = runner.step(row.tokens[-1], threshold)
            exits.append(layers)
        result = row.result()
        seconds = time.perf_counter() - started
        stats = row.stats
        stats.target_passes, stats.rounds = len(exits), len(exits) - 1
        stats.target_seconds = runner.stopwatch.seconds
        rounds = ((0, 0),) * stats.rounds
        return Answer(result.text, result.token_ids, seconds, stats, rounds, tuple(exits))

    def _choose(self, row: Row, logits: Tensor) -> int:
        """The likeliest token, [vocab] → id, after the request's processors."""
        logits = logits[: self.pair.vocab]
        if not row.pipeline.plain:
            logits = row.pipeline.at(row.tokens, logits, custom=True)
        return int(argmax(logits))


class ExitRunner(Seq2SeqRunner):
    """One row of a T5-like model, a token at a time, each as deep as it has to go.

    Args:
        model: The model.
        rule: When a token leaves.
    """

    def __init__(self, model: Any, rule: CalmRule) -> None:
        super().__init__(model)
        decoder = model.get_decoder()
        self._embed, self._norm = decoder.embed_tokens, decoder.final_layer_norm
        self._blocks = list(decoder.block)
        self.total = len(self._blocks)
        self._exits = frozenset(rule.exits or range(1, self.total))
        self._measure = {"gap": self._gap, "similarity": self._similarity}[rule.measure]
        scaled = getattr(model.config, "scale_decoder_outputs", False)
        self._scale = model.model_dim**-0.5 if scaled else None
        self._head = model.get_output_embeddings()

    @torch.inference_mode()
    def begin(self, prompt: Prompt) -> Tensor:
        """Read a prompt with all layers; the logits after it, [vocab]."""
        logits = self.admit(prompt)[0]
        self._first = self.lengths[0]
        self._filled = [self._first] * self.total  # slots of every layer that are there
        self._states: list[Tensor] = []  # what every later token left with, each [1, 1, size]
        self._encoder, _ = self._encoder_view(0, 1)  # one text has no padding to be masked
        self.cache.computed(True)
        return logits

    @torch.inference_mode()
    def step(self, token: int, threshold: float) -> tuple[Tensor, int]:
        """Read a token; the logits after it, [vocab], and how many layers it took."""
        slot = self.lengths[0]
        logits, bias, cross_bias = None, None, None
        with self.stopwatch:
            hidden = self._embed(torch.tensor([[token]], device=self.device))
            for index, block in enumerate(self._blocks, start=1):
                self._propagate(index - 1, slot)
                before = hidden
                hidden, bias, cross_bias = block(
                    hidden, None, bias, self._encoder, None, cross_bias, cache=self.cache
                )
                if index in self._exits:
                    logits = self._measure(hidden, before, threshold)
                    if logits is not None:
                        break
            if logits is None:
                logits = self._score(hidden)
        self._states.append(hidden)
        self.lengths[0] = slot + 1
        return logits, index

    def _propagate(self, layer: int, slot: int) -> None:
        """Fill a layer's slots before this one: with its own projections of the hidden states of
        tokens that left before they came to it."""
        first, self._filled[layer] = self._filled[layer], slot + 1
        if first < slot:
            attention = self._blocks[layer].layer[0]
            states = self._states[first - self._first : slot - self._first]
            normed = attention.layer_norm(torch.cat(states, dim=1))  # [1, tokens, size]
            own = attention.SelfAttention
            shape = (1, slot - first, own.n_heads, own.key_value_proj_dim)
            keys, values = (f(normed).view(shape).transpose(1, 2) for f in (own.k, own.v))
            self._slots.window.uniform(0, 1, first, slot - first)
            self._slots.update(keys, values, layer)
        self._slots.window.uniform(0, 1, slot, 1)

    def _gap(self, hidden: Tensor, before: Tensor, threshold: float) -> Tensor | None:
        """The logits, if their two largest probabilities are far enough apart."""
        logits = self._score(hidden)
        first, second = logits.float().softmax(-1).topk(2).values.tolist()
        return logits if first - second > threshold else None

    def _similarity(self, hidden: Tensor, before: Tensor, threshold: float) -> Tensor | None:
        """The logits, if the layer changed little."""
        cosine = float(functional.cosine_similarity(hidden[0, 0].float(), before[0, 0].float(), 0))
        return self._score(hidden) if min(cosine, 1.0) > threshold else None

    def _score(self, hidden: Tensor) -> Tensor:
        """Logits [vocab] of a hidden state [1, 1, size]."""
        states = self._norm(hidden)
        if self._scale is not None:
            states = states * self._scale
        logits: Tensor = self._head(states)[0, 0]
        return logits
