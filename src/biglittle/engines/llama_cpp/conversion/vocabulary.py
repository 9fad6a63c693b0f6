"""A Hugging Face tokenizer as GGUF metadata, with which llama.cpp must tokenize alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gguf
from gguf import TokenType

from ....errors import UnsupportedModelError
from ..model import read_tokenizer
from ..tokenizer import GgufTokenizer

__all__ = ["SAMPLES", "Vocabulary", "fit", "read_vocabulary"]

PRE_TOKENIZERS = (
    "qwen2",
    "llama-bpe",
    "smollm",
    "gpt-2",
    "tekken",
    "gpt-4o",
    "smaug-bpe",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "qwen35",
    "seed-coder",
    "command-r",
    "falcon",
    "default",
)
"""Names of llama.cpp's ways to split a text before merging, likely ones first."""

SAMPLES = (
    "Hello, world! It's a test; they've won't I'LL we'd.",
    "In 1969, 3.14159 of 1234567890 people paid $12,345.67 (99%).",
    "  two spaces,   three,    four\tand\t\ttabs \n\n\n  lines\r\n\r\n end   ",
    "def f(x: int) -> int:\n    return x**2 + 10  # naïve\n\n\nclass A_b:\n\tpass\n",
    "for (int i = 0; i < 100; ++i) { a[i] &= ~(1u << 31); } // \\n != \"\\t\"",
    "Größe, façade, naïve, Ærøskøbing, Žluťoučký kůň, ΑΒΓ αβγ, Привет, мир!",
    "東京は日本の首都です。你好，世界！안녕하세요 세계 مرحبا بالعالم नमस्ते दुनिया ภาษาไทย",
    "🙂👍🏽 👩‍👩‍👧 ½ ² ③ Ⅷ ™ … — “quoted” ‘s’ \u00a0\u2003\u3000",
    "camelCase HTTPServer XMLParser2 snake_case-kebab.dot/slash\\back@at#hash",
    "\n", " ", "   ", "\n \n", "a", " a", "1", "...!!!???\n\n---\n***\n",
    "https://example.com/a?b=1&c=%20#d <b>bold</b> {\"k\": [1, 2, null]}",
)  # fmt: skip
"""Texts that tell ways of splitting apart."""

BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer, in the terms of a GGUF file.

    Attributes:
        model: "gpt2" for byte-level BPE, "llama" for BPE over characters that falls back on
            bytes.
        tokens: As many as the model's head has entries.
        types: Of every token.
        merges: Most important first; how "gpt2" merges.
        scores: Of every token; how "llama" merges.
        ids: Of special tokens, by the name of their key.
        add: Whether BOS and EOS are put around a text.
        ends: Ids that end a text.
        chat_template: Jinja source, or several by name.
        pre: How a text is split before merging.
        space: Whether a text begins with a space that is not in it.
    """

    model: str
    tokens: list[str]
    types: list[TokenType]
    merges: list[str]
    scores: list[float]
    ids: dict[str, int]
    add: dict[str, bool]
    ends: tuple[int, ...]
    chat_template: str | Mapping[str, str] | None
    pre: str = "default"
    space: bool = False

    def candidates(self) -> Iterator[Vocabulary]:
        """The same with every way of splitting that llama.cpp has for it."""
        if self.model == "gpt2":
            yield from (replace(self, pre=pre) for pre in PRE_TOKENIZERS)
        else:
            yield from (replace(self, space=space) for space in (False, True))

    def ending(self, known: Sequence[int]) -> Vocabulary:
        """The same, with keys for ends of text that llama.cpp does not know by themselves."""
        extra = [token for token in self.ends if token not in known]
        names = zip(("eot", "eom"), extra, strict=False)
        return replace(self, ids={**self.ids, **dict(names)})

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Write the tokenizer's keys."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.model == "gpt2":
            writer.add_token_merges(self.merges)
        else:
            writer.add_token_scores(self.scores)
            writer.add_add_space_prefix(self.space)
        for name, token in self.ids.items():
            getattr(writer, f"add_{name}_token_id")(token)
        for name, added in self.add.items():
            getattr(writer, f"add_add_{name}_token")(added)
        if isinstance(self.chat_template, str):
            writer.add_chat_template(self.chat_template)
        elif self.chat_template is not None:
            several = self.chat_template.items()
            writer.add_chat_template([{"name": k, "template": v} for k, v in several])


def read_vocabulary(name: str, tokenizer: Any, size: int, ends: Sequence[int]) -> Vocabulary:
    """The vocabulary of a tokenizer.

    Args:
        name: The model's, for errors.
        tokenizer: A fast tokenizer of transformers.
        size: Entries of the model's head.
        ends: Ids that end a text, by the model's generation config.

    Raises:
        UnsupportedModelError: A kind of tokenizer that llama.cpp does not have, or one that does
            not fit the model.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedModelError(f"{name}: its tokenizer has no tokenizer.json to convert from")
    data = json.loads(backend.to_str())
    model = _kind(name, data)
    tokens = _tokens(name, data, size)
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    ends = _ends(name, tokenizer, ends, size)
    wrapped = tokenizer("a")["input_ids"]
    ids = {"bos": tokenizer.bos_token_id, "eos": ends[0], "pad": tokenizer.pad_token_id}
    if model == "llama":
        ids["unk"] = backend.token_to_id(data["model"]["unk_token"] or "")
    return Vocabulary(
        model=model,
        tokens=tokens,
        types=_types(data, tokens, model),
        merges=merges,
        scores=_scores(merges, tokens) if model == "llama" else [],
        ids={name: token for name, token in ids.items() if token is not None},
        add={"bos": wrapped[0] == tokenizer.bos_token_id, "eos": wrapped[-1] == ends[0]},
        ends=tuple(ends),
        chat_template=tokenizer.chat_template,
    )


def _kind(name: str, data: Mapping[str, Any]) -> str:
    """llama.cpp's name for the kind of tokenizer."""
    model = data["model"]
    if model["type"] == "BPE" and model.get("byte_fallback"):
        if not model["vocab"].keys() >= BYTES:  # llama.cpp would end the process
            raise UnsupportedModelError(
                f"{name}: its tokenizer falls back on bytes, but does not have all 256 of them"
            )
        return "llama"
    if model["type"] == "BPE" and '"ByteLevel"' in json.dumps(data["pre_tokenizer"]):
        return "gpt2"
    raise UnsupportedModelError(
        f"{name}: cannot convert its tokenizer ({model['type']}); known: byte-level BPE, and BPE "
        "with byte fallback"
    )


def _tokens(name: str, data: Mapping[str, Any], size: int) -> list[str]:
    """Every token by its id, and names for ids that only pad the head."""
    found = {token: text for text, token in data["model"]["vocab"].items()}
    found |= {added["id"]: added["content"] for added in data["added_tokens"]}
    if (most := max(found)) >= size:
        raise UnsupportedModelError(
            f"{name}: its tokenizer has an id {most}, but its head has {size} entries; resize the "
            "model's embedding first"
        )
    tokens = [found.get(token, f"[PAD{token}]") for token in range(size)]
    if len(set(tokens)) < size:  # llama.cpp would end the process
        raise UnsupportedModelError(f"{name}: its tokenizer has two ids for the same token")
    return tokens


def _types(data: Mapping[str, Any], tokens: Sequence[str], model: str) -> list[TokenType]:
    added = {token["id"]: token["special"] for token in data["added_tokens"]}
    vocab = data["model"]["vocab"]

    def kind(token: int, text: str) -> TokenType:
        if model == "llama" and text == data["model"]["unk_token"]:
            return TokenType.UNKNOWN
        if token in added:
            return TokenType.CONTROL if added[token] else TokenType.USER_DEFINED
        if text not in vocab:
            return TokenType.UNUSED
        if model == "llama" and text in BYTES:
            return TokenType.BYTE
        return TokenType.NORMAL

    return [kind(token, text) for token, text in enumerate(tokens)]


def _scores(merges: Sequence[str], tokens: Sequence[str]) -> list[float]:
    """Of every token, so that the highest score is the merge that comes first."""
    first: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        first.setdefault(merge.replace(" ", ""), rank)
    return [-float(first.get(token, len(merges))) for token in tokens]


def _ends(name: str, tokenizer: Any, ends: Sequence[int], size: int) -> list[int]:
    """Ids that end a text, the tokenizer's own first."""
    own = tokenizer.eos_token_id
    found = list(ends) or [own]
    if found == [None]:
        raise UnsupportedModelError(
            f"{name}: neither its tokenizer nor its generation config has an end-of-sequence "
            "token, which a GGUF file needs; set one"
        )
    for token in found:
        if not 0 <= token < size:
            raise UnsupportedModelError(
                f"{name}: by its generation config a text ends with id {token}, but its head has "
                f"{size} entries; correct the config"
            )
    return sorted(found, key=lambda token: token != own)


def fit(
    name: str, vocabulary: Vocabulary, tokenizer: Any, write: Callable[[Vocabulary], Path]
) -> tuple[Vocabulary, str | None]:
    """The vocabulary with the way of splitting that makes llama.cpp tokenize as the original does.

    One exception: where SentencePiece and llama.cpp begin every piece of a text with a space,
    transformers leaves it out before a space and after a special token.

    Args:
        name: The model's, for errors.
        vocabulary: As `read_vocabulary` gives it.
        tokenizer: The original.
        write: Writes a GGUF file without tensors.

    Returns:
        The vocabulary, and what differs by that exception, if anything does.

    Raises:
        UnsupportedModelError: There is none; with a text where the closest one differs.
    """
    closest: list[Difference] = []
    for candidate in vocabulary.candidates():
        fitted = read_tokenizer(write(candidate))
        found = list(_differences(tokenizer, fitted, candidate.ends))
        if not found:
            return candidate.ending(fitted.end_ids), None
        if candidate.space and all(difference.of_space for difference in found):
            return candidate.ending(fitted.end_ids), found[0].message
        if not closest or len(found) < len(closest):
            closest = found
    raise UnsupportedModelError(
        f"{name}: llama.cpp cannot tokenize as it does: {closest[0].message}; use it through "
        "transformers"
    )


class Difference(NamedTuple):
    """A text that two tokenizers do not split alike."""

    message: str
    of_space: bool
    """Whether it begins with a space or has a special token in it."""


def _differences(original: Any, fitted: GgufTokenizer, ends: Sequence[int]) -> Iterator[Difference]:
    specials = original.convert_ids_to_tokens(ends)
    chats = [text for s in specials for text in (f"a{s}b", f"One. {s} two", f"{s}\nuser\nHi{s}\n")]
    for text in (*SAMPLES, *chats):
        for special in (True, False):
            wanted = original(text, add_special_tokens=special)["input_ids"]
            given = fitted.encode(text, add_special_tokens=special)
            if given != wanted:
                message = _difference(original, text, wanted, given)
                yield Difference(message, text in chats or text.startswith(" "))


def _difference(original: Any, text: str, wanted: Sequence[int], given: Sequence[int]) -> str:
    pairs = zip(wanted, given, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(given)))
    was, now = (original.convert_ids_to_tokens(list(ids[at : at + 3])) for ids in (wanted, given))
    return f"in {text!r} it has {was}, where llama.cpp has {now}"
