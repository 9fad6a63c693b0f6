"""Text from tokens, a whole character at a time, and stop strings, never shown."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import ByteTokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from biglittle.decoding.stopping import Detokenizer, StopStrings

SAMPLE = "naïve café – “quoted”, 你好, é, 😀👨‍👩‍👧, done"


def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's kind: a token is bytes, a space belongs to the word after it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate([*letters, "Ġc", "Ġca", "Ã©"])}
    bpe = Tokenizer(models.BPE(vocab, [("Ġ", "c"), ("Ġc", "a"), ("Ã", "©")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Llama's kind: words with a leading mark, unknown characters as bytes, and a decoder that
    strips the first space."""
    pieces = ["▁", *"acdefimnotuvwé,", "▁done", "▁caf", "na", *[f"<0x{n:02X}>" for n in range(256)]]
    vocab = [("<unk>", 0.0), *((piece, -float(n % 7) - 1) for n, piece in enumerate(pieces))]
    model = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    model.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    model.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>")


TOKENIZERS: dict[str, Any] = {
    "bytes": ByteTokenizer(),
    "byte-level": byte_level(),
    "pieces": sentence_piece(),
}


def encode(name: str, text: str) -> list[int]:
    tokenizer = TOKENIZERS[name]
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer.encode(text)
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def decode(name: str, tokens: list[int]) -> str:
    text: str = TOKENIZERS[name].decode(
        tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return text


def pieces(name: str, tokens: list[int], prompt: list[int]) -> list[str]:
    """What a `Detokenizer` says after every token, and at the end."""
    detokenizer = Detokenizer(TOKENIZERS[name], prompt)
    return [*map(detokenizer.push, tokens), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("prompt", ["", "hé ", "an emoji 😀"])
def test_the_pieces_are_the_text(name: str, prompt: str) -> None:
    tokens = encode(name, SAMPLE)
    before = encode(name, prompt) if prompt else []
    assert len(tokens) > 20
    found = pieces(name, tokens, before)
    assert not any("\ufffd" in piece for piece in found)
    whole, start = decode(name, before + tokens), decode(name, before)
    assert "".join(found) == whole[len(start) :]
    assert SAMPLE in whole


@pytest.mark.parametrize("name", ["bytes", "byte-level", "pieces"])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=12))
def test_the_pieces_of_any_text_are_the_text(name: str, text: str) -> None:
    before = encode(name, "a")
    tokens = encode(name, text)
    found = pieces(name, tokens, before)
    assert "".join(found) == decode(name, before + tokens)[1:]
    assert not any("\ufffd" in piece for piece in found)


@given(st.lists(st.integers(0, 300), max_size=14), st.lists(st.integers(0, 255), max_size=8))
def test_any_bytes_at_all_are_said_in_the_end(tokens: list[int], prompt: list[int]) -> None:
    """Broken characters too; what is said earlier stays true."""
    text = decode("bytes", tokens)
    found = pieces("bytes", tokens, [*prompt, ord("a")])
    assert "".join(found) == text
    for count in range(len(found)):
        assert text.startswith("".join(found[:count]))


def test_an_emoji_comes_whole() -> None:
    tokens = list("x😀y".encode())
    assert pieces("bytes", tokens, []) == ["x", "", "", "", "😀", "y", ""]


def test_special_tokens_have_no_text() -> None:
    assert pieces("bytes", [104, 256, 105, 257], []) == ["h", "", "i", "", ""]


def test_what_is_incomplete_is_said_last() -> None:
    assert pieces("bytes", list("é".encode())[:1], []) == ["", "\ufffd"]


# Stop strings.


def search(text: str, stops: list[str]) -> tuple[str, bool]:
    """Text up to the stop string that is complete first (the longest of those that end there)."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    st.text("ab", max_size=14),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 14), max_size=6),
)
def test_any_cut_gives_what_a_search_gives(text: str, stops: list[str], cuts: list[int]) -> None:
    marks = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    expected, found = search(text, stops)
    watch = StopStrings(stops)
    shown = ""
    for start, end in pairwise(marks):
        stopped = watch.push(text[start:end])
        assert watch.text.startswith(shown)  # what was shown is never taken back
        shown = watch.text[: watch.safe]
        assert expected.startswith(shown)
        assert stopped == watch.stopped
        if stopped:
            break
        possible = {stop[:n] for stop in stops for n in range(1, len(stop))}
        held = watch.text[watch.safe :]
        assert not held or held in possible  # no more is held back than may become a stop string
    watch.finish()
    assert (watch.text, watch.stopped) == (expected, found)
    assert watch.text[: watch.safe] == expected


def test_a_stop_string_over_several_pieces() -> None:
    watch = StopStrings(["STOP"])
    assert not watch.push("well ST")
    assert watch.text[: watch.safe] == "well "
    assert not watch.push("O")
    assert not watch.push("NE ")  # it was none
    assert watch.text[: watch.safe] == "well STONE "
    assert watch.push("STOP it")
    assert watch.text[: watch.safe] == "well STONE "


def test_without_stop_strings_all_text_is_safe() -> None:
    watch = StopStrings(())
    assert not watch.push("anything")
    assert watch.safe == 8
