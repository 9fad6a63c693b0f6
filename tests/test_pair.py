"""The pair: prompts, samples, streams, async twins, adapters, and what it leaves alone."""

from __future__ import annotations

import asyncio
import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers as tf
from peft import LoraConfig, get_peft_model
from tests.models import VOCAB, build, encoder_inputs
from tests.reports.helpers import (
    NEW_TOKENS,
    Recorder,
    bytes_tokenizer,
    make_pair,
    model,
    plain,
    prompt,
    text_model,
    tokens,
)

from biglittle import (
    Chunk,
    FinishReason,
    GenerationParams,
    Pair,
    ParameterError,
    Policy,
    RowError,
)
from biglittle.engines import Prompt
from biglittle.engines.transformers import make_runner

TEXT = "Roses are red, violets are blue, sugar is sweet."


def text_pair(draft: Any = "itself", **more: Any) -> Pair:
    big, tokenizer = text_model(TEXT)
    return Pair(big, big if draft == "itself" else draft, tokenizer, **more)


# Forms of prompts.


def test_every_form_of_token_ids() -> None:
    pair = make_pair("prompt-lookup", policy="static:tokens=4")
    wanted = plain(model(), prompt(), 8)
    form: Any
    for form in (prompt(), tuple(prompt()), torch.tensor(prompt())):
        assert tokens(pair.generate(form, max_new_tokens=8)) == wanted
    for form in ([prompt()], (prompt(),), torch.tensor([prompt()]), [torch.tensor(prompt())]):
        assert tokens(pair.generate(form, max_new_tokens=8)) == [wanted]


def test_text_and_lists_of_text() -> None:
    pair = text_pair()
    single = pair.generate("Roses", max_new_tokens=60)
    assert single.text == TEXT[5:]
    several = pair.generate(["Roses", "Roses are red,"], max_new_tokens=60)
    assert [result.text for result in several] == [TEXT[5:], TEXT[14:]]
    assert [result.text for result in pair.generate(["Roses"], max_new_tokens=60)] == [TEXT[5:]]


def test_mixed_lists() -> None:
    pair = text_pair()
    pair.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    ids = pair.tokenizer("Roses are").input_ids
    chat = [{"role": "user", "content": "Roses are red"}]
    results = pair.generate(["Roses", ids, chat, torch.tensor(ids)], max_new_tokens=60)
    rests = [TEXT[5:], TEXT[9:], TEXT[13:], TEXT[9:]]
    assert [result.text for result in results] == rests
    assert pair.generate(chat, max_new_tokens=60).text == TEXT[13:]
    pair.tokenizer.chat_template = None


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_every_form_of_encoder_input(name: str) -> None:
    pair = make_pair("unrelated", name)
    inputs: Any = encoder_inputs(name, 6)
    ids = inputs["input_ids"]
    wanted = tokens(pair.generate(inputs, max_new_tokens=8))
    for form in (
        {"input_ids": ids},
        {"input_ids": ids[0]},
        {"input_ids": ids[0].tolist()},
        {**inputs, "decoder_input_ids": [pair.target.config.decoder_start_token_id]},
        ids[0].tolist(),
        ids[0],
    ):
        assert tokens(pair.generate(form, max_new_tokens=8)) == wanted
    padded = {
        "input_ids": torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], dim=1),
        "attention_mask": torch.tensor([[1] * 6 + [0] * 3]),
    }
    assert tokens(pair.generate([inputs, padded, ids[0]], max_new_tokens=8)) == [wanted] * 3
    big: Any = pair.target
    encoded = {"encoder_outputs": big.get_encoder()(**inputs).last_hidden_state}
    alone = make_pair("early-exit:layers=1", name)
    assert tokens(alone.generate(encoded, max_new_tokens=8)) == wanted
    with pytest.raises(ParameterError, match="no input_ids"):  # which the draft has to read
        pair.generate(encoded, max_new_tokens=8)


def test_audio_features() -> None:
    pair = make_pair("itself", "whisper")
    features: Any = encoder_inputs("whisper", 0)
    wanted = tokens(pair.generate(features, max_new_tokens=8))
    bare = {"input_features": features["input_features"][0]}
    assert tokens(pair.generate(bare, max_new_tokens=8)) == wanted
    assert tokens(pair.generate([bare, features], max_new_tokens=8)) == [wanted] * 2


def test_a_decoder_that_goes_on_from_given_tokens() -> None:
    pair = make_pair("unrelated", "bart")
    inputs: Any = encoder_inputs("bart", 6)
    whole = tokens(pair.generate(inputs, max_new_tokens=10))
    start = [1, *whole[:4]]
    rest = pair.generate({**inputs, "decoder_input_ids": [start]}, max_new_tokens=6)
    assert tokens(rest) == whole[4:]


# Parameters, policies and results.


def test_parameters_by_name_and_as_an_object() -> None:
    pair = make_pair("unrelated")
    params = GenerationParams(max_new_tokens=6, logprobs=1)
    assert len(pair.generate(prompt(), params=params).logprobs) == 6
    assert len(pair.generate(prompt(), params=params, max_new_tokens=3).logprobs) == 3
    assert params.max_new_tokens == 6


def test_policies_as_strings_and_objects() -> None:
    pair = make_pair("unrelated", policy="bild")
    assert not pair.generate(prompt(), max_new_tokens=4).lossless
    result = pair.generate(prompt(), policy=Policy.static(2), max_new_tokens=4)
    assert (result.policy, result.lossless) == ("static:tokens=2", True)
    assert str(make_pair("unrelated").policy) == "cost-aware"
    assert make_pair(None).policy == Policy.none()


def test_the_models_own_generation_config_supplies_defaults() -> None:
    own = build("llama")
    own.generation_config.max_new_tokens = 5
    own.generation_config.do_sample = True
    own.generation_config.temperature = 0.5
    own.generation_config.top_k = 3
    pair = Pair(own, model(seed=1))
    torch.manual_seed(0)
    sampled = {tuple(tokens(pair.generate(prompt()))) for _ in range(5)}
    assert len(sampled) > 1
    assert all(len(ids) == 5 for ids in sampled)
    assert tokens(pair.generate(prompt(), temperature=0)) == plain(model(), prompt(), 5)


def test_without_a_seed_torchs_own_decides() -> None:
    pair = make_pair("unrelated")

    def sample(seed: int) -> Any:
        torch.manual_seed(seed)
        return tokens(pair.generate(prompt(), temperature=1.0, max_new_tokens=8))

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


@pytest.mark.parametrize("temperature", [1e-5, 1e-40, 5e-324])
def test_the_coldest_sampling_is_greedy(temperature: float) -> None:
    pair = text_pair()
    greedy = pair.generate("The little", max_new_tokens=8)
    for policy in ("none", "static:tokens=3"):
        found = pair.generate(
            "The little", temperature=temperature, policy=policy, seed=1, max_new_tokens=8
        )
        assert found.token_ids == greedy.token_ids


def test_samples_of_several_prompts() -> None:
    pair = make_pair("unrelated")
    results = pair.generate([prompt(9), prompt(4)], n=3, temperature=1.0, seed=10, max_new_tokens=6)
    assert len(results) == 6
    for start, group in ((prompt(9), results[:3]), (prompt(4), results[3:])):
        for sample, result in enumerate(group):
            alone = pair.generate(start, temperature=1.0, seed=10 + sample, max_new_tokens=6)
            assert result.token_ids == alone.token_ids


def test_a_result_adds_up() -> None:
    result = text_pair(policy="static:tokens=4").generate("Roses", max_new_tokens=60, trace=True)
    stats = result.stats
    assert result.finish_reason is FinishReason.EOS
    assert result.text == TEXT[5:]
    assert len(result.origins) == len(result.token_ids) == stats.new_tokens
    assert len(result.rounds) == stats.rounds == stats.target_passes - 1  # and the prompt's
    assert sum(entry.drafted for entry in result.rounds) == stats.drafted
    assert sum(origin == "accepted" for origin in result.origins) == stats.accepted
    assert stats.accepted <= stats.drafted == stats.predicted
    assert 0 < stats.first_token_seconds <= stats.total_seconds
    assert stats.draft_seconds + stats.target_seconds <= stats.total_seconds
    data = result.as_dict()
    assert data["token_ids"] == list(result.token_ids)
    assert data["stats"]["rounds"] == stats.rounds


# Streams.


@pytest.mark.parametrize("policy", ["none", "dynamic", "static:tokens=3", "bild"])
def test_a_stream_joined_is_the_result(policy: str) -> None:
    pair = text_pair()
    starts = ["Roses", "Roses are red, violets"]
    parts: dict[int, list[Chunk]] = {0: [], 1: []}
    for chunk in pair.stream(starts, policy=policy, max_new_tokens=60):
        parts[chunk.index].append(chunk)
    for chunks, alone in zip(
        parts.values(), pair.generate(starts, policy=policy, max_new_tokens=60), strict=True
    ):
        assert "".join(chunk.text for chunk in chunks) == alone.text
        assert tuple(t for chunk in chunks for t in chunk.token_ids) == alone.token_ids
        assert tuple(o for chunk in chunks for o in chunk.origins) == alone.origins
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason is alone.finish_reason
        assert chunks[-1].result is not None
        assert chunks[-1].result.token_ids == alone.token_ids


def test_a_stream_that_is_closed_runs_no_further() -> None:
    pair = make_pair("unrelated", policy="static:tokens=2")
    stream = pair.stream([prompt(9), prompt(4)], max_new_tokens=200)
    next(stream)
    with Recorder(model()) as seen:
        stream.close()
        assert list(stream) == []
    assert seen.widths == []


def test_bad_input_raises_before_the_first_chunk_is_asked_for() -> None:
    with pytest.raises(ValueError, match="max_new_tokens"):
        make_pair("unrelated").stream(prompt(), max_new_tokens=0)


# Async twins.


def test_async_generate() -> None:
    pair = text_pair()

    async def both() -> Any:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        result = await pair.agenerate("Roses", max_new_tokens=60)
        ticking.cancel()
        return result, ticks

    result, ticks = asyncio.run(both())
    assert result.text == TEXT[5:]
    assert ticks > 1  # the event loop went on


def test_async_generate_that_is_cancelled() -> None:
    pair = text_pair(policy="none")

    async def cancelled(seen: Recorder) -> None:
        running = asyncio.create_task(pair.agenerate("Roses", max_new_tokens=400, ignore_eos=True))
        while len(seen.widths) < 3:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with Recorder(pair.target) as seen:
        asyncio.run(cancelled(seen))  # waits for the thread
    assert 3 <= len(seen.widths) < 400


def test_async_stream() -> None:
    pair = text_pair(policy="static:tokens=3")

    async def collect() -> list[Chunk]:
        return [chunk async for chunk in pair.astream("Roses", max_new_tokens=60)]

    chunks = asyncio.run(collect())
    assert len(chunks) > 3
    assert "".join(chunk.text for chunk in chunks) == TEXT[5:]


def test_async_stream_that_is_left_early() -> None:
    pair = text_pair(policy="none")

    async def first() -> str:
        async for chunk in pair.astream("Roses", max_new_tokens=60):
            return chunk.text
        return "nothing"

    assert asyncio.run(first()) == TEXT[5]


def test_async_errors_arrive() -> None:
    pair = text_pair()

    def fail(ids: Any, scores: Any) -> Any:
        raise ValueError("mine")

    async def generate() -> None:
        await pair.agenerate("Roses", logits_processors=[fail])

    async def stream() -> None:
        async for _ in pair.astream("Roses", logits_processors=[fail]):
            pass

    async def bad() -> None:
        async for _ in pair.astream(""):
            pass

    for run, error in ((generate, RowError), (stream, RowError), (bad, ValueError)):
        with pytest.raises(error):
            asyncio.run(run())


# Errors of a request's own code.


class Failing(tf.LogitsProcessor):
    """Raises at its n-th call."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.left -= 1
        if self.left <= 0:
            raise KeyError("my table")
        return scores


@pytest.mark.parametrize("call", [1, 2, 5])
@pytest.mark.parametrize("draft", ["unrelated", "itself", "prompt-lookup", "early-exit:layers=1"])
def test_an_error_in_one_row_leaves_the_others_right(draft: str, call: int) -> None:
    pair = make_pair(draft, policy="static:tokens=3")
    requests = [
        *pair.requests(prompt(9), max_new_tokens=NEW_TOKENS),
        *pair.requests(prompt(4), max_new_tokens=NEW_TOKENS, logits_processors=[Failing(call)]),
        *pair.requests(prompt(6), max_new_tokens=NEW_TOKENS),
    ]
    first, failed, last = pair.run(requests)
    assert tokens([first, last]) == [plain(model(), prompt(9)), plain(model(), prompt(6))]
    assert failed.finish_reason is FinishReason.ERROR
    assert isinstance(failed.error, RowError)
    assert isinstance(failed.error.__cause__, KeyError)
    assert str(failed.error) == "KeyError: 'my table'"
    assert tokens(failed) == plain(model(), prompt(4))[: call - 1]


def test_an_error_in_a_single_prompt_is_raised() -> None:
    pair = make_pair("unrelated")
    with pytest.raises(RowError, match="KeyError") as caught:
        pair.generate(prompt(), logits_processors=[Failing(2)])
    assert isinstance(caught.value.__cause__, KeyError)

    def stop(ids: Any, scores: Any) -> Any:
        raise RuntimeError("in a criterion")

    with pytest.raises(RowError, match="in a criterion"):
        pair.generate(prompt(), stopping_criteria=[stop])
    with pytest.raises(RowError, match="KeyError"):
        list(pair.stream(prompt(), logits_processors=[Failing(2)]))


def test_stopping_criteria_of_transformers() -> None:
    pair = make_pair("itself", policy="static:tokens=8")
    length = tf.MaxLengthCriteria(max_length=len(prompt()) + 5)
    result = pair.generate(prompt(), max_new_tokens=NEW_TOKENS, stopping_criteria=[length])
    assert tokens(result) == plain(model(), prompt())[:5]
    assert result.finish_reason is FinishReason.STOP
    ends = tf.EosTokenCriteria(eos_token_id=tokens(result)[2])
    result = pair.generate(
        prompt(), max_new_tokens=NEW_TOKENS, stopping_criteria=tf.StoppingCriteriaList([ends])
    )
    assert tokens(result) == plain(model(), prompt())[:3]


# Models are used as they are, in eval mode.


def test_models_left_in_train_mode_are_put_into_eval_mode() -> None:
    target, draft = build("gpt2"), build("gpt2", 1)
    wanted = plain(target, prompt(), 12)
    target.train()
    draft.train()
    assert tokens(Pair(target, draft).generate(prompt(), max_new_tokens=12)) == wanted
    assert not target.training
    assert not draft.training


def test_generating_leaves_the_model_as_it_was() -> None:
    """Not a weight, not a setting; and transformers generates with it as before."""
    for name in ("llama", "t5", "bart"):
        used = build(name)
        config, weights = copy.deepcopy(used.config), copy.deepcopy(used.state_dict())
        generation = copy.deepcopy(used.generation_config)
        start: Any = prompt() if name == "llama" else encoder_inputs(name, 6)
        inputs = {"input_ids": torch.tensor([prompt()])} if name == "llama" else start
        before = used.generate(**inputs, max_new_tokens=8, do_sample=False)
        Pair(used, used).generate([start, start], policy="static:tokens=3", max_new_tokens=8)
        assert used.generate(**inputs, max_new_tokens=8, do_sample=False).equal(before)
        assert used.config.to_dict() == config.to_dict()
        assert used.generation_config.to_dict() == generation.to_dict()
        assert used.state_dict().keys() == weights.keys()
        assert all(value.equal(weights[key]) for key, value in used.state_dict().items())
        assert all(parameter.grad is None for parameter in used.parameters())


def test_a_pair_can_be_used_from_several_threads() -> None:
    pair = text_pair(policy="static:tokens=3")

    async def many() -> Any:
        return await asyncio.gather(
            *(pair.agenerate(TEXT[:n], max_new_tokens=60) for n in (5, 9, 13, 20))
        )

    results = asyncio.run(many())
    assert [result.text for result in results] == [TEXT[n:] for n in (5, 9, 13, 20)]


# Adapters.


def lora(base: Any, seed: int = 0) -> Any:
    """The base with an adapter that changes what it writes."""
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(seed)
    adapted: Any = get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.5)
    return adapted


def peft_plain(adapted: Any, new: int = NEW_TOKENS) -> Any:
    ids = torch.tensor([prompt()])
    out = adapted.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
    )
    return out[0, len(prompt()) :].tolist()


def test_an_adapter_on_the_target() -> None:
    adapted = lora(build("llama"))
    wanted = peft_plain(adapted)
    assert wanted != plain(model(), prompt())
    for draft in (model(seed=1), "prompt-lookup", "early-exit:layers=1"):
        result = Pair(adapted, draft).generate(prompt(), max_new_tokens=NEW_TOKENS)
        assert tokens(result) == wanted


def test_an_adapter_does_not_leak_into_a_draft_that_is_the_same_base() -> None:
    base = build("llama")
    adapted = lora(base)
    wanted = peft_plain(adapted)
    pair = Pair(adapted, base, policy="static:tokens=1")
    draft = pair.engine().drafter
    assert draft is not None
    # What the draft makes of the prompt is what the base alone would.
    alone = build("llama")
    with torch.no_grad():
        base_logits = alone(torch.tensor([prompt()])).logits[0, -1]
        adapted_logits = adapted(torch.tensor([prompt()])).logits[0, -1]
    runner: Any = draft
    seen = runner.runner.admit(Prompt(tuple(prompt())))[0]
    assert seen.allclose(base_logits, atol=1e-4)
    assert not seen.allclose(adapted_logits, atol=1e-2)
    # And the target keeps its adapter, before, between and after.
    assert tokens(pair.generate(prompt(), max_new_tokens=NEW_TOKENS)) == wanted
    assert peft_plain(adapted) == wanted


def test_adapters_are_on_for_every_target_while_another_thread_drafts_without() -> None:
    base = build("llama")
    adapted = lora(base)
    pair = Pair(adapted, base, policy="static:tokens=3")
    wanted = peft_plain(adapted)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as threads:
            jobs = [
                threads.submit(pair.generate, prompt(), max_new_tokens=NEW_TOKENS) for _ in range(9)
            ]
            results = [job.result() for job in jobs]
    finally:
        sys.setswitchinterval(interval)
    assert [list(result.token_ids) for result in results] == [wanted] * 9


def test_an_adapter_on_the_draft() -> None:
    adapted = lora(build("llama"), seed=1)
    result = Pair(build("llama"), adapted).generate(prompt(), max_new_tokens=NEW_TOKENS)
    assert tokens(result) == plain(model(), prompt())


def test_a_disabled_adapter_stays_disabled() -> None:
    adapted = lora(build("llama"))
    with adapted.disable_adapter():
        result = Pair(adapted, "prompt-lookup").generate(prompt(), max_new_tokens=NEW_TOKENS)
    assert tokens(result) == plain(model(), prompt())


# Runners of one model do not share rows.


def test_two_runners_of_one_model() -> None:
    one, other = make_runner(model()), make_runner(model())
    first = one.admit(Prompt(tuple(prompt(9)))).clone()
    other.admit(Prompt(tuple(prompt(4))))
    assert one.lengths == [9]
    assert other.lengths == [4]
    again = make_runner(model()).admit(Prompt(tuple(prompt(9))))
    assert again.equal(first)
    assert one.vocab == VOCAB


def test_repr_says_what_it_is() -> None:
    pair = Pair(model(), "prompt-lookup", bytes_tokenizer(), policy="static:tokens=3")
    assert repr(pair) == (
        "Pair('LlamaForCausalLM', draft=prompt-lookup:ngram=3, policy='static:tokens=3')"
    )


def test_a_special_token_as_a_stop_string() -> None:
    """Text leaves special tokens out, so they stop as ids."""
    pair = Pair(model(), None, bytes_tokenizer())
    token = pair.generate([5, 6, 7], max_new_tokens=4).token_ids[2]
    word = pair.tokenizer.convert_ids_to_tokens(token)
    pair.tokenizer.add_special_tokens({"additional_special_tokens": [word]})
    result = pair.generate([5, 6, 7], max_new_tokens=8, stop=word, ignore_eos=True)
    assert result.token_ids[-1] == token
    assert len(result.token_ids) <= 3
