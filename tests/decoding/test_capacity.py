"""What an engine takes on at a time: prompts in chunks, rows and K/V tokens, shared beginnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.fakes import (
    Markov,
    ScriptedDrafter,
    ScriptedRunner,
    check_caches,
    engine_of,
    finish,
    request,
)
from tests.models import VOCAB as TINY
from tests.models import build, encoder_inputs

from biglittle import BiglittleError, ContextError, FinishReason, ParameterError
from biglittle.decoding import Capacity, Engine, Row
from biglittle.drafters import EarlyExitDrafter, ModelDrafter, PromptLookupDrafter, model
from biglittle.engines.base import Limits, Prompt
from biglittle.engines.transformers import make_runner

VOCAB = 17


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """Drafts that read by rows what they have missed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "APART", 1)
        yield


def chain(seed: int) -> Markov:
    generator = torch.Generator().manual_seed(seed)
    return Markov(2.5 * torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))


def pair(**capacity: Any) -> tuple[Engine, ScriptedRunner, ScriptedRunner]:
    """An engine, and its two runners; the models agree about half of the time."""
    target = ScriptedRunner(chain(0), VOCAB)
    draft = ScriptedRunner(Markov(chain(0).logits + chain(1).logits), VOCAB)
    drafter = ModelDrafter(draft, VOCAB)
    engine = Engine(target, drafter, vocab=VOCAB, capacity=Capacity(**capacity))
    return engine, target, draft


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """The target's own output."""
    last, tokens = prompt[-1], []
    for _ in range(count):
        last = int(chain(0).logits[last].argmax())
        tokens.append(last)
    return tokens


PROMPTS = [[n % VOCAB for n in range(k, 3 * k + 2)] for k in (1, 6, 2, 9, 3, 1)]


def check_outputs(rows: Sequence[Row], prompts: Sequence[Sequence[int]], new: int) -> None:
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.new_tokens == greedy(prompt, new)
        assert row.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
@pytest.mark.parametrize("name", ["rows", "kv_tokens", "chunk", "prefix_tokens"])
def test_capacities_are_whole_numbers(name: str, value: Any) -> None:
    if (name, value) == ("prefix_tokens", 0):
        assert Capacity(prefix_tokens=0) == Capacity()
        return
    with pytest.raises(ParameterError, match=f"{name}="):
        Capacity(**{name: value})


# Chunks.


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("policy", ["static:tokens=3", "dynamic", "cost-aware", "none"])
def test_chunks_change_nothing(policy: str, chunk: int) -> None:
    engine, target, _ = pair(chunk=chunk)
    rows = []
    for prompt in PROMPTS:
        rows.append(engine.admit(request(prompt, policy, new=20)))
        engine.step()
        check_caches(engine)
    finish(engine)
    check_outputs(rows, PROMPTS, 20)
    assert target.lengths == []
    assert max(target.reads) <= chunk


def test_a_long_prompt_does_not_hold_up_running_rows() -> None:
    engine, target, draft = pair(chunk=4)
    short = engine.admit(request([1, 2], "static:tokens=1", new=40))
    engine.step()
    long = engine.admit(request([3] * 30, "static:tokens=1", new=4))
    written = []
    while not long.new_tokens:
        before = len(short.new_tokens), sum(target.reads), sum(draft.reads)
        assert short in engine.step()
        written.append(len(short.new_tokens) - before[0])
        assert sum(target.reads) - before[1] <= 4
    assert len(written) == 8  # parts of a prompt of 30 tokens
    assert min(written) >= 1
    while not long.finished:
        had, read = len(short.new_tokens), sum(draft.reads)
        engine.step()
        assert sum(draft.reads) - read <= 4 + 1  # and the one that a row is admitted with
        assert len(short.new_tokens) > had
    finish(engine)
    assert long.new_tokens == greedy([3], 4)


def test_the_oldest_prompt_is_read_first() -> None:
    engine, *_ = pair(chunk=5)
    rows = [engine.admit(request([n] * length, new=9)) for n, length in ((1, 8), (2, 2), (3, 9))]
    started = []
    for _ in range(4):
        engine.step()
        started.append([bool(row.new_tokens) for row in rows])
    assert started == [
        [False, False, False],
        [True, True, False],  # five, and then three and two
        [True, True, False],
        [True, True, True],
    ]


def test_samples_start_with_their_prompt() -> None:
    engine, target, _ = pair(chunk=3)
    requests = [request([1, 2, 3, 4], sampling=True, seed=n, new=5) for n in range(3)]
    for sample in requests[1:]:
        sample.prompt = requests[0].prompt
    rows = [engine.admit(sample) for sample in requests]
    engine.step()
    assert not any(row.new_tokens for row in rows)
    engine.step()
    assert all(row.new_tokens for row in rows)
    assert target.reads == [3, 1]
    finish(engine)


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("which", range(3))
def test_rows_are_cancelled_while_prompts_are_read(which: int, steps: int) -> None:
    prompts = [[1, 2], [3] * 7, [4] * 5]
    engine, target, draft = pair(chunk=2)
    rows = [engine.admit(request(prompt, "static:tokens=2", new=9)) for prompt in prompts]
    for _ in range(steps):
        engine.step()
    engine.cancel(rows[which])
    check_caches(engine)
    finish(engine)
    for n, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        written = row.new_tokens
        assert written == greedy(prompt, 9)[: len(written) if n == which else 9]
    assert target.lengths == draft.lengths == []


@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
@pytest.mark.parametrize("drafts", ["model", "exit", "lookup"])
def test_real_architectures_in_chunks_beside_each_other(name: str, drafts: str) -> None:
    if (name, drafts) == ("t5", "exit"):
        pytest.skip("its decoder's prompt is one token")
    big = build(name)
    target = make_runner(big)
    drafter: Any = PromptLookupDrafter(vocab=TINY)
    if drafts == "model":
        drafter = ModelDrafter(make_runner(build(name, seed=1)), TINY)
    elif drafts == "exit":
        drafter = EarlyExitDrafter(target, 1, TINY)
    engine = Engine(
        target, drafter, vocab=TINY, capacity=Capacity(chunk=3, rows=3, prefix_tokens=60)
    )
    beginning = [5, 9, 4, 4, 8, 5, 9]
    prompts = [[3], [*beginning, 7], [*beginning, 6, 6], [8] * 11, [*beginning, 7, 2, 1]]
    if name == "t5":
        prompts = [[0] for _ in prompts]
    rows, expected = [], []
    for n, prompt in enumerate(prompts):
        encoder = encoder_inputs(name, 3 + n, seed=n)
        asked = request(prompt, "static:tokens=3", new=8 + n)
        asked.prompt = Prompt(tuple(prompt), encoder)
        rows.append(engine.admit(asked))
        engine.step()
        ids = torch.tensor([prompt])
        inputs = {"input_ids": ids} if encoder is None else {**encoder, "decoder_input_ids": ids}
        inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
        found = big.generate(**inputs, max_new_tokens=8 + n, do_sample=False)
        expected.append(found[0, len(prompt) :].tolist())
    while engine.busy:
        engine.step()
    assert [row.new_tokens for row in rows] == expected
    reused = [row.stats.reused_tokens for row in rows]
    assert reused == ([0] * 5 if name == "t5" else [0, 0, 7, 0, 8])


# Limits.


def test_no_more_rows_than_allowed() -> None:
    engine, target, _ = pair(rows=2)
    rows = [engine.admit(request(prompt, "static:tokens=2", new=6)) for prompt in PROMPTS]
    assert engine.waiting == len(PROMPTS)
    engine.step()
    assert (len(engine.rows), engine.waiting) == (2, 4)
    finish(engine)
    check_outputs(rows, PROMPTS, 6)
    assert max(map(len, target.forwards)) == 2


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("chunk", [None, 2])
def test_kv_tokens_are_reserved(pooled: bool, chunk: int | None) -> None:
    limit = 40
    engine, target, _ = pair(kv_tokens=limit, chunk=chunk)
    target.limits = Limits(pooled=pooled)
    rows = [engine.admit(request(prompt, "static:tokens=4", new=6)) for prompt in PROMPTS]
    most = 0
    while engine.busy:
        engine.step()
        check_caches(engine)
        held = target.lengths
        assert (sum(held) if pooled else len(held) * max(held, default=0)) <= engine.reserved
        assert engine.reserved <= limit
        most = max(most, len(engine.rows))
    assert most > 1
    assert engine.reserved == 0
    check_outputs(rows, PROMPTS, 6)


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine, *_ = pair(kv_tokens=12)
    fits = engine.admit(request([1] * 6, new=6))
    with pytest.raises(ContextError, match=r"7 tokens and 6 new ones.* kv_tokens=12; shorten"):
        engine.admit(request([1] * 7, new=6))
    assert issubclass(ContextError, BiglittleError)
    finish(engine)
    check_outputs([fits], [[1]], 6)


# Shared beginnings.

SYSTEM = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("chunk", [None, 3])
def test_a_kept_beginning_is_not_read_again(chunk: int | None) -> None:
    engine, target, draft = pair(prefix_tokens=100, chunk=chunk)
    first = engine.admit(request([*SYSTEM, 9], "static:tokens=2", new=5))
    finish(engine)
    assert engine.kept_tokens == len(first.tokens) - 1
    read = sum(target.reads), sum(draft.reads)
    prompts = [[*SYSTEM, 10, 11], [*first.tokens, 12], [12, *SYSTEM]]
    rows = []
    for prompt in prompts:
        rows.append(engine.admit(request(prompt, "static:tokens=2", new=5)))
        finish(engine)
    check_outputs(rows, prompts, 5)
    # Of the answer, all but its last token is in the cache.
    assert [row.stats.reused_tokens for row in rows] == [len(SYSTEM), len(first.tokens) - 1, 0]
    assert sum(target.reads) - read[0] == 2 + 2 + 9
    assert sum(draft.reads) - read[1] <= 2 + 2 + 9 + 4  # it had not seen all of the answers


@pytest.mark.parametrize("policy", ["static:tokens=2", "none"])
def test_a_running_row_lends_its_beginning(policy: str) -> None:
    engine, target, draft = pair(prefix_tokens=1)  # too little to keep anything
    prompts = [[*SYSTEM, 9], [*SYSTEM, 10], [*SYSTEM[:4], 2], SYSTEM, SYSTEM]
    rows = []
    for prompt in prompts:
        rows.append(engine.admit(request(prompt, policy, new=9)))
        engine.step()
        engine.step()
        check_caches(engine)
    finish(engine)
    check_outputs(rows, prompts, 9)
    assert [row.stats.reused_tokens for row in rows] == [0, 8, 4, 7, 7]
    assert target.reads == [9, 1, 1, 1, 1]
    assert draft.admitted == (policy != "none")
    assert engine.kept_tokens == 0


def test_nothing_is_shared_unless_asked_for() -> None:
    engine, target, _ = pair()
    for _ in range(2):
        engine.admit(request([*SYSTEM, 9], new=4))
        engine.step()
        engine.step()
    finish(engine)
    assert target.reads == [9, 9]
    assert engine.kept_tokens == 0


def test_the_least_recently_used_goes_first() -> None:
    engine, *_ = pair(prefix_tokens=25)

    def reused(prompt: list[int]) -> int:
        row = engine.admit(request(prompt, "none", new=1))
        finish(engine)
        assert engine.kept_tokens <= 25
        return row.stats.reused_tokens

    a, b, c = [1] * 10, [2] * 10, [3] * 10
    assert [reused(a), reused(b)] == [0, 0]
    assert reused([*a[:9], 5]) == 9  # which keeps that one in use
    assert reused(c) == 0  # b goes
    assert reused([*b[:9], 5]) == 0
    assert reused([*c[:9], 5]) == 9


def test_a_longer_state_takes_the_place_of_its_beginnings() -> None:
    engine, *_ = pair(prefix_tokens=100)
    for length in (4, 8, 6):
        engine.admit(request(SYSTEM[:length], "none", new=1))
        finish(engine)
        assert engine.kept_tokens == max(length, 8 if length > 4 else 0)


def test_the_draft_s_state_outlives_an_answer_without_a_draft() -> None:
    engine, _, draft = pair(prefix_tokens=100)
    first = engine.admit(request(SYSTEM, "static:tokens=2", new=4))
    finish(engine)
    second = engine.admit(request([*first.tokens, 9], "none", new=4))
    finish(engine)
    before = sum(draft.reads)
    engine.admit(request([*second.tokens, 9], "static:tokens=2", new=4))
    finish(engine)
    assert sum(draft.reads) - before <= len(second.tokens) - len(first.tokens) + 4


def test_a_row_knows_what_the_draft_need_not_read() -> None:
    """The cost-aware rule waits for the answer to pay for the draft's reading."""
    engine, *_ = pair(prefix_tokens=1000)
    policy = "cost-aware:read=1"
    first = engine.admit(request([1, 2] * 20, policy, new=300))
    assert first.lookahead_state.plain == 24
    finish(engine)
    second = engine.admit(request([*first.tokens, 3], policy, new=2))
    engine.step()
    assert second.lookahead_state.plain < 10
    finish(engine)


def test_only_rows_that_draft_are_read_by_the_draft() -> None:
    engine, _, draft = pair()
    plain = [engine.admit(request([n] * 5, "none", new=12)) for n in (1, 2)]
    drafting = engine.admit(request([3] * 4, "static:tokens=2", new=12))
    finish(engine)
    assert draft.reads == [4]
    check_outputs([*plain, drafting], [[1], [2], [3]], 12)


def test_a_drafter_gets_its_rows_in_its_own_order() -> None:
    """Its rows come first, whoever came first."""
    target = ScriptedRunner(chain(0), VOCAB)
    engine = engine_of(target, ScriptedDrafter(lambda tokens, budget: [(1, 1.0)] * budget))
    policies = ["none", "static:tokens=2", "none", "static:tokens=1", "none"]
    lengths = [9, 3, 4, 8, 5]
    rows = [
        engine.admit(request([n], policy, new=new))
        for n, (policy, new) in enumerate(zip(policies, lengths, strict=True))
    ]
    finish(engine)
    for n, (row, new) in enumerate(zip(rows, lengths, strict=True)):
        assert row.new_tokens == greedy([n], new)
