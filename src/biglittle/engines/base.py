"""The runner protocol: rows of one model, to which tokens are appended and taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig

from .timing import Stopwatch

__all__ = ["EncoderInput", "Limits", "Model", "Prompt", "Runner", "Saved", "common"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a runner can hold; None is no limit."""

    context: int | None = None
    """Tokens of one row."""
    rows: int | None = None
    """Rows at a time."""
    pooled: bool = False
    """Whether rows take no more room than they hold, and no more of a pass than they feed; else
    every row takes as much as the longest one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a row starts from."""

    tokens: tuple[int, ...]
    """The (decoder's) tokens, at least one."""
    encoder: Mapping[str, Tensor] | None = field(default=None, compare=False)
    """The encoder's inputs, each [1, ...], e.g. `input_ids` and `attention_mask`, or
    `input_features`; None for causal models. With `encoder_outputs` [1, span, dim] among them, the
    target's encoder has run already."""

    @property
    def bare(self) -> bool:
        """Whether the encoder's input is all: the decoder has but the token that it starts from."""
        return self.encoder is not None and len(self.tokens) == 1

    @property
    def source_length(self) -> int:
        """Tokens that the encoder reads; 0 where there is none, or it reads no tokens."""
        ids = (self.encoder or {}).get("input_ids")
        return 0 if ids is None else int(ids.shape[1])


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """What a model's encoder reads."""

    model: str
    """The model, for messages."""
    main: str
    """Its main input: "input_ids", or for example "input_features"."""
    names: frozenset[str]
    """All its inputs."""
    stand_ins: frozenset[str] = frozenset({"inputs_embeds", "encoder_outputs"})
    """What may be given in place of the main one."""
    tokens: int | None = None
    """The most tokens of text; None is no limit."""
    features: tuple[int, int] | None = None
    """Mel bins and frames of audio, where they are fixed."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The cached state of a row that was: what a later prompt with the same beginning reuses."""

    tokens: tuple[int, ...]
    """The tokens that the state stands for."""
    state: Any
    """The engine's own."""

    def shared(self, tokens: Sequence[int]) -> int:
        """How many of a prompt's tokens need not be read again: their common beginning, short of
        the last one, whose logits are needed."""
        return common(self.tokens, tokens[:-1])


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens of the common beginning."""
    differing = (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, min(len(a), len(b)))


class Runner(Protocol):
    """Rows of one model. Rows are numbered 0 … `rows` − 1 without gaps.

    A row's length is the number of its tokens that are in the cache; `forward` appends, `truncate`
    takes back. Logits may be borrowed memory, valid until the next forward.
    """

    name: str
    """For messages and reports."""
    vocab: int
    """Entries of the head."""
    device: torch.device
    limits: Limits
    lengths: list[int]
    """Cached tokens of every row."""
    reused: int
    """Tokens of the last prompt admitted that were not computed again."""
    stopwatch: Stopwatch
    """Runs while the model does."""

    def admit(
        self, prompt: Prompt, saved: Saved | None = None, *, most: int | None = None
    ) -> Tensor:
        """Append a row, read its prompt, and return the logits after its last token: [1, vocab].

        What `saved` shares with the prompt is not computed again, where the engine still has it:
        `reused` says how much that was. With `most`, at least 1, no more tokens are read than
        that; `read` goes on. Where there is an encoder it may be 0: only its input is read, and
        there are no logits, [0, vocab].
        """

    def read(self, row: int, tokens: Sequence[int]) -> Tensor:
        """Append tokens, at least one, to one row; the logits after the last one: [1, vocab]."""

    def fork(self, row: int, length: int | None = None) -> int:
        """Append a row that begins with another's first `length` tokens, by default all of them.

        How many the new row holds: fewer than asked for where the engine cannot cut that row.
        """

    def forward(self, tokens: Tensor, counts: Sequence[int], *, last: bool = False) -> Tensor:
        """Append `counts[i]` of `tokens[i]` to every row i of the first ones, as many as `tokens`
        has; what lies behind them does not move.

        Args:
            tokens: [rows, width] int64, each row's tokens first, then anything.
            counts: Tokens of every row, in 0 … width; not all 0.
            last: Whether only the logits after each row's last token are wanted.

        Returns:
            Logits [rows, width, vocab], or [rows, 1, vocab] for `last`; those past a row's count
            mean nothing.
        """

    def truncate(self, lengths: Sequence[int]) -> None:
        """Lower the length of the first rows, as many as there are lengths, in O(1). A row that is
        shorter already stays as it is."""

    def swap(self, a: int, b: int) -> None:
        """Let two rows exchange their numbers."""

    def release(self, row: int) -> None:
        """Remove a row; the last row takes its number."""

    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        """Keep a row's state beyond its release; `tokens` are the row's tokens.

        None where the engine cannot."""


class Model(Protocol):
    """A model in memory, as an engine holds it."""

    name: str
    """For messages and reports."""

    @property
    def summary(self) -> str:
        """How it runs, e.g. "bfloat16 on cpu": for reports."""

    @property
    def fingerprint(self) -> str:
        """A short hash by which its weights are known again: it changes with them, and not with
        how they lie in memory."""

    @property
    def resolution(self) -> float:
        """By how much of themselves its logits move with what is computed beside them."""

    @property
    def vocab(self) -> int:
        """Entries of the head."""

    @property
    def device(self) -> torch.device:
        """Where logits come from."""

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer, where the model holds one; None where that lies beside it."""

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's own defaults."""

    def encoder_input(self) -> EncoderInput | None:
        """What its encoder reads; None without one."""

    def decoder_start(self) -> tuple[int, ...]:
        """What the decoder of an encoder-decoder model starts from."""

    def runner(self, *, adapters: bool = True) -> Runner:
        """A runner without rows. `adapters` says whether PEFT adapters inside the model act."""

    def shares_weights(self, other: Model) -> bool:
        """Whether the other model is this one, or made of its modules."""
