"""What a caller may give as a prompt, turned into what a row starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .engines.base import EncoderInput, Prompt
from .errors import ContextError, ParameterError, nearest

__all__ = ["PromptLike", "Prompts"]

PromptLike = Any
"""Text, chat messages, token ids (a list or a tensor), a mapping of encoder inputs; or a list of
any of these, or a 2-D tensor of token ids."""


class Prompts:
    """Reads prompts for one model.

    Args:
        tokenizer: May be None; then prompts are token ids or encoder inputs.
        encoder: What the encoder that prompts feed reads; None for decoder-only models.
        start: What the decoder of an encoder-decoder model starts from.
        vocab: Token ids are below this.
        context: The most tokens of a row, or None.
        name: Of the model, for messages.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        encoder: EncoderInput | None,
        start: Sequence[int],
        vocab: int,
        context: int | None,
        name: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._start = tuple(start)
        self._vocab = vocab
        self._context = context
        self._name = name

    def read(self, prompts: PromptLike) -> tuple[list[Prompt], bool]:
        """All prompts, and whether it is a single one.

        Raises:
            ParameterError: Something that is no prompt, or an empty one.
            ContextError: A prompt that leaves no room for a token.
        """
        if is_single(prompts):
            return [self._one(prompts)], True
        items = list(prompts)
        if not items:
            raise ParameterError("there are no prompts: the list is empty")
        return [self._one(item, index) for index, item in enumerate(items)], False

    def _one(self, prompt: Any, index: int | None = None) -> Prompt:
        where = "the prompt" if index is None else f"prompt {index}"
        if isinstance(prompt, Mapping) or self._encoder is not None:
            return self._encoder_prompt(prompt, where)
        return self._checked(self._ids(prompt, where), where)

    def _ids(self, prompt: Any, where: str) -> list[int]:
        if isinstance(prompt, str):
            if not prompt:
                raise ParameterError(f"{where} is empty")
            _check_unicode(prompt, where)
            return list(self._need_tokenizer(where)(prompt).input_ids)
        if is_chat(prompt):
            return self.chat_ids(prompt, where)
        ids = prompt.tolist() if isinstance(prompt, Tensor) else prompt
        whole = isinstance(ids, Sequence) and not isinstance(ids, bytes)
        if not whole or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ParameterError(f"{where} is neither text, chat messages nor token ids")
        return list(ids)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], where: str = "the chat") -> list[int]:
        """Token ids of chat messages, ready for the assistant's turn."""
        tokenizer = self._need_tokenizer(where)
        if not getattr(tokenizer, "chat_template", None):
            raise ParameterError(f"{self._name} has no chat template; give text instead")
        for message in messages:
            _check_unicode(str(message.get("content", "")), where)
        try:
            text = tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as cause:  # templates raise their own errors for roles they refuse
            reason = " ".join(str(cause).split())
            raise ParameterError(f"{where}: the chat template refuses it: {reason}") from cause
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    def _encoder_prompt(self, prompt: Any, where: str) -> Prompt:
        if self._encoder is None and "content" in prompt:
            raise ParameterError(f"{where} is a chat message without a role; give it one")
        if self._encoder is None:
            raise ParameterError(f"{where} holds encoder inputs, but {self._name} has no encoder")
        start = self._start
        if isinstance(prompt, Mapping):
            inputs = {name: _as_batch(name, value, where) for name, value in prompt.items()}
            if "decoder_input_ids" in inputs:
                start = tuple(_whole_row("decoder_input_ids", inputs, where))
                del inputs["decoder_input_ids"]
        else:
            ids = torch.tensor([self._ids(prompt, where)], dtype=torch.long)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        self._check_encoder(inputs, self._encoder, where)
        if not start:
            raise ParameterError(
                f"{self._name} does not say what its decoder starts from; give "
                "decoder_input_ids with the encoder's inputs"
            )
        return self._checked(list(start), where, inputs)

    def _check_encoder(self, inputs: dict[str, Tensor], reads: EncoderInput, where: str) -> None:
        for name in inputs:
            if name not in reads.names:
                raise ParameterError(
                    f"{where}: {reads.model} has no input {name!r}; it reads "
                    f"{', '.join(sorted(reads.names))}{nearest(name, reads.names)}"
                )
        if not {reads.main, *reads.stand_ins} & inputs.keys():
            raise ParameterError(
                f"{where} has no {reads.main}, which {reads.model} reads; give "
                f"{{{reads.main!r}: ...}}"
            )
        if "input_ids" in inputs:
            self._check_text(inputs, reads, where)
        features = inputs.get("input_features")
        if features is not None and reads.features not in (None, tuple(features.shape[1:])):
            raise ParameterError(
                f"{where}: input_features of shape {list(features.shape)}, but {reads.model} reads "
                f"{[1, *reads.features]}: mel bins and frames"
            )

    def _check_text(self, inputs: dict[str, Tensor], reads: EncoderInput, where: str) -> None:
        ids = _whole_row("input_ids", inputs, where)
        self._check_range(ids, where)
        if reads.tokens is not None and len(ids) > reads.tokens:
            raise ContextError(
                f"{where} has {len(ids)} tokens, but the encoder of {reads.model} reads "
                f"{reads.tokens} at most; shorten it"
            )
        mask = inputs.get("attention_mask")
        if mask is not None and mask.shape != (1, len(ids)):
            raise ParameterError(
                f"{where}: attention_mask of shape {list(mask.shape)} for {len(ids)} tokens"
            )

    def _checked(
        self, ids: list[int], where: str, encoder: Mapping[str, Tensor] | None = None
    ) -> Prompt:
        self._check_range(ids, where)
        if self._context is not None and len(ids) >= self._context:
            raise ContextError(
                f"{where} has {len(ids)} tokens, but {self._name} has a context of "
                f"{self._context}; shorten it to {self._context - 1} at most"
            )
        return Prompt(tuple(ids), encoder)

    def _check_range(self, ids: list[int], where: str) -> None:
        if not ids:
            raise ParameterError(f"{where} is empty")
        outside = [token for token in ids if not 0 <= token < self._vocab]
        if outside:
            raise ParameterError(
                f"{where}: token id {outside[0]} is outside the vocabulary of {self._vocab}"
            )

    def _need_tokenizer(self, where: str) -> Any:
        if self._tokenizer is None:
            raise ParameterError(
                f"{where} is text, but the pair has no tokenizer; pass tokenizer= to load or Pair, "
                "or give token ids"
            )
        return self._tokenizer


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as cause:  # bytes of another encoding, half a surrogate pair
        raise ParameterError(f"{where} is not valid Unicode text; convert it first") from cause


def is_chat(prompt: Any) -> bool:
    """Whether it is a list of chat messages."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and bool(prompt)
        and all(isinstance(m, Mapping) and "role" in m for m in prompt)
    )


def is_single(prompt: Any) -> bool:
    """Whether it is one prompt, rather than a list of prompts."""
    if isinstance(prompt, str | Mapping) or is_chat(prompt):
        return True
    if isinstance(prompt, Tensor):
        return prompt.dim() == 1
    if not isinstance(prompt, Sequence):
        raise ParameterError(
            f"a prompt is text, chat messages, token ids or encoder inputs, not "
            f"{type(prompt).__name__}"
        )
    return bool(prompt) and isinstance(prompt[0], int)


def _whole_row(name: str, inputs: Mapping[str, Tensor], where: str) -> list[int]:
    """The token ids of an input [1, tokens]."""
    ids = inputs[name]
    if not ids.numel():
        raise ParameterError(f"{where}: {name} is empty")
    if ids.dim() != 2 or ids.is_floating_point():
        raise ParameterError(f"{where}: {name} must be whole numbers, [1, tokens]")
    row: list[int] = ids[0].tolist()
    return row


def _as_batch(name: str, value: Any, where: str) -> Tensor:
    """An encoder input with its leading dimension of one."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise ParameterError(f"{where}: {name} is neither a tensor nor numbers") from cause
    bare = 2 if tensor.is_floating_point() else 1  # e.g. mel features [bins, frames]
    if tensor.dim() <= bare:
        tensor = tensor[None]
    if tensor.shape[0] != 1:
        raise ParameterError(
            f"{where}: give encoder inputs one row at a time, as a list of mappings"
        )
    return tensor
