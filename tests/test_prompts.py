"""What a prompt becomes: token ids, the decoder's start, and what the encoder reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reports.helpers import bytes_tokenizer

from biglittle import BiglittleError, ContextError, ParameterError
from biglittle.engines.base import EncoderInput
from biglittle.prompts import Prompts, is_chat, is_single

TOKENIZER = bytes_tokenizer()
VOCAB = len(TOKENIZER)
CHAT = [{"role": "user", "content": "hi"}]
TEXT_ENCODER = EncoderInput(
    model="m",
    main="input_ids",
    names=frozenset({"input_ids", "attention_mask", "inputs_embeds", "encoder_outputs"}),
    tokens=10,
)
EAR = EncoderInput(
    model="m",
    main="input_features",
    names=frozenset({"input_features", "attention_mask", "encoder_outputs"}),
    features=(8, 32),
)


def reader(
    encoder: EncoderInput | None = None,
    *,
    tokenizer: Any = TOKENIZER,
    start: tuple[int, ...] = (1,),
    context: int | None = 20,
) -> Prompts:
    return Prompts(tokenizer, encoder=encoder, start=start, vocab=VOCAB, context=context, name="m")


def ids(prompts: Prompts, prompt: Any) -> list[list[int]]:
    return [list(found.tokens) for found in prompts.read(prompt)[0]]


def test_text() -> None:
    text = TOKENIZER("hi there").input_ids
    assert ids(reader(), "hi there") == [text]
    assert ids(reader(), ["hi there", "hi"]) == [text, text[:2]]
    assert reader().read("hi")[1] is True
    assert reader().read(["hi"])[1] is False


@pytest.mark.parametrize(
    "prompt", [[5, 6], (5, 6), range(5, 7), torch.tensor([5, 6]), torch.tensor([5, 6]).int()]
)
def test_token_ids(prompt: Any) -> None:
    assert ids(reader(), prompt) == [[5, 6]]
    assert ids(reader(), [prompt, prompt]) == [[5, 6]] * 2
    assert is_single(prompt)


def test_a_matrix_of_token_ids_is_several_prompts() -> None:
    assert ids(reader(), torch.tensor([[5, 6], [7, 8]])) == [[5, 6], [7, 8]]


def test_chat_messages() -> None:
    prompts = reader()
    with pytest.raises(ParameterError, match="m has no chat template; give text"):
        prompts.read(CHAT)
    TOKENIZER.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'tool' %}"
        "{{ raise_exception('no\ntools') }}{% endif %}<{{ m['content'] }}>{% endfor %}"
        "{% if add_generation_prompt %}:{% endif %}"
    )
    try:
        wanted = TOKENIZER("<hi>:").input_ids
        assert ids(prompts, CHAT) == [wanted]
        assert ids(prompts, [CHAT, "hi"]) == [wanted, TOKENIZER("hi").input_ids]
        with pytest.raises(ParameterError, match="the chat template refuses it: no tools"):
            prompts.read([{"role": "tool", "content": "x"}])
    finally:
        TOKENIZER.chat_template = None


def test_special_tokens_of_a_chat_template_are_not_doubled() -> None:
    bos = bytes_tokenizer()
    bos.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    found = ids(reader(tokenizer=bos), CHAT)[0]
    assert found == [1, *bos("hi").input_ids]


def test_what_counts_as_a_chat_and_as_one_prompt() -> None:
    assert is_chat(CHAT)
    assert not is_chat([])
    assert not is_chat("hi")
    assert not is_chat([{"content": "hi"}])
    assert not is_chat([CHAT])
    assert is_single(CHAT)
    assert is_single({"input_ids": [5]})
    assert not is_single([CHAT])
    assert not is_single([])


NOT_PROMPTS: list[tuple[Any, str]] = [
    ("", "the prompt is empty"),
    ([], "there are no prompts"),
    ([[]], "prompt 0 is empty"),
    (["hi", ""], "prompt 1 is empty"),
    (torch.tensor([], dtype=torch.long), "the prompt is empty"),
    (None, "not NoneType"),
    (7, "not int"),
    (2.5, "not float"),
    ([None], "prompt 0 is neither"),
    ([2.5], "prompt 0 is neither"),
    ([[5], None], "prompt 1 is neither"),
    ([5, "hi"], "the prompt is neither"),
    ([[5, 2.5]], "prompt 0 is neither"),
    ([True], "the prompt is neither"),
    (b"hi", "neither"),
    (torch.tensor([2.5]), "neither"),
    (torch.zeros(2, 2, 2, dtype=torch.long), "prompt 0 is neither"),
    ([-1], "token id -1 is outside the vocabulary"),
    ([VOCAB], f"token id {VOCAB} is outside the vocabulary of {VOCAB}"),
    ([[5], [VOCAB]], f"prompt 1: token id {VOCAB}"),
    ({"input_ids": [5]}, "m has no encoder"),
]


@pytest.mark.parametrize(("prompt", "words"), NOT_PROMPTS)
def test_what_is_no_prompt(prompt: Any, words: str) -> None:
    with pytest.raises(ParameterError) as caught:
        reader().read(prompt)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_prompts_that_do_not_fit() -> None:
    assert ids(reader(), [5] * 19)
    assert ids(reader(context=None), [5] * 1000)
    with pytest.raises(ContextError, match="has 20 tokens.*context of 20; shorten it to 19"):
        reader().read([5] * 20)
    with pytest.raises(ContextError, match="prompt 1 has 30 tokens"):
        reader().read([[5], [5] * 30])


@pytest.mark.parametrize("prompt", ["hi", ["hi"], CHAT])
def test_text_without_a_tokenizer(prompt: Any) -> None:
    with pytest.raises(ParameterError, match="no tokenizer; pass tokenizer="):
        reader(tokenizer=None).read(prompt)


# Encoders.


def encoder(prompts: Prompts, prompt: Any) -> dict[str, list[Any]]:
    found = prompts.read(prompt)[0][0].encoder
    assert found is not None
    return {name: value.tolist() for name, value in found.items()}


def test_text_goes_to_the_encoder() -> None:
    prompts = reader(TEXT_ENCODER)
    text = TOKENIZER("hi").input_ids
    wanted = {"input_ids": [text], "attention_mask": [[1, 1]]}
    for prompt in ("hi", text, torch.tensor(text)):
        assert encoder(prompts, prompt) == wanted
        assert ids(prompts, prompt) == [[1]]
    assert encoder(prompts, {"input_ids": text}) == {"input_ids": [text]}
    assert encoder(prompts, {"input_ids": torch.tensor([text])}) == {"input_ids": [text]}


def test_the_decoders_start() -> None:
    prompts = reader(TEXT_ENCODER)
    for start in ([5, 6], [[5, 6]], torch.tensor([[5, 6]])):
        assert ids(prompts, {"input_ids": [7], "decoder_input_ids": start}) == [[5, 6]]
    with pytest.raises(ParameterError, match="does not say what its decoder starts from"):
        reader(TEXT_ENCODER, start=()).read([7])
    assert ids(reader(TEXT_ENCODER, start=()), {"input_ids": [7], "decoder_input_ids": [5]})


def test_features_may_lack_the_batch() -> None:
    features = torch.randn(8, 32)
    for given in (features, features[None]):
        found = reader(EAR).read({"input_features": given})[0][0].encoder
        assert found is not None
        assert found["input_features"].shape == (1, 8, 32)


NOT_INPUTS: list[tuple[EncoderInput, Any, str]] = [
    (TEXT_ENCODER, {}, "no input_ids"),
    (TEXT_ENCODER, {"attention_mask": [1]}, "no input_ids, which m reads"),
    (TEXT_ENCODER, {"input_ids": []}, "input_ids is empty"),
    (TEXT_ENCODER, {"input_ids": [[5], [6]]}, "one row at a time"),
    (TEXT_ENCODER, {"input_ids": [2.5]}, "must be whole numbers"),
    (TEXT_ENCODER, {"input_ids": torch.ones(1, 1, 1).long()}, "must be whole numbers"),
    (TEXT_ENCODER, {"input_ids": "hi"}, "neither a tensor nor numbers"),
    (TEXT_ENCODER, {"input_ids": None}, "neither a tensor nor numbers"),
    (TEXT_ENCODER, {"input_ids": [VOCAB]}, "outside the vocabulary"),
    (TEXT_ENCODER, {"input_ids": [5], "atention_mask": [1]}, "did you mean 'attention_mask'"),
    (TEXT_ENCODER, {"input_ids": [5, 6], "attention_mask": [1]}, "for 2 tokens"),
    (TEXT_ENCODER, {"input_ids": [5], "decoder_input_ids": []}, "decoder_input_ids is empty"),
    (TEXT_ENCODER, {"input_ids": [5], "decoder_input_ids": [2.5]}, "must be whole numbers"),
    (TEXT_ENCODER, {"input_ids": [5], "decoder_input_ids": [VOCAB]}, "outside the vocabulary"),
    (TEXT_ENCODER, {"input_ids": [5], "decoder_input_ids": [5] * 20}, "context of 20"),
    (TEXT_ENCODER, [5] * 11, "11 tokens, but the encoder of m reads 10 at most"),
    (EAR, [5], "no input 'input_ids'"),
    (EAR, {"input_values": torch.randn(1, 9)}, "no input 'input_values'"),
    (EAR, {"input_features": torch.randn(1, 8, 30)}, "[1, 8, 30], but m reads [1, 8, 32]"),
    (EAR, {"input_features": torch.randn(1, 7, 32)}, "[1, 7, 32], but m reads [1, 8, 32]"),
    (EAR, {"input_features": torch.randn(2, 8, 32)}, "one row at a time"),
]


@pytest.mark.parametrize(("reads", "prompt", "words"), NOT_INPUTS)
def test_what_no_encoder_reads(reads: EncoderInput, prompt: Any, words: str) -> None:
    with pytest.raises(BiglittleError) as caught:
        reader(reads).read(prompt)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_stands_in_for_the_main_input() -> None:
    states = torch.randn(1, 3, 4)
    for name in ("encoder_outputs", "inputs_embeds"):
        assert reader(TEXT_ENCODER).read({name: states})[0][0].encoder is not None


@pytest.mark.parametrize("prompt", ["\ud800", [{"role": "user", "content": "half \udc80"}]])
def test_text_that_is_not_unicode(prompt: Any) -> None:
    tokenizer = bytes_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    reader = Prompts(tokenizer, encoder=None, start=(), vocab=VOCAB, context=None, name="m")
    with pytest.raises(ParameterError, match="is not valid Unicode text"):
        reader.read(prompt)


def test_a_message_without_a_role() -> None:
    reader = Prompts(TOKENIZER, encoder=None, start=(), vocab=VOCAB, context=None, name="m")
    with pytest.raises(ParameterError, match="prompt 0 is a chat message without a role"):
        reader.read([{"content": "x"}])
