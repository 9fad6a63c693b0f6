"""A conversation goes on from its cache and says what a fresh run would say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reports.helpers import bytes_tokenizer, text_model

from biglittle import Chat, FinishReason, GenerationParams, Pair, ParameterError, RowError
from biglittle.engines.transformers import TransformersRunner

TURNS = {
    "Hi": "Hello 🎉 friend!",
    "Who are you?": "A small model, 你好.",
    "Bye": "See you, come again.",
}
TALK = "".join(f"[user] {said}\n[assistant] {answer}\n" for said, answer in TURNS.items())
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def make_pair(draft: str | None = "itself") -> Pair:
    model, _ = text_model(TALK)
    tokenizer = bytes_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return Pair(model, model if draft == "itself" else draft, tokenizer)


def make_chat(draft: str | None = "itself", **options: Any) -> Chat:
    return make_pair(draft).chat(**{"stop": "\n", "max_new_tokens": 60, **options})


@pytest.mark.parametrize("policy", ["dynamic", "static:tokens=3", "bild"])
@pytest.mark.parametrize("draft", ["itself", "prompt-lookup", "early-exit:layers=1"])
def test_a_turn_goes_on_from_the_cache(draft: str, policy: str) -> None:
    pair = make_pair(draft)
    chat = pair.chat(stop="\n", max_new_tokens=60, policy=policy)
    read = 0
    for said, answer in TURNS.items():
        result = chat.send(said)
        alone = pair.generate(chat.messages[:-1], stop="\n", max_new_tokens=60, policy=policy)
        assert (result.text, result.token_ids) == (alone.text, alone.token_ids)
        if result.lossless:
            assert result.text == answer
        # All but the last written token of the turn before need not be read again.
        assert result.stats.reused_tokens == read
        assert result.stats.prompt_tokens > read
        read = result.stats.prompt_tokens + len(result.token_ids) - 1
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 3


def test_the_target_reads_only_what_is_new() -> None:
    chat = make_chat()
    widths: list[int] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        widths.append(kwargs["input_ids"].shape[1])

    chat.send("Hi")
    model, _ = text_model(TALK)
    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    result = chat.send("Who are you?")
    hook.remove()
    new = result.stats.prompt_tokens - result.stats.reused_tokens
    assert 0 < new < result.stats.prompt_tokens
    assert max(widths) <= max(new, 21)


def test_system_message_and_reset() -> None:
    chat = make_chat()
    assert chat.messages == []
    chat = make_pair().chat("Be kind.", stop="\n", max_new_tokens=8)
    chat.send("Hi")
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "Be kind."}]
    assert chat.send("Hi").stats.reused_tokens == 0


def test_streamed_turns() -> None:
    chat = make_chat(policy="static:tokens=4")
    for said, answer in TURNS.items():
        chunks = list(chat.stream(said))
        assert "".join(chunk.text for chunk in chunks) == answer
        assert chunks[-1].result is not None
        assert chat.messages[-1] == {"role": "assistant", "content": answer}


def test_a_turn_that_is_left_early_is_kept_as_far_as_it_was_written() -> None:
    chat = make_chat(policy="static:tokens=2")
    stream = chat.stream("Hi")
    shown = next(stream).text + next(stream).text + next(stream).text
    stream.close()
    assert chat.messages[-1]["role"] == "assistant"
    kept = chat.messages[-1]["content"]
    assert kept.startswith(shown)
    assert TURNS["Hi"].startswith(kept)
    result = chat.send("Bye")
    assert result.stats.reused_tokens > 0
    alone = make_pair().generate(chat.messages[:-1], stop="\n", max_new_tokens=60)
    assert result.token_ids == alone.token_ids


def test_a_prompt_that_begins_otherwise_reuses_what_is_alike() -> None:
    """Another template, say, rewrites what was said: the answer is right all the same."""
    chat = make_chat()
    chat.send("Hi")
    chat.messages[1]["content"] = "Hello there!"
    result = chat.send("Bye")
    alone = make_pair().generate(chat.messages[:-1], stop="\n", max_new_tokens=60)
    assert result.token_ids == alone.token_ids
    assert 0 < result.stats.reused_tokens < result.stats.prompt_tokens


def test_options_of_one_turn() -> None:
    chat = make_chat()
    assert len(chat.send("Hi", max_new_tokens=3).token_ids) == 3
    chat.reset()
    assert chat.send("Hi").finish_reason is FinishReason.STOP


def test_a_turn_that_fails_leaves_the_conversation_as_it_was() -> None:
    def fail(ids: Any, scores: Any) -> Any:
        raise ValueError("my own\nmistake")

    chat = make_chat()
    first = chat.send("Hi")
    before = list(chat.messages)
    with pytest.raises(RowError, match="ValueError: my own mistake") as caught:
        chat.send("Bye", logits_processors=[fail])
    assert isinstance(caught.value.__cause__, ValueError)
    assert chat.messages == before
    result = chat.send("Who are you?")
    assert result.text == TURNS["Who are you?"]
    assert result.stats.reused_tokens == first.stats.prompt_tokens + len(first.token_ids) - 1


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("Hi", {"n": 2, "temperature": 1.0}),
        ("Hi", {"params": GenerationParams(n=2, temperature=1.0)}),
        ("Hi", {"polcy": "dynamic"}),
        ("Hi", {"policy": "dynamc"}),
    ],
)
def test_bad_input_leaves_the_conversation_as_it_was(text: str, options: dict[str, Any]) -> None:
    chat = make_chat()
    with pytest.raises(ParameterError):
        chat.stream(text, **options)
    assert chat.messages == []


def test_a_model_without_a_chat_template() -> None:
    model, tokenizer = text_model(TALK)
    with pytest.raises(ParameterError, match="no chat template"):
        Pair(model, None, tokenizer).chat().send("Hi")


def test_a_turn_in_which_a_model_fails_leaves_the_conversation_as_it_was() -> None:
    def fail(*args: Any) -> None:
        raise MemoryError("full")

    chat = make_chat()
    chat.send("Hi")
    before = list(chat.messages)
    hook = text_model(TALK)[0].register_forward_pre_hook(fail)
    with pytest.raises(MemoryError):
        chat.send("Bye")
    hook.remove()
    assert chat.messages == before
    assert chat.send("Bye").stats.reused_tokens > 0


def test_after_a_round_that_was_interrupted_nothing_of_the_cache_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a rejected draft left in the cache must not pass for the target's correction."""
    truncate = TransformersRunner.truncate
    for number in range(1, 9):
        calls = 0

        def interrupt(runner: Any, lengths: Any, number: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls == number:
                raise KeyboardInterrupt
            truncate(runner, lengths)

        chat = make_chat("prompt-lookup", policy="static:tokens=4")
        monkeypatch.setattr(TransformersRunner, "truncate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            chat.send("Hi")
        monkeypatch.setattr(TransformersRunner, "truncate", truncate)
        result = chat.send("Bye")
        alone = make_pair(None).generate(chat.messages[:-1], stop="\n", max_new_tokens=60)
        assert result.token_ids == alone.token_ids


def test_an_answer_that_is_left_early_has_its_cost() -> None:
    chat = make_chat()
    chunks = chat.stream("hello there", max_new_tokens=20)
    next(chunks)
    chunks.close()
    assert chat.last_stats is not None
    assert 0 < chat.last_stats.new_tokens < 20
