"""Faults that users of other systems reported, and the right behaviour of each.

Every section rules out a whole kind of fault, on real architectures and through the public surface;
"plain" is transformers' own greedy decoding in fp32.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers as tf
from scipy import stats  # type: ignore[import-untyped]
from tests.identity.more_models import build as build_more
from tests.models import CAUSAL, VOCAB, build, encoder_inputs
from tests.reports.helpers import (
    DRAFTS,
    LOSSLESS,
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
from torch import Tensor

import biglittle
from biglittle import FinishReason, IncompatiblePairError, Pair, UnsupportedModelError
from biglittle.acceptance.rejection import rejection_accepts, rejection_replace
from biglittle.decoding import Row
from biglittle.decoding.sampling import Pipeline

every_draft = pytest.mark.parametrize("draft", DRAFTS)
every_policy = pytest.mark.parametrize("policy", LOSSLESS)


# 1. Speculative differs from greedy.


@every_draft
@every_policy
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_one_token_prompt_is_plain(name: str, policy: str, draft: str) -> None:
    for token in (3, 96):
        written = make_pair(draft, name).generate([token], policy=policy, max_new_tokens=12)
        assert tokens(written) == plain(model(name), [token], 12)


# 2. Runs past an EOS inside a block.


@every_draft
@pytest.mark.parametrize("policy", ["static:tokens=8", "heuristic"])
def test_stops_at_an_eos_wherever_it_stands_in_a_block(draft: str, policy: str) -> None:
    wanted = plain(model(), prompt())
    pair = make_pair(draft, policy=policy)
    for eos in dict.fromkeys(wanted):
        result = pair.generate(prompt(), eos_token_ids=eos, max_new_tokens=NEW_TOKENS)
        assert tokens(result) == wanted[: wanted.index(eos) + 1]
        assert len(result.origins) == len(result.token_ids)
        assert result.finish_reason is FinishReason.EOS


def test_stops_at_the_first_of_several_eos_ids_and_at_the_models_own() -> None:
    wanted = plain(model(), prompt())
    distinct = list(dict.fromkeys(wanted))
    pair = make_pair("itself", policy="static:tokens=8")
    several = pair.generate(prompt(), eos_token_ids=[distinct[4], distinct[2]], max_new_tokens=16)
    assert tokens(several) == wanted[: wanted.index(distinct[2]) + 1]

    own = build("llama")
    own.generation_config.eos_token_id = [distinct[2]]
    assert tokens(Pair(own, own).generate(prompt(), max_new_tokens=16)) == tokens(several)
    ignored = Pair(own, own).generate(prompt(), max_new_tokens=16, ignore_eos=True)
    assert tokens(ignored) == wanted


@pytest.mark.parametrize("policy", ["bild:fallback=0,rollback=1", "bild:fallback=0,rollback=inf"])
def test_bild_writes_nothing_after_an_eos(policy: str) -> None:
    pair = make_pair("unrelated", policy=policy)
    free = tokens(pair.generate(prompt(), max_new_tokens=NEW_TOKENS))
    for eos in dict.fromkeys(free):
        written = tokens(pair.generate(prompt(), eos_token_ids=eos, max_new_tokens=NEW_TOKENS))
        assert eos not in written[:-1]


@every_draft
def test_an_eos_in_the_prompt_is_no_end(draft: str) -> None:
    wanted = plain(model(), prompt())
    other = next(token for token in prompt() if token not in wanted)
    written = make_pair(draft).generate(prompt(), eos_token_ids=other, max_new_tokens=NEW_TOKENS)
    assert tokens(written) == wanted


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_stops_at_an_eos_in_encoder_decoder_models(name: str) -> None:
    start = encoder_inputs(name, 6)
    pair = make_pair("itself", name, policy="static:tokens=8")
    free = tokens(pair.generate(start, max_new_tokens=12))
    for eos in dict.fromkeys(free):
        written = tokens(pair.generate(start, eos_token_ids=eos, max_new_tokens=12))
        assert written == free[: free.index(eos) + 1]


# 3. Overshoots max_new_tokens.


@every_draft
@pytest.mark.parametrize("policy", ["static:tokens=3", "bild:fallback=0,rollback=inf"])
def test_writes_exactly_max_new_tokens(draft: str, policy: str) -> None:
    repetitive = [5, 6, 7, 8] * 4
    for new in range(1, 9):
        result = make_pair(draft).generate(repetitive, policy=policy, max_new_tokens=new)
        assert len(result.token_ids) == new
        assert result.finish_reason is FinishReason.LENGTH
        if result.lossless:
            assert tokens(result) == plain(model(), repetitive, new)


# 4. Stop string missed, or text streamed past it.

SENTENCE = "One fish, two fish. Red fish: blue fish!\nBlack fish\n\nOld fish, new fish."


def stopped(text: str, *stops: str) -> str:
    at = [found for stop in stops if (found := text.find(stop)) >= 0]
    return text[: min(at)] if at else text


@pytest.mark.parametrize("draft", ["itself", "prompt-lookup:ngram=2"])
def test_a_stop_string_that_ends_anywhere_in_a_block(draft: str) -> None:
    big, tokenizer = text_model(SENTENCE)
    pair = Pair(big, big if draft == "itself" else draft, tokenizer, policy="static:tokens=8")
    whole = SENTENCE[4:]
    for end in range(3, len(whole) - 4, 4):
        for size in (1, 4):
            stop = whole[max(0, end - size) : end]
            shown = ""
            for chunk in pair.stream(SENTENCE[:4], stop=stop, max_new_tokens=90):
                shown += chunk.text
                assert stopped(whole, stop).startswith(shown)
            assert shown == stopped(whole, stop)
            assert chunk.result is not None
            assert chunk.result.text == shown
            assert chunk.result.finish_reason is FinishReason.STOP


def test_of_several_stop_strings_the_first_to_be_complete_ends_the_text() -> None:
    big, tokenizer = text_model(SENTENCE)
    pair = Pair(big, big, tokenizer, policy="static:tokens=8")
    for stops in (["blue", "Red"], ["fish.", "sh. Red"], ["\n\n", "\nB"], ["no such", "Old"]):
        result = pair.generate(SENTENCE[:4], stop=stops, max_new_tokens=90)
        alone = Pair(big, None, tokenizer).generate(SENTENCE[:4], stop=stops, max_new_tokens=90)
        assert (result.text, result.token_ids) == (alone.text, alone.token_ids)
        assert not any(stop in result.text for stop in stops)


def test_a_stop_string_that_never_comes_holds_nothing_back_at_the_end() -> None:
    big, tokenizer = text_model(SENTENCE)
    result = Pair(big, big, tokenizer).generate(SENTENCE[:4], stop="fish.!", max_new_tokens=90)
    assert result.text == SENTENCE[4:]
    assert result.finish_reason is FinishReason.EOS


# 5, 6. A greedy draft with a soft q; a draft at another temperature.

SMALL_VOCAB, DRAWS, BATCH = 4, 1000, 250


def small(seed: int, temperature: float = 1.0) -> Any:
    torch.manual_seed(seed)
    made: Any = tf.LlamaForCausalLM(
        tf.LlamaConfig(
            vocab_size=SMALL_VOCAB,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            eos_token_id=None,
        )
    ).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.4)
    made.generation_config.do_sample = True
    made.generation_config.temperature = temperature
    return made


@torch.no_grad()
def distribution(big: Any, start: Sequence[int], new: int, temperature: float) -> Tensor:
    """Probabilities of every continuation, [vocab ** new]."""
    texts = torch.tensor(list(itertools.product(range(SMALL_VOCAB), repeat=new)))
    ids = torch.cat([torch.tensor([list(start)]).expand(len(texts), -1), texts], dim=1)
    logits = big(ids).logits[:, len(start) - 1 : -1].double() / temperature
    found: Tensor = logits.log_softmax(-1).gather(-1, texts[..., None]).sum(dim=(1, 2)).exp()
    return found


def p_value(pair: Pair, policy: str, temperature: float) -> float:
    """Of the chi-square test that samples of three tokens follow the target's distribution."""
    start, new = [0, 1, 2, 3, 0, 1], 3
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(0, DRAWS, BATCH):
        results = pair.generate(
            start, policy=policy, temperature=temperature, n=BATCH, seed=seed, max_new_tokens=new
        )
        seen.update(result.token_ids for result in results)
    texts = list(itertools.product(range(SMALL_VOCAB), repeat=new))
    counts = torch.tensor([float(seen[text]) for text in texts], dtype=torch.float64)
    expected = distribution(pair.target, start, new, temperature) * DRAWS
    rare = expected < 5  # pooled, as the test requires
    pooled = torch.cat([counts[~rare], counts[rare].sum()[None]])
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]])
    return float(stats.chisquare(pooled.numpy(), wanted.numpy()).pvalue)


@pytest.mark.parametrize(
    ("draft", "temperature"),
    [
        ("prompt-lookup", 1.0),  # drawn from a one-hot q
        ("soft", 0.5),  # its own generation_config says 1.5
    ],
)
def test_samples_follow_the_targets_distribution(draft: str, temperature: float) -> None:
    little = small(1, temperature=1.5) if draft == "soft" else draft
    assert p_value(Pair(small(0), little), "static:tokens=2", temperature) > 1e-3


def test_the_test_of_distributions_can_fail() -> None:
    """Accepting every draft is another distribution, and is found out."""
    assert p_value(Pair(small(0), small(1)), "static:tokens=2+bild:rollback=inf", 1.0) < 1e-6


def test_a_greedy_draft_has_a_one_hot_q() -> None:
    """100 000 draws of a token that was drafted greedily, accepted as if it had been sampled."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    drawn = torch.full((100_000, 1), 1)
    q = torch.nn.functional.one_hot(drawn, 4).double()
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(100_000, 2, generator=generator, dtype=torch.float64)
    stays = rejection_accepts(drawn, p.expand(100_000, 1, 4), q, u[:, :1])[:, 0]
    replaced = rejection_replace(p.expand(100_000, 4), q[:, 0], ~stays, u[:, 1])
    counts = torch.bincount(torch.where(stays, drawn[:, 0], replaced), minlength=4)
    assert stats.chisquare(counts.numpy(), (p * 100_000).numpy()).pvalue > 1e-3


# 7. The lookahead setting is ignored.


@every_draft
@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("rule", ["static", "dynamic", "heuristic", "bild"])
def test_no_verification_is_wider_than_the_lookahead(draft: str, gamma: int, rule: str) -> None:
    target = build("llama")
    little = build("llama", 1) if draft == "unrelated" else target if draft == "itself" else draft
    pair = Pair(target, little, policy=f"{rule}:tokens={gamma}")
    repetitive = [5, 6, 7, 8] * 3
    draft_alone = draft != "itself"
    with Recorder(target) as seen:
        result = pair.generate(repetitive, max_new_tokens=NEW_TOKENS, trace=True)
    assert seen.widths[0] == len(repetitive)
    if draft_alone:
        assert max(seen.widths[1:]) <= gamma + 1
    assert max(entry.drafted for entry in result.rounds) <= gamma
    if rule == "static" and draft != "prompt-lookup:ngram=2":
        assert max(entry.drafted for entry in result.rounds) == gamma


# 8. Padded vocabularies are refused.

WORDS = 100


def padded(head: int, seed: int = 0) -> Any:
    """A model with a head of that size, which likes its padding best."""
    made = build_more("LlamaForCausalLM", vocab_size=head)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
        shared = torch.randn(32, generator=torch.Generator().manual_seed(3))
        made.lm_head.weight[WORDS:] = 4 * shared
        made.model.norm.weight[:] = 1.0
        made.model.embed_tokens.weight[:] += shared
    return made


def hundred_words() -> Any:
    core = tf.PreTrainedTokenizerFast(
        tokenizer_object=word_level([f"w{i}" for i in range(WORDS)]), pad_token="w0"
    )
    assert len(core) == WORDS
    return core


def word_level(words: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0])
    )
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return core


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize(("big", "little"), [(104, 100), (100, 104), (104, 128), (104, 104)])
@pytest.mark.parametrize("known", [False, True])
def test_heads_of_different_size_with_one_tokenizer(
    big: int, little: int, known: bool, sampling: bool
) -> None:
    target, draft = padded(big), padded(little, 1)
    tokenizers = (hundred_words(), hundred_words()) if known else (None, None)
    limit = WORDS if known else min(big, little)
    pair = Pair(target, draft, *tokenizers, policy="static:tokens=4")
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3} if sampling else {}
    result = pair.generate(prompt(), max_new_tokens=NEW_TOKENS, trace=True, **options)
    assert max(result.token_ids) < limit
    assert result.stats.drafted > 0
    if not sampling:
        forbidden: dict[str, Any] = (
            {"suppress_tokens": list(range(limit, big))} if limit < big else {}
        )
        assert tokens(result) == plain(target, prompt(), **forbidden)


def test_padding_that_the_models_like_would_be_written_without_care() -> None:
    """What the case above is about."""
    assert max(plain(padded(104), prompt())) >= WORDS


def test_padding_is_never_drafted() -> None:
    drafted: list[int] = []
    target, draft = padded(104), padded(104, 1)

    def note(module: Any, args: Any, kwargs: dict[str, Tensor]) -> None:
        drafted.extend(kwargs["input_ids"].flatten().tolist())

    draft.register_forward_pre_hook(note, with_kwargs=True)
    pair = Pair(target, draft, hundred_words(), hundred_words(), policy="static:tokens=4")
    pair.generate(prompt(), max_new_tokens=NEW_TOKENS)
    assert max(drafted) < WORDS


def test_a_users_processor_is_shown_the_whole_head() -> None:
    """Grammars make their masks as wide as the head, padding included."""
    mask = torch.zeros(104)
    mask[50:60] = -float("inf")

    def grammar(input_ids: Any, scores: Any) -> Any:
        assert torch.isneginf(scores[:, WORDS:]).all()
        return scores + mask

    target = padded(104)
    pair = Pair(target, padded(100, 1), hundred_words(), hundred_words())
    result = pair.generate(prompt(), max_new_tokens=NEW_TOKENS, logits_processors=[grammar])
    forbidden = [*range(50, 60), *range(WORDS, 104)]
    assert tokens(result) == plain(target, prompt(), NEW_TOKENS, suppress_tokens=forbidden)


# 9. A foreign tokenizer.


def test_unrelated_tokenizers_are_refused() -> None:
    ours, theirs = bytes_tokenizer(), hundred_words()
    target = build_more("LlamaForCausalLM", vocab_size=len(ours))
    with pytest.raises(IncompatiblePairError, match="different tokenizers.*prompt-lookup"):
        Pair(target, padded(100), ours, theirs)


def test_tokenizers_that_differ_in_one_word_are_refused() -> None:
    words = [f"w{i}" for i in range(WORDS)]
    other = tf.PreTrainedTokenizerFast(
        tokenizer_object=word_level([*words[:7], "else", *words[8:]]), pad_token="w0"
    )
    with pytest.raises(IncompatiblePairError, match="id 7 is 'w7' and 'else'"):
        Pair(padded(100), padded(100, 1), hundred_words(), other)


def test_vocabularies_that_cannot_be_padding_are_refused_without_tokenizers() -> None:
    with pytest.raises(IncompatiblePairError, match="vocabulary of 300 and .* of 100"):
        Pair(build_more("LlamaForCausalLM", vocab_size=300), padded(100))


def test_a_foreign_tokenizer_is_refused_on_load(tmp_path: Any) -> None:
    for name, tokenizer in (("big", bytes_tokenizer()), ("little", hundred_words())):
        build_more("LlamaForCausalLM", vocab_size=len(tokenizer)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    with pytest.raises(IncompatiblePairError, match="big and .*little have different tokenizers"):
        biglittle.load(tmp_path / "big", tmp_path / "little")


# 10. A sliding window breaks in draft bursts.


@every_draft
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_a_sliding_window_in_draft_bursts(name: str, attention: str, draft: str) -> None:
    target = model(name, 0, attention)
    pair = make_pair(draft, name, attention, policy="static:tokens=4")
    starts = [prompt(length) for length in (20, 7, 33)]  # windows of 8: past, short of, far past
    wanted = [plain(target, start, 16) for start in starts]
    assert tokens(pair.generate(starts[0], max_new_tokens=16)) == wanted[0]
    assert tokens(pair.generate(starts, max_new_tokens=16)) == wanted


# 11. A stateful model silently diverges.

STATEFUL: dict[str, dict[str, Any]] = {
    "MambaForCausalLM": {"state_size": 4, "time_step_rank": 4},
    "Mamba2ForCausalLM": {
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 1,
        "state_size": 8,
        "chunk_size": 8,
    },
    "FalconMambaForCausalLM": {"state_size": 4},
    "RwkvForCausalLM": {"attention_hidden_size": 32},
    "JambaForCausalLM": {"mamba_d_state": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "BambaForCausalLM": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "RecurrentGemmaForCausalLM": {"lru_width": 32},
    "Qwen3NextForCausalLM": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention", "conv"]},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["linear_attention", "full_attention"] * 2},
}


@pytest.mark.parametrize("name", list(STATEFUL))
def test_a_model_with_a_recurrent_state_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = STATEFUL[name]
    if "layer_types" in settings:
        settings = {**settings, "num_hidden_layers": len(settings["layer_types"])}
    stateful = build_more(name, **settings)
    monkeypatch.setattr(stateful, "forward", lambda *a, **k: pytest.fail("a forward"))
    for target, draft in ((stateful, None), (stateful, "prompt-lookup"), (model(), stateful)):
        with pytest.raises(UnsupportedModelError, match=f"{name}.*cannot be rolled back"):
            Pair(target, draft)


# 12. Models of different dtypes.


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize(
    ("big", "little"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float64),
        (torch.float32, torch.float16),
    ],
)
def test_models_of_different_dtypes(big: torch.dtype, little: torch.dtype, sampling: bool) -> None:
    target, draft = build("llama").to(big), build("llama").to(little)
    options: dict[str, Any] = {"temperature": 0.8, "seed": 5} if sampling else {}
    result = Pair(target, draft).generate(prompt(), max_new_tokens=NEW_TOKENS, **options)
    assert len(result.token_ids) == NEW_TOKENS
    assert result.stats.acceptance_rate > 0.5  # the same weights, but for rounding
    if not sampling:
        assert tokens(result) == plain(target, prompt())


def test_processors_run_on_one_device() -> None:
    """They hold tensors on the target's, wherever the draft is."""
    seen: set[str] = set()

    def spy(input_ids: Any, scores: Any) -> Any:
        seen.add(f"{input_ids.device} {scores.device}")
        return torch.zeros(scores.shape) if scores.is_meta else scores

    pair = make_pair("unrelated", policy="static:tokens=3")
    request = pair.requests(prompt(), max_new_tokens=NEW_TOKENS)[0]
    elsewhere = Pipeline(prefix=(spy,), device=torch.device("meta"))
    result = pair.run([dataclasses.replace(request, pipeline=elsewhere)])[0]
    assert tokens(result) == plain(model(), prompt())
    assert seen == {"cpu cpu", "meta meta"}  # the target's logits are where they are


# 13. An odd cache layout.


@every_draft
@pytest.mark.parametrize("name", ["FalconForCausalLM", "GPTBigCodeForCausalLM", "LlamaForCausalLM"])
def test_multi_query_attention(name: str, draft: str) -> None:
    odd = {"multi_query": True, "num_key_value_heads": 1}
    known = getattr(tf, name).config_class.__dataclass_fields__
    target = build_more(name, **{key: value for key, value in odd.items() if key in known})
    drafts = {"unrelated": build("llama", 1), "itself": target}
    pair = Pair(target, drafts.get(draft, draft), policy="static:tokens=4")
    starts = [prompt(9), prompt(4)]
    assert tokens(pair.generate(starts, max_new_tokens=12)) == [
        plain(target, s, 12) for s in starts
    ]


# 14. Slower than plain with a useless draft.


def test_a_useless_draft_costs_little() -> None:
    """Passes, not time. A draft that is never sure stops after one token, and the target writes at
    least one a pass; a heuristic window shrinks to one."""
    target, flat = build("llama"), build("llama", 1)
    with torch.no_grad():
        flat.lm_head.weight.mul_(1e-3)
    alone = Pair(target).generate(prompt(), max_new_tokens=40).stats
    for policy, each in (("dynamic", 1.0), ("heuristic", 1.6), ("bild", 1.0)):
        stats_ = Pair(target, flat, policy=policy).generate(prompt(), max_new_tokens=40).stats
        own_first = policy == "bild"  # the draft writes the first token, which the target gives
        assert stats_.target_passes <= alone.target_passes + own_first
        assert stats_.draft_passes <= each * stats_.rounds
    silent = Pair(target, "prompt-lookup:ngram=3").generate(list(range(10, 20)), max_new_tokens=10)
    assert silent.stats.target_passes <= 10


# 15. No batches. 16. Rows disturb each other. 17. The seed is ignored.


@every_draft
@pytest.mark.parametrize("policy", ["dynamic", "heuristic", "bild", "bild:fallback=0,rollback=1"])
@pytest.mark.parametrize("sampling", [False, True])
def test_each_row_is_its_own_single_run(draft: str, policy: str, sampling: bool) -> None:
    """Whole sequences, origins and counts; and in another order."""
    starts = [prompt(9), [5, 6, 7, 8] * 4, prompt(1)]
    options: dict[str, Any] = {"policy": policy, "max_new_tokens": 12, "trace": True}
    if sampling:
        options |= {"temperature": 0.9, "top_k": 20, "seed": 7}
    pair = make_pair(draft)

    def essence(result: Any) -> Any:
        return result.token_ids, result.origins, [(r.drafted, r.accepted) for r in result.rounds]

    alone = [essence(pair.generate(start, **options)) for start in starts]
    assert [essence(result) for result in pair.generate(starts, **options)] == alone
    turned = pair.generate(starts[::-1], **options)
    assert [essence(result) for result in turned] == alone[::-1]


def test_a_row_that_accepts_nothing_beside_one_that_accepts_all() -> None:
    """A text that repeats itself, which a lookup foresees, beside one that only looks as if."""
    big, tokenizer = text_model("tick tock " * 12)
    pair = Pair(big, "prompt-lookup:ngram=1", tokenizer, policy="static:tokens=4")
    starts = ["tick tock tick tock ", "kkkkkkkk"]
    together = pair.generate(starts, max_new_tokens=20, trace=True)
    wanted = [plain(big, tokenizer(start).input_ids, 20) for start in starts]
    assert tokens(together) == wanted
    accepted = [[entry.accepted for entry in result.rounds] for result in together]
    assert max(accepted[0]) == 4
    assert accepted[1][0] == 0


@every_draft
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_seeds(name: str, draft: str) -> None:
    start = prompt() if name in CAUSAL else encoder_inputs(name, 6)
    pair = make_pair(draft, name)

    def sample(seed: int) -> Any:
        return tokens(pair.generate(start, temperature=1.0, seed=seed, max_new_tokens=16))

    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(5)}) == 5
    several = pair.generate(start, temperature=1.0, seed=1, n=3, max_new_tokens=16)
    assert tokens(several) == [sample(1), sample(2), sample(3)]


# 18. Penalties drift.

CONTROLS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 10},
    {"suppress_tokens": [3, 4, 5, 6]},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 5},
]


@every_draft
@pytest.mark.parametrize("controls", CONTROLS, ids=lambda c: ",".join(c))
def test_penalties_as_in_plain_decoding(draft: str, controls: dict[str, Any]) -> None:
    free = plain(model(), prompt())
    eos = free[4]
    wanted = plain(model(), prompt(), eos_token_id=eos, **controls)
    pair = make_pair(draft, policy="static:tokens=4")
    options = {"max_new_tokens": NEW_TOKENS, "eos_token_ids": eos, **controls}
    assert tokens(pair.generate(prompt(), **options)) == wanted
    beside = pair.generate([prompt(4), prompt()], **options)
    assert tokens(beside)[1] == wanted


@every_draft
def test_bad_words_as_in_plain_decoding(draft: str) -> None:
    free = plain(model(), prompt())
    words = [[free[0]], [free[1], free[2]], [free[3]]]
    written = make_pair(draft, policy="static:tokens=4").generate(
        prompt(), bad_words=words, max_new_tokens=NEW_TOKENS
    )
    assert tokens(written) == plain(model(), prompt(), bad_words_ids=words)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_penalties_in_encoder_decoder_models(name: str) -> None:
    start: Any = encoder_inputs(name, 6)
    big = model(name)
    out = big.generate(**start, max_new_tokens=16, do_sample=False, repetition_penalty=1.5)
    written = make_pair("unrelated", name).generate(
        start, max_new_tokens=16, repetition_penalty=1.5
    )
    assert tokens(written) == out[0, 1:].tolist()


def test_controls_of_the_models_own_generation_config() -> None:
    own = build("llama")
    own.generation_config.repetition_penalty = 1.4
    own.generation_config.no_repeat_ngram_size = 2
    written = Pair(own, model(seed=1)).generate(prompt(), max_new_tokens=NEW_TOKENS)
    assert tokens(written) == plain(own, prompt()) != plain(model(), prompt())


# 19. Log-probabilities are missing or wrong.


@every_draft
@pytest.mark.parametrize("controls", [{}, {"repetition_penalty": 1.3}, {"temperature": 0.7}])
def test_one_log_probability_a_token(draft: str, controls: dict[str, Any]) -> None:
    """Of the target, before any processor, whatever wrote the token."""
    result = make_pair(draft, policy="static:tokens=4").generate(
        prompt(), max_new_tokens=NEW_TOKENS, logprobs=3, seed=2, **controls
    )
    ids = torch.tensor([prompt() + tokens(result)])
    with torch.no_grad():
        logprobs = model()(ids).logits[0, len(prompt()) - 1 : -1].log_softmax(-1)
    assert [entry.token for entry in result.logprobs] == tokens(result)
    for entry, row in zip(result.logprobs, logprobs, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-3)
        best = row.topk(3)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-3)


def test_no_log_probability_after_an_end() -> None:
    free = plain(model(), prompt())
    pair = make_pair("itself", policy="static:tokens=8")
    for eos in dict.fromkeys(free[:8]):
        result = pair.generate(prompt(), eos_token_ids=eos, logprobs=0, max_new_tokens=20)
        assert [entry.token for entry in result.logprobs] == tokens(result)
    unasked = pair.generate(prompt(), max_new_tokens=4)
    assert unasked.logprobs is None


# 20. A request exceeds the draft's context.


def with_context(name: str, context: int) -> Any:
    return build_more(name, vocab_size=VOCAB, max_position_embeddings=context, n_positions=context)


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "GPT2LMHeadModel"])
@pytest.mark.parametrize("length", [5, 31, 32, 60])
@pytest.mark.parametrize("policy", ["static:tokens=5", "heuristic"])
def test_a_draft_that_is_full_drops_out(kind: str, length: int, policy: str) -> None:
    target, draft = with_context("LlamaForCausalLM", 128), with_context(kind, 32)
    with Recorder(draft) as read:
        result = Pair(target, draft).generate(prompt(length), policy=policy, max_new_tokens=40)
    assert tokens(result) == plain(target, prompt(length), 40)
    assert (result.stats.drafted > 0) == (length < 32)
    assert all(width <= 32 for width in read.widths)


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_a_full_row_does_not_take_the_draft_from_another(kind: str) -> None:
    target, draft = with_context("LlamaForCausalLM", 128), with_context(kind, 32)
    starts = [prompt(28), prompt(3), prompt(70)]
    results = Pair(target, draft, policy="static:tokens=4").generate(starts, max_new_tokens=20)
    assert tokens(results) == [plain(target, start, 20) for start in starts]
    drafted = [result.stats.drafted for result in results]
    assert drafted[0] > 0
    assert drafted[1] > drafted[0]
    assert drafted[2] == 0


# 21. An n-gram draft changes greedy output.


@pytest.mark.parametrize("ngram", [1, 2, 3, 10])
@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_prompt_lookup_on_repetitive_text(name: str, ngram: int) -> None:
    pair = make_pair(f"prompt-lookup:ngram={ngram}", name, policy="static:tokens=6")
    if name == "t5":
        start: Any = encoder_inputs(name, 8)
        assert tokens(pair.generate(start, max_new_tokens=30)) == tokens(
            Pair(model(name)).generate(start, max_new_tokens=30)
        )
        return
    for start in ([7] * 12, [5, 6, 7, 8] * 5, [9, 9, 4] * 4, prompt(6) * 3):
        assert tokens(pair.generate(start, max_new_tokens=30)) == plain(model(name), start, 30)


# 22. Streaming loses or splits characters.

EMOJI = "Käse 🧀, flags 🏳️‍🌈🇪🇺, 中文字符, naïve 👩‍👩‍👧‍👦 and e\u0301 done 🎉🎉🎉."


@pytest.mark.parametrize("gamma", [1, 3, 8, 20])
@pytest.mark.parametrize("draft", ["itself", "prompt-lookup:ngram=2"])
def test_streamed_text_is_whole_and_complete(draft: str, gamma: int) -> None:
    big, tokenizer = text_model(EMOJI)
    pair = Pair(big, big if draft == "itself" else draft, tokenizer)
    chunks = list(pair.stream("Käse", policy=f"static:tokens={gamma}", max_new_tokens=200))
    assert "".join(chunk.text for chunk in chunks) == EMOJI[4:]
    assert not any("\ufffd" in chunk.text for chunk in chunks)
    assert chunks[-1].result is not None
    assert chunks[-1].result.text == EMOJI[4:]
    streamed = [token for chunk in chunks for token in chunk.token_ids]
    assert streamed == list(chunks[-1].result.token_ids)
    if draft == "itself" and gamma == 20:
        assert len(chunks) < len(streamed) / 10


def test_text_that_is_cut_inside_a_character() -> None:
    """The end shows what the tokenizer shows; nothing of it is streamed before it is certain."""
    big, tokenizer = text_model(EMOJI)
    pair = Pair(big, big, tokenizer, policy="static:tokens=8")
    for new in range(1, 40):
        chunks = list(pair.stream("Käse", max_new_tokens=new))
        result = chunks[-1].result
        assert result is not None
        assert "".join(chunk.text for chunk in chunks) == result.text
        assert result.text == tokenizer.decode(result.token_ids, skip_special_tokens=True)
        assert not any("\ufffd" in chunk.text for chunk in chunks[:-1])


def test_rows_of_a_stream_keep_their_own_text() -> None:
    big, tokenizer = text_model(EMOJI)
    pair = Pair(big, big, tokenizer, policy="static:tokens=5")
    starts = ["Käse", "Käse 🧀, flags", "Käse 🧀"]
    shown = dict.fromkeys(range(3), "")
    for chunk in pair.stream(starts, max_new_tokens=200):
        shown[chunk.index] += chunk.text
    assert [start + shown[i] for i, start in enumerate(starts)] == [EMOJI] * 3


# 23. The context's end is passed by the draft.


@every_draft
@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "GPT2LMHeadModel"])
@pytest.mark.parametrize("left", [1, 2, 3, 6])
def test_a_prompt_near_the_end_of_the_context(kind: str, draft: str, left: int) -> None:
    target = with_context(kind, 32)
    drafts = {"unrelated": build("llama", 1), "itself": target}
    pair = Pair(target, drafts.get(draft, draft))
    start = prompt(32 - left)
    with Recorder(target) as seen:
        result = pair.generate(start, policy="static:tokens=5")
    assert tokens(result) == plain(target, start, left)
    assert result.finish_reason is FinishReason.LENGTH
    assert all(entry <= 32 for entry in seen.widths)
    rows = pair.generate([start, prompt(4)], policy="static:tokens=5", max_new_tokens=20)
    assert tokens(rows) == [plain(target, start, left), plain(target, prompt(4), 20)]


# 24. Processors are stale or skipped. 25. A grammar is queried after EOS.


class Grammar(tf.LogitsProcessor):
    """Stateful: forbids the last token, and every other time the three tokens after it."""

    def __init__(self, eos: int | None = None) -> None:
        self.seen: list[list[int]] = []
        self.eos = eos

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        ids = input_ids[0].tolist()
        assert self.eos is None or ids[-1] != self.eos, "asked after the end"
        if self.seen:
            assert ids[:-1] == self.seen[-1], "asked for a prefix that is no step further"
        self.seen.append(ids)
        scores = scores.clone()
        scores[:, ids[-1]] = -float("inf")
        if len(self.seen) % 2:
            scores[:, (ids[-1] + 1) % VOCAB] = -float("inf")
        return scores


@every_draft
@pytest.mark.parametrize("policy", [*LOSSLESS, "bild:fallback=0,rollback=3"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_stateful_processor_sees_accepted_prefixes_once(
    draft: str, policy: str, temperature: float
) -> None:
    grammar = Grammar()
    result = make_pair(draft).generate(
        prompt(),
        policy=policy,
        temperature=temperature,
        seed=4,
        max_new_tokens=16,
        logits_processors=[grammar],
    )
    whole = prompt() + tokens(result)
    assert grammar.seen == [whole[: len(prompt()) + i] for i in range(16)]
    if temperature == 0 and result.lossless:
        wanted = plain(model(), prompt(), 16, logits_processor=tf.LogitsProcessorList([Grammar()]))
        assert tokens(result) == wanted


@every_draft
def test_no_processor_is_asked_after_eos(draft: str) -> None:
    pair = make_pair(draft, policy="static:tokens=8")
    free = tokens(pair.generate(prompt(), max_new_tokens=16, logits_processors=[Grammar()]))
    for eos in dict.fromkeys(free):
        written = pair.generate(
            prompt(), eos_token_ids=eos, max_new_tokens=16, logits_processors=[Grammar(eos)]
        )
        assert tokens(written) == free[: free.index(eos) + 1]


def test_rows_with_processors_beside_each_other() -> None:
    grammars = [Grammar(), Grammar()]
    pair = make_pair("unrelated", policy="static:tokens=4")
    requests = [
        pair.requests(start, max_new_tokens=12, logits_processors=[grammar])[0]
        for start, grammar in zip((prompt(9), prompt(4)), grammars, strict=True)
    ]
    results = pair.run([*requests, *pair.requests(prompt(), max_new_tokens=12)])
    alone = [
        pair.generate(start, max_new_tokens=12, logits_processors=[Grammar()])
        for start in (prompt(9), prompt(4))
    ]
    assert tokens(results) == [*tokens(alone), plain(model(), prompt(), 12)]


# 26. A token with p = 0 is accepted when r = 0. 27. An empty residual gives NaN.


@pytest.fixture
def uniforms(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes every row draw that number."""

    def always(value: float) -> None:
        monkeypatch.setattr(
            Row, "uniforms", lambda self, n: torch.full((n,), value, dtype=torch.float64)
        )

    return always


def test_a_token_without_probability_is_rejected_when_r_is_0() -> None:
    p = torch.tensor([[[0.0, 0.25, 0.75]]])
    q = torch.tensor([[[1.0, 0.0, 0.0]]])
    zero = torch.zeros(1, 1, dtype=torch.float64)
    assert not rejection_accepts(torch.tensor([[0]]), p, q, zero).any()
    assert rejection_accepts(torch.tensor([[1]]), p, q, zero).all()


@pytest.mark.parametrize("draft", ["unrelated", "prompt-lookup:ngram=1"])
def test_nothing_that_the_processors_rule_out_is_accepted(
    draft: str, uniforms: Callable[[float], None]
) -> None:
    """With top_k = 1 only the target's own choice has a probability."""
    uniforms(0.0)
    result = make_pair(draft, policy="static:tokens=4").generate(
        [5, 6, 7, 8] * 4, temperature=1.0, top_k=1, max_new_tokens=NEW_TOKENS
    )
    assert tokens(result) == plain(model(), [5, 6, 7, 8] * 4)


def test_an_empty_residual_samples_p() -> None:
    p = torch.tensor([[0.1, 0.6, 0.3]], dtype=torch.float64)
    rejected = torch.tensor([True])
    for u, token in ((0.0, 0), (0.09, 0), (0.11, 1), (0.69, 1), (0.71, 2), (0.999999, 2)):
        drawn = rejection_replace(p, p.clone(), rejected, torch.tensor([u], dtype=torch.float64))
        assert drawn.tolist() == [token]


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
def test_a_draft_that_is_the_target_at_any_draw(
    u: float, uniforms: Callable[[float], None]
) -> None:
    """p = q but for rounding, which may reject and leave no residual worth the name."""
    uniforms(u)
    result = make_pair("itself", policy="static:tokens=4").generate(
        prompt(), temperature=1.0, max_new_tokens=NEW_TOKENS
    )
    assert len(result.token_ids) == NEW_TOKENS
    assert all(0 <= token < VOCAB for token in result.token_ids)
