"""Inside `model.generate`, token for token and number for number what transformers alone gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from tests.integrations.common import MODELS, NEW, eos_for, generate, inputs, pair, tokenizer
from tests.models import CAUSAL
from torch import Tensor

import biglittle

RAGGED = (9, 5, 7)
PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition penalty": {"repetition_penalty": 1.4},
    "n-grams": {"no_repeat_ngram_size": 1},
    "bad words and biases": {"bad_words_ids": [[5], [7, 9]], "sequence_bias": [[[11], 4.0]]},
    "suppressed tokens": {
        "suppress_tokens": list(range(70, 97)),
        "begin_suppress_tokens": list(range(40, 60)),
    },
    "forced tokens": {"forced_eos_token_id": 3},
    "exponential decay": {"exponential_decay_length_penalty": (3, 1.5)},
    "minimum": {"min_new_tokens": 8},
    "minimum length, padding included": {"min_length": 15},
    "normalised": {"renormalize_logits": True, "remove_invalid_values": True},
    "the encoder's tokens": {"encoder_repetition_penalty": 2.5, "encoder_no_repeat_ngram_size": 2},
    "allowed tokens": {
        "prefix_allowed_tokens_fn": lambda row, ids: list(range(3 + row + len(ids) % 2, 97, 2))
    },
}


def compare(model: Any, custom: Any, batch: dict[str, Tensor], **options: Any) -> Tensor:
    plain: Tensor = generate(model, **batch, **options)
    ours = generate(model, **batch, **options, custom_generate=custom)
    assert ours.tolist() == plain.tolist()
    return plain


@pytest.mark.parametrize("lengths", [(6,), RAGGED], ids=["single", "ragged"])
@pytest.mark.parametrize("kind", ["draft", "itself", "prompt-lookup", "early-exit:layers=1", None])
@pytest.mark.parametrize("name", MODELS)
def test_greedy(name: str, kind: str | None, lengths: tuple[int, ...]) -> None:
    model, unrelated = pair(name)
    draft = {"draft": unrelated, "itself": model}.get(kind or "", kind)
    compare(model, biglittle.assisted(draft), inputs(name, lengths))


@pytest.mark.parametrize("policy", ["dynamic", "static:tokens=3", "heuristic", "none"])
def test_every_lossless_policy(policy: str) -> None:
    model, draft = pair("llama")
    custom = biglittle.assisted(draft, policy)
    compare(model, custom, inputs("llama"), **eos_for(model, inputs("llama")))
    assert {row.policy for row in custom.last} == {policy}
    assert all(row.stats.drafted > 0 for row in custom.last) == (policy != "none")


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_end_early_are_padded(name: str) -> None:
    model, draft = pair(name)
    batch = inputs(name)
    custom = biglittle.assisted(draft)
    options = eos_for(model, batch)
    plain = compare(model, custom, batch, **options)
    assert min(row.stats.new_tokens for row in custom.last) < plain.shape[1] - 1
    eos = options["eos_token_id"]
    for row in custom.last:
        assert (eos in row.token_ids[:-1]) is False
        assert row.finish_reason == ("eos" if row.token_ids[-1] == eos else "length")


@pytest.mark.parametrize("option", PROCESSORS)
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_processors(name: str, option: str) -> None:
    model, draft = pair(name)
    batch = inputs(name)
    eos = eos_for(model, batch)
    untouched = generate(model, **batch, **eos)
    plain = compare(model, biglittle.assisted(draft), batch, **eos, **PROCESSORS[option])
    if option != "normalised":
        assert plain.tolist() != untouched.tolist(), "the option has no effect here"


def test_guidance() -> None:
    model, draft = pair("llama")
    negative = torch.randint(3, 97, (3, 4), generator=torch.Generator().manual_seed(1))
    batch = inputs("llama")
    options = {"guidance_scale": 1.5, "negative_prompt_ids": negative}
    plain = compare(model, biglittle.assisted(draft), batch, **options)
    assert plain.tolist() != generate(model, **batch).tolist()


class Rhythm(tf.LogitsProcessor):
    """Holds state, counts its calls, and writes in place."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(input_ids[0].tolist())
        self.calls += 1
        if self.calls % 3 == 0:
            scores[:, : scores.shape[-1] // 2] = float("-inf")
        return scores


@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_processor_with_state_sees_accepted_prefixes_only(name: str, draft: str) -> None:
    model, unrelated = pair(name)
    batch = inputs(name, (6,))
    theirs, ours = Rhythm(), Rhythm()
    plain = generate(model, **batch, logits_processor=[theirs])
    custom = biglittle.assisted(unrelated if draft == "draft" else draft, "static:tokens=4")
    output = generate(model, **batch, logits_processor=[ours], custom_generate=custom)
    assert output.tolist() == plain.tolist()
    assert ours.seen == theirs.seen
    assert custom.last[0].stats.drafted > 0


def test_every_row_has_its_own_state() -> None:
    model, draft = pair("llama")
    batch = inputs("llama")
    eos = eos_for(model, batch)
    plain = generate(model, **batch, **eos, logits_processor=[Rhythm()])
    processor = Rhythm()
    custom = biglittle.assisted(draft)
    ours = generate(model, **batch, **eos, logits_processor=[processor], custom_generate=custom)
    assert ours.tolist() == plain.tolist()
    assert processor.calls == 0


class Sum(tf.StoppingCriteria):
    """Ends a row when the sum of all its tokens, padding included, has grown enough."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.widths: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.widths.append(input_ids.shape[1])
        return input_ids.sum(dim=1) + input_ids.shape[1] > self.limit


@pytest.mark.parametrize("eos", [True, False], ids=["padded", "written on"])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_criteria(name: str, eos: bool) -> None:
    """Where no EOS is set, transformers lets rows write on until all have met the criteria."""
    model, draft = pair(name)
    batch = inputs(name)
    tokens = generate(model, **batch)[:, -NEW:]
    prompt = batch["input_ids"].sum(dim=1) if name in CAUSAL else torch.zeros(3).long()
    width = batch["input_ids"].shape[1] if name in CAUSAL else 1
    limit = int((prompt + tokens[:, :6].sum(dim=1)).max()) + width + 5
    options = {"eos_token_id": 2, "pad_token_id": 0} if eos else {}
    criterion = Sum(limit)
    plain = compare(
        model, biglittle.assisted(draft), batch, stopping_criteria=[criterion], **options
    )
    assert width < plain.shape[1] < width + NEW
    assert min(criterion.widths) == width + 1
    assert (0 in plain[:, -1].tolist()) == eos


def test_stop_strings() -> None:
    model, draft = pair("llama")
    batch, words = inputs("llama"), tokenizer()
    text = words.decode(generate(model, **batch)[1, -NEW:])
    options = {"eos_token_id": 2, "pad_token_id": 0}
    plain = generate(
        model, **batch, **options, stop_strings=[text[4:6], "zz"], tokenizer=words, max_new_tokens=9
    )
    criterion = tf.StopStringCriteria(words, [text[4:6], "zz"])
    ours = generate(
        model,
        **batch,
        **options,
        stopping_criteria=[criterion],
        custom_generate=biglittle.assisted(draft),
        max_new_tokens=9,
    )
    assert ours.tolist() == plain.tolist()
    assert ours[1, -3:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("eos", [True, False])
def test_time_is_up(eos: bool) -> None:
    model, draft = pair("llama")
    options = {"eos_token_id": 2, "pad_token_id": 0} if eos else {}
    batch = inputs("llama")
    plain = compare(model, biglittle.assisted(draft), batch, max_time=1e-9, **options)
    assert plain.shape[1] == 10


@pytest.mark.parametrize("limits", [{"max_length": 16}, {"stopping_criteria": 13}])
def test_limits(limits: dict[str, Any]) -> None:
    model, draft = pair("llama")
    if "stopping_criteria" in limits:
        limits = {"stopping_criteria": [tf.MaxLengthCriteria(limits["stopping_criteria"])]}
    limits.setdefault("max_new_tokens", None)
    plain = compare(model, biglittle.assisted(draft), inputs("llama"), **limits)
    assert plain.shape[1] in (13, 16)


def stacked(output: Any, name: str) -> Tensor:
    return torch.stack(getattr(output, name))


SCORED: dict[str, Callable[[], dict[str, Any]]] = {
    "raw": dict,
    "processed": lambda: {"repetition_penalty": 1.3, "renormalize_logits": True},
    "custom": lambda: {"logits_processor": [Rhythm()]},
}


@pytest.mark.parametrize("kind", SCORED)
@pytest.mark.parametrize("name", MODELS)
def test_scores_and_logits(name: str, kind: str) -> None:
    """Those of rows that have ended included: transformers runs them on, over padding."""
    model, draft = pair(name)
    batch = inputs(name)
    options: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True}
    options |= {"output_logits": True, **eos_for(model, batch)}
    plain = generate(model, **batch, **options, **SCORED[kind]())
    custom = biglittle.assisted(draft)
    ours = generate(model, **batch, **options, **SCORED[kind](), custom_generate=custom)
    assert type(ours) is type(plain)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    # A processor that writes in place changes transformers' own logits.
    for field in ("scores",) if kind == "custom" else ("scores", "logits"):
        torch.testing.assert_close(stacked(ours, field), stacked(plain, field), atol=1e-4, rtol=0)
    theirs = model.compute_transition_scores(plain.sequences, plain.scores, normalize_logits=True)
    own = model.compute_transition_scores(ours.sequences, ours.scores, normalize_logits=True)
    torch.testing.assert_close(own, theirs, atol=1e-4, rtol=0)


def test_only_what_was_asked_for_is_returned() -> None:
    model, draft = pair("llama")
    custom = biglittle.assisted(draft)
    batch = inputs("llama")
    output = generate(model, **batch, return_dict_in_generate=True, custom_generate=custom)
    assert output.scores is None
    assert output.logits is None
    output = generate(
        model,
        **batch,
        return_dict_in_generate=True,
        output_logits=True,
        custom_generate=custom,
    )
    assert output.scores is None
    assert len(output.logits) == NEW
    assert output.logits[0].shape == (3, 97)


def test_what_is_returned_can_be_trained_on() -> None:
    """The loop runs in inference mode, whose tensors autograd refuses; none of them gets out."""
    model, draft = pair("llama")
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    output = generate(
        model, **inputs("llama"), **options, custom_generate=biglittle.assisted(draft)
    )
    assert not output.sequences.is_inference()
    assert not any(score.is_inference() for score in (*output.scores, *output.logits))
    model(input_ids=output.sequences).logits.sum().backward()


def test_scores_reach_criteria() -> None:
    class Sure(tf.StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            assert len(scores) == input_ids.shape[1] - 9
            sure: Tensor = scores[-1].softmax(-1).amax(-1) > 0.6
            return sure

    model, draft = pair("llama")
    options = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "stopping_criteria": [Sure()],
    }
    plain = generate(model, **inputs("llama"), **options)
    ours = generate(model, **inputs("llama"), **options, custom_generate=biglittle.assisted(draft))
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert 0 in plain.sequences[:, 9:].tolist()[0] + plain.sequences[:, 9:].tolist()[1]


def test_padding_on_the_right_or_inside_is_no_part_of_a_prompt() -> None:
    model, draft = pair("llama")
    ids = inputs("llama", (6,))["input_ids"][0]
    zeros = torch.zeros(3, dtype=torch.long)
    batch = torch.stack([torch.cat([zeros, ids]), torch.cat([ids[:2], zeros, ids[2:]])])
    mask = (batch != 0).long()
    custom = biglittle.assisted(draft)
    output = generate(model, input_ids=batch, attention_mask=mask, custom_generate=custom)
    alone = generate(model, input_ids=ids[None])
    assert output[:, 9:].tolist() == alone[:, 6:].tolist() * 2
    assert output[:, :9].tolist() == batch.tolist()


class Recorder:
    """A streamer that takes batches."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def put(self, value: Tensor) -> None:
        assert value.device.type == "cpu"
        self.values.append(value.tolist())

    def end(self) -> None:
        self.values.append("end")


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.parametrize("lengths", [(6,), RAGGED])
def test_streamers(lengths: tuple[int, ...], name: str, eos: bool) -> None:
    model, draft = pair(name)
    batch = inputs(name, lengths)
    options: dict[str, Any] = {"stopping_criteria": [Sum(900)]}
    if eos:
        options |= eos_for(model, batch, row=len(lengths) // 2)
    theirs, ours = Recorder(), Recorder()
    generate(model, **batch, **options, streamer=theirs)
    generate(model, **batch, **options, streamer=ours, custom_generate=biglittle.assisted(draft))
    assert ours.values == theirs.values
    assert ours.values[-1] == "end"


def test_text_streamers() -> None:
    model, draft = pair("llama")
    batch, words = inputs("llama", (6,)), tokenizer()
    streamer = tf.TextIteratorStreamer(words, skip_prompt=True, timeout=10)
    output = generate(model, **batch, streamer=streamer, custom_generate=biglittle.assisted(draft))
    assert "".join(streamer) == words.decode(output[0, 6:])


def test_a_streamer_reaches_a_wrapped_loop() -> None:
    model, draft = pair("llama")
    custom = biglittle.assisted(draft)
    streamer = Recorder()

    def wrapped(model: Any, input_ids: Tensor, **model_kwargs: Any) -> Any:
        return custom(model, input_ids, **model_kwargs)

    generate(model, **inputs("llama"), streamer=streamer, custom_generate=wrapped)
    assert len(streamer.values) == NEW + 2


def test_whisper_around_generate() -> None:
    model, draft = pair("whisper")
    model.generation_config.update(eos_token_id=5, pad_token_id=0)
    features = inputs("whisper")["input_features"]
    plain = model.generate(features, max_new_tokens=9)
    custom = biglittle.assisted(draft)
    assert model.generate(features, max_new_tokens=9, custom_generate=custom).equal(plain)
    assert len(custom.last) == 3


def test_a_cache_that_is_empty_is_no_obstacle() -> None:
    model, draft = pair("llama")
    plain = generate(model, **inputs("llama"))
    custom = biglittle.assisted(draft)
    cache = tf.DynamicCache()
    ours = generate(model, **inputs("llama"), cache=cache, custom_generate=custom)
    assert ours.tolist() == plain.tolist()


def test_an_encoder_runs_once() -> None:
    model, draft = pair("t5")
    calls: list[str] = []
    model.get_encoder().register_forward_hook(lambda *_: calls.append("target"))
    draft.get_encoder().register_forward_hook(lambda *_: calls.append("draft"))
    generate(model, **inputs("t5"), custom_generate=biglittle.assisted(draft))
    assert calls == ["target", *["draft"] * 3]


def test_encoder_outputs_instead_of_inputs() -> None:
    model, _ = pair("t5")
    batch = inputs("t5")
    outputs = model.get_encoder()(**batch, return_dict=True)
    options = {"encoder_outputs": outputs, "attention_mask": batch["attention_mask"]}
    plain = generate(model, **options)
    ours = generate(model, **options, custom_generate=biglittle.assisted("prompt-lookup"))
    assert ours.tolist() == plain.tolist()


def test_prompts_of_a_decoder() -> None:
    model, draft = pair("whisper")
    prompts = torch.tensor([[0, 0, 7, 9], [5, 4, 3, 8]])
    options = {"decoder_input_ids": prompts, "decoder_attention_mask": (prompts != 0).long()}
    features = inputs("whisper")["input_features"][:2]
    compare(model, biglittle.assisted(draft), {"input_features": features}, **options)


def test_a_draft_with_a_smaller_head() -> None:
    model, _ = pair("llama")
    draft = tf.LlamaForCausalLM(
        tf.LlamaConfig(
            vocab_size=96,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            bos_token_id=1,
        )
    )
    custom = biglittle.assisted(draft)
    output = generate(
        model,
        **inputs("llama"),
        return_dict_in_generate=True,
        output_scores=True,
        custom_generate=custom,
    )
    assert output.sequences.tolist() == generate(model, **inputs("llama")).tolist()
    assert output.scores[0].shape == (3, 97)
    assert custom.last[0].stats.drafted > 0


def test_adapters() -> None:
    peft = pytest.importorskip("peft")
    model, draft = pair("llama")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    batch = inputs("llama")
    plain = adapted.generate(**batch, max_new_tokens=NEW)
    assert not plain.equal(generate(build_again(), **batch)), "the adapter has no effect"
    custom = biglittle.assisted(draft)
    assert adapted.generate(**batch, max_new_tokens=NEW, custom_generate=custom).equal(plain)


def build_again() -> Any:
    return pair("llama")[0]
