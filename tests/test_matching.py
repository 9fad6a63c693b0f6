"""Which models can work together, and what a draft's description means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as tf
from tests.identity.more_models import build as build_more
from tests.models import build
from tests.reports.helpers import bytes_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers

from biglittle import IncompatiblePairError, Pair, ParameterError
from biglittle.matching import DraftSpec, check_tokenizers, parse_draft, shared_vocab


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        (None, DraftSpec()),
        ("prompt-lookup", DraftSpec(ngram=3)),
        ("prompt-lookup:ngram=5", DraftSpec(ngram=5)),
        ("early-exit:layers=4", DraftSpec(layers=4)),
        ("owner/model", DraftSpec(model="owner/model")),
        ("smollm2-135m-instruct", DraftSpec(model="smollm2-135m-instruct")),
        (Path("folder"), DraftSpec(model=Path("folder"))),
    ],
)
def test_what_a_draft_means(text: Any, spec: DraftSpec) -> None:
    assert parse_draft(text) == spec
    assert parse_draft(spec) is spec
    assert spec.drafts == (text is not None)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("early-exit", "early-exit:layers=NUMBER"),
        ("early-exit:layers=0", "layers=NUMBER"),
        ("early-exit:layers=two", "layers=NUMBER"),
        ("early-exit:layer=2", "did you mean 'layers'"),
        ("early-exit:layers=2,ngram=3", "layers=NUMBER"),
        ("prompt-lookup:ngram=-1", "ngram=NUMBER"),
        ("prompt-lookup:ngrams=3", "did you mean 'ngram'"),
        ("promt-lookup", "did you mean 'prompt-lookup'"),
        ("prompt_lookup:ngram=3", "did you mean 'prompt-lookup'"),
        ("earlyexit:layers=2", "did you mean 'early-exit'"),
    ],
)
def test_drafts_that_mean_nothing(text: str, word: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_draft(text)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_called_like_a_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt-look-up").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_draft("prompt-look-up") == DraftSpec(model="prompt-look-up")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (DraftSpec(), "None"),
        (DraftSpec(ngram=3), "prompt-lookup:ngram=3"),
        (DraftSpec(layers=2), "early-exit:layers=2"),
    ],
)
def test_specs_print_as_they_are_written(spec: DraftSpec, text: str) -> None:
    assert str(spec) == text


def words(count: int, **other: str) -> Any:
    """A tokenizer of so many words, some of them other ones."""
    names = [other.get(f"w{i}", f"w{i}") for i in range(count)]
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="w0")


def test_what_a_head_has_beyond_the_tokenizer_is_padding() -> None:
    assert shared_vocab(104, words(100)) == 100
    assert shared_vocab(100, words(104)) == 100
    assert shared_vocab(104, None) == 104
    with pytest.raises(ParameterError, match="int is not a transformers tokenizer"):
        shared_vocab(100, 3)


def test_tokenizers_of_one_family() -> None:
    check_tokenizers(words(100), words(104), "big", "little")
    check_tokenizers(words(100), words(100), "big", "little")
    check_tokenizers(words(100), None, "big", "little")
    check_tokenizers(None, words(100), "big", "little")


@pytest.mark.parametrize("other", [words(100, w7="else"), bytes_tokenizer()])
def test_other_tokenizers(other: Any) -> None:
    with pytest.raises(IncompatiblePairError) as caught:
        check_tokenizers(words(100), other, "big", "little")
    message = str(caught.value)
    assert message.startswith("big and little have different tokenizers: ")
    assert "prompt-lookup" in message


def test_tokenizers_of_two_pairs_are_compared_when_the_pair_is_built() -> None:
    with pytest.raises(IncompatiblePairError, match="different tokenizers"):
        Pair(build("llama"), build("qwen2"), words(97), words(97, w7="else"))
    Pair(build("llama"), build("qwen2"), words(97), words(97))


@pytest.mark.parametrize(
    ("target", "draft", "word"),
    [
        ("llama", "bart", "decoder-only model and BartForConditionalGeneration is an encoder"),
        ("t5", "gpt2", "encoder-decoder model and GPT2LMHeadModel is a decoder-only"),
        ("bart", "whisper", "reads input_ids and WhisperForConditionalGeneration input_features"),
        ("whisper", "bart", "reads input_features and BartForConditionalGeneration input_ids"),
    ],
)
def test_kinds_that_do_not_go_together(target: str, draft: str, word: str) -> None:
    with pytest.raises(IncompatiblePairError, match=word):
        Pair(build(target), build(draft))


def test_audio_models_that_hear_otherwise() -> None:
    settings = {"max_source_positions": 16, "max_target_positions": 32}
    name = "WhisperForConditionalGeneration"
    big, little = (build_more(name, num_mel_bins=bins, **settings) for bins in (8, 16))
    with pytest.raises(IncompatiblePairError, match="8 mel bins and .* 16"):
        Pair(big, little)


@pytest.mark.parametrize(("little", "fits"), [(97, True), (104, True), (60, True), (30, False)])
def test_heads_without_tokenizers(little: int, fits: bool) -> None:
    draft = build_more("LlamaForCausalLM", vocab_size=little)
    if fits:
        assert Pair(build("llama"), draft).vocab == min(97, little)
        return
    with pytest.raises(IncompatiblePairError, match="vocabulary of 97 and .* of 30"):
        Pair(build("llama"), draft)
