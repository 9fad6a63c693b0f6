"""A GGUF file's own tokenizer, with the interface that the core asks of a transformers one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers.utils.chat_template_utils import render_jinja_template

from .binding import library

if TYPE_CHECKING:
    from .context import Weights

__all__ = ["GgufTokenizer"]

UNUSED = 1 << 1  # llama.cpp's attributes of a token: padding of the embedding
CONTROL = 1 << 3


class Encoding(NamedTuple):
    """What a call returns."""

    input_ids: list[int]
    attention_mask: list[int]


class GgufTokenizer:
    """Tokenizes with llama.cpp, as the file says."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights  # the vocabulary lives in the model
        self._vocab = library().llama_model_get_vocab(weights.pointer)
        self._count = int(library().llama_vocab_n_tokens(self._vocab))
        template = library().llama_model_chat_template(weights.pointer, None)
        self.chat_template: str | None = template.decode("utf8") if template else None

    def __call__(self, text: str, add_special_tokens: bool = True) -> Encoding:
        """Token ids; special tokens that are written out in the text are recognised."""
        ids = self.encode(text, add_special_tokens=add_special_tokens)
        return Encoding(ids, [1] * len(ids))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        raw = text.encode("utf8", errors="replace")
        size = len(raw) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            found = library().llama_tokenize(
                self._vocab, raw, len(raw), buffer, size, add_special_tokens, True
            )
            if found >= 0:
                return list(buffer[:found])
            size = -found

    def decode(
        self,
        token_ids: int | Iterable[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """The text of tokens; bytes that are no whole character become U+FFFD, and ids that are
        no tokens nothing."""
        given = [token_ids] if isinstance(token_ids, int) else token_ids
        # Of others llama.cpp would end the process.
        ids = [int(token) for token in given if 0 <= token < self._count]
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        size = 16 * len(ids) + 16
        while True:
            buffer = ctypes.create_string_buffer(size)
            found = library().llama_detokenize(
                self._vocab, tokens, len(ids), buffer, size, False, not skip_special_tokens
            )
            if found >= 0:
                return buffer.raw[:found].decode("utf8", errors="replace")
            size = -found

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tokenize: bool = False,
        add_generation_prompt: bool = False,
    ) -> str:
        """The conversation as the file's template writes it."""
        if tokenize:
            raise ValueError("tokenize the text yourself, with add_special_tokens=False")
        rendered: Any = render_jinja_template(
            conversations=[[dict(message) for message in conversation]],
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._named("bos"),
            eos_token=self._named("eos"),
        )
        text: str = rendered[0][0]
        return text

    @property
    def vocabulary(self) -> Any:
        """llama.cpp's own object, for libraries that read it; it lives as long as the model."""
        return self._vocab

    def get_vocab(self) -> dict[str, int]:
        """Every token and its id, without those that only pad the embedding."""
        return dict(self._tokens)

    @cached_property
    def _tokens(self) -> dict[str, int]:
        used = self._ids(
            lambda vocab, token: not library().llama_vocab_get_attr(vocab, token) & UNUSED
        )
        return {self._text(token): token for token in used}

    @cached_property
    def all_special_ids(self) -> list[int]:
        """Ids of tokens that stand for no text."""
        return self._ids(
            lambda vocab, token: library().llama_vocab_get_attr(vocab, token) & CONTROL
        )

    @property
    def all_special_tokens(self) -> list[str]:
        """How they are written."""
        return [self._text(token) for token in self.all_special_ids]

    @cached_property
    def end_ids(self) -> list[int]:
        """Ids that end a text: end of sequence, of turn, of file …"""
        return self._ids(library().llama_vocab_is_eog)

    @property
    def eos_token_id(self) -> int | None:
        """The end of a sequence."""
        token = int(library().llama_vocab_eos(self._vocab))
        return token if token >= 0 else None

    def _named(self, role: str) -> str:
        """How the token is written that the file gives this role; llama.cpp makes one up where
        there is none."""
        token = self._weights.metadata(f"tokenizer.ggml.{role}_token_id")
        return self._text(int(token)) if token else ""

    def _ids(self, holds: Callable[[Any, int], Any]) -> list[int]:
        """The tokens of which something holds, asked with the vocabulary and the id."""
        return [token for token in range(self._count) if holds(self._vocab, token)]

    def _text(self, token: int) -> str:
        if not 0 <= token < self._count:
            return ""
        text: bytes = library().llama_vocab_get_text(self._vocab, token)
        return text.decode("utf8", errors="replace")
