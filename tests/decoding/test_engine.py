"""The engine: rows that come, go and fail, and policies that differ from row to row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers as tf
from tests.fakes import (
    ByteTokenizer,
    Markov,
    ScriptedDrafter,
    ScriptedRunner,
    Table,
    check_caches,
    engine_of,
    finish,
    request,
    run,
)
from torch import Tensor

from biglittle import FinishReason, Origin, Result, RowError
from biglittle.decoding import Engine, Request
from biglittle.decoding.sampling import Pipeline
from biglittle.drafters import ModelDrafter, PromptLookupDrafter

VOCAB = 23
EOS = VOCAB - 1


def markov(seed: int) -> Markov:
    generator = torch.Generator().manual_seed(seed)
    return Markov(2.5 * torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))


def pair(
    *, rows: int | None = None, draft_rows: int | None = None, draft_context: int | None = None
) -> Engine:
    """A target and a draft that agree about half of the time."""
    target, other = markov(0), markov(1)
    draft = Markov((target.logits + other.logits) / 2)
    little = ScriptedRunner(draft, VOCAB, context=draft_context, rows=draft_rows)
    return engine_of(ScriptedRunner(target, VOCAB, rows=rows), ModelDrafter(little, VOCAB))


def essence(result: Result) -> Any:
    """What must not depend on the rows beside it."""
    rounds = result.rounds or ()
    trace = [(r.drafted, r.accepted, r.fallback) for r in rounds]
    return result.token_ids, result.origins, result.finish_reason, trace


def greedy(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """The target's own greedy output."""
    logits, tokens = markov(0).logits, list(prompt)
    for _ in range(count):
        tokens.append(int(logits[tokens[-1]].argmax()))
    return tuple(tokens[len(prompt) :])


# A batch in which no two rows are alike.

PENALTY = tf.RepetitionPenaltyLogitsProcessor(1.3)
WARM = Pipeline(sampling=True, pointwise=(tf.TemperatureLogitsWarper(0.7),))
TOP = Pipeline(sampling=True, pointwise=(tf.TopKLogitsWarper(4), tf.TopPLogitsWarper(0.9)))


class Nudge(tf.LogitsProcessor):
    """Stateful: makes every second token that it is asked about more likely to be even."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        nudged = scores.clone()
        nudged[:, ::2] += self.calls % 2
        return nudged


def assorted() -> list[Request]:
    return [
        request([1, 2, 3], "dynamic", eos=[EOS]),
        request([4], "none"),
        request([5, 6], "bild:fallback=0.4,rollback=1", new=15),
        request([7, 8, 9, 1], "static:tokens=3", sampling=True, seed=1),
        request([2, 2], "heuristic", sampling=True, seed=2, pipeline=WARM),
        request([3, 1, 4, 1, 5], "dynamic:threshold=0.6", seed=3, pipeline=TOP, eos=[EOS]),
        request([9], "bild:fallback=0.3,rollback=2", sampling=True, seed=4),
        request([6, 5, 3], "static:tokens=4", pipeline=Pipeline(prefix=(PENALTY,))),
        request([8, 9], "static:tokens=4", pipeline=Pipeline(custom=(Nudge(),))),
        request([8, 9], "dynamic", pipeline=Pipeline(True, custom=(Nudge(),)), seed=5),
        request([1, 7], "bild:verify_end=false,after_rollback=target", new=9, eos=[0]),
        request([4, 4], "bild:first=target,shortcut=off,rollback=0.5,distribution=raw"),
        request([3], "none", sampling=True, seed=6),
    ]


ALONE = [essence(run(pair(), [r])[0]) for r in assorted()]


@pytest.mark.parametrize(
    ("rows", "draft_rows"), [(None, None), (1, None), (2, 5), (5, 3), (None, 2)]
)
def test_rows_of_a_mixed_batch_are_as_alone(rows: int | None, draft_rows: int | None) -> None:
    engine = pair(rows=rows, draft_rows=draft_rows)
    assert [essence(r) for r in run(engine, assorted())] == ALONE
    target = engine.target
    assert isinstance(target, ScriptedRunner)
    assert target.lengths == []
    most = min(limit or len(ALONE) for limit in (rows, draft_rows))
    assert max(map(len, target.forwards)) == most


@pytest.mark.parametrize("every", [1, 2, 3])
def test_requests_join_between_steps(every: int) -> None:
    engine, rows = pair(), []
    for joining in reversed(assorted()):
        rows.append(engine.admit(joining))
        for _ in range(every):
            engine.step()
            check_caches(engine)
    finish(engine)
    assert [essence(row.result()) for row in reversed(rows)] == ALONE


def test_a_row_without_drafts_never_widens_its_own_pass() -> None:
    engine = pair()
    run(engine, [request([1], "none", new=8), request([2], "static:tokens=1", new=8)])
    target = engine.target
    assert isinstance(target, ScriptedRunner)
    assert max(max(counts) for counts in target.forwards) == 2
    assert {min(counts) for counts in target.forwards} == {1}


@pytest.mark.parametrize("new", [1, 2, 3, 7])
@pytest.mark.parametrize("policy", ["static:tokens=3", "bild", "bild:verify_end=false", "none"])
def test_max_new_tokens_is_exact(policy: str, new: int) -> None:
    for result in run(pair(), [request([n, 3], policy, new=new) for n in range(4)]):
        assert len(result.token_ids) == new
        assert result.finish_reason is FinishReason.LENGTH


def test_prompt_lookup_does_not_overshoot() -> None:
    prompt = [1, 2, 3, 4, 5, 1, 2]
    table = Table(VOCAB, lost=9)
    table.write(prompt, [3, 4, 5])
    engine = engine_of(ScriptedRunner(table, VOCAB), PromptLookupDrafter(vocab=VOCAB))
    (result,) = run(engine, [request(prompt, "static:tokens=3", new=2)])
    assert result.token_ids == (3, 4)


# Samples of one prompt.


def test_samples_of_a_prompt_read_it_once() -> None:
    first = request([1, 2, 3], "static:tokens=3", sampling=True, seed=0)
    others = [request([1, 2, 3], "static:tokens=3", sampling=True, seed=n, index=n) for n in (1, 2)]
    for other in others:
        other.prompt = first.prompt
    engine = pair()
    together = run(engine, [first, *others])
    target = engine.target
    assert isinstance(target, ScriptedRunner)
    assert target.admitted == 1
    assert [r.stats.reused_tokens for r in together] == [0, 3, 3]
    assert len({r.token_ids for r in together}) == 3
    alone = [
        run(pair(), [request([1, 2, 3], "static:tokens=3", sampling=True, seed=n)])[0]
        for n in range(3)
    ]
    assert [essence(r) for r in together] == [essence(r) for r in alone]


def test_seeds_repeat_and_differ() -> None:
    def tokens(seed: int) -> tuple[int, ...]:
        return run(pair(), [request([1], sampling=True, seed=seed, new=20)])[0].token_ids

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)


def test_without_a_seed_torch_decides() -> None:
    def tokens() -> tuple[int, ...]:
        return run(pair(), [request([1], sampling=True, new=20)])[0].token_ids

    torch.manual_seed(3)
    first, second = tokens(), tokens()
    torch.manual_seed(3)
    assert tokens() == first
    assert first != second


# Cancelling.


def test_cancel_before_the_start() -> None:
    engine = pair()
    rows = [engine.admit(r) for r in assorted()]
    engine.cancel(rows[3])
    finish(engine)
    cancelled = rows[3].result()
    assert (cancelled.token_ids, cancelled.finish_reason) == ((), FinishReason.CANCELLED)
    others = [essence(row.result()) for row in rows if row is not rows[3]]
    assert others == [*ALONE[:3], *ALONE[4:]]


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("which", range(4))
def test_cancel_in_the_middle(which: int, steps: int) -> None:
    requests = [request([n], "static:tokens=2", new=14) for n in range(4)]
    engine = pair()
    rows = [engine.admit(r) for r in requests]
    for _ in range(steps):
        engine.step()
    written = len(rows[which].new_tokens)
    engine.cancel(rows[which])
    check_caches(engine)
    assert len(engine.rows) == 3
    finish(engine)
    for n, row in enumerate(rows):
        result = row.result()
        if n == which:
            assert result.finish_reason is FinishReason.CANCELLED
            assert result.token_ids == greedy([n], 14)[:written]
        else:
            assert result.token_ids == greedy([n], 14)


def test_cancel_a_row_that_the_drafter_has_not_seen() -> None:
    engine = pair()
    rows = [engine.admit(request([n], "static:tokens=2", new=14)) for n in range(2)]
    engine.step(), engine.step()
    rows += [engine.admit(request([n], "static:tokens=2", new=14)) for n in range(2, 5)]
    engine.step()  # starts them; only the next round drafts for them
    engine.cancel(rows[0])
    check_caches(engine)
    engine.cancel(rows[3])
    check_caches(engine)
    finish(engine)
    assert [row.result().token_ids for row in rows[1:3]] == [greedy([n], 14) for n in (1, 2)]
    assert rows[4].result().token_ids == greedy([4], 14)


def test_cancel_a_finished_row_changes_nothing() -> None:
    engine = pair()
    row = engine.admit(request([1], new=3))
    finish(engine)
    engine.cancel(row)
    assert row.finish_reason is FinishReason.LENGTH
    assert not engine.busy
    assert engine.step() == []


# Errors of a request's own code.


class Raises:
    """Raises at its nth call, as a processor, a criterion or a callback."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, *args: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("of my own")
        return args[1] if len(args) == 2 and isinstance(args[1], Tensor) else False


@pytest.mark.parametrize("call", [0, 1, 4])
@pytest.mark.parametrize("kind", ["processor", "criterion", "callback"])
@pytest.mark.parametrize("policy", ["static:tokens=3", "bild", "none"])
def test_an_error_ends_its_row_alone(policy: str, kind: str, call: int) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "processor": {"pipeline": Pipeline(custom=(Raises(call),))},
        "criterion": {"criteria": (Raises(call),)},
        "callback": {"on_token": Raises(call)},
    }
    bad = kinds[kind]
    requests = [
        request([1], policy, new=10),
        request([2], policy, new=10, **bad),
        request([3], policy, new=10, sampling=True, seed=0),
    ]
    good = [run(pair(), [requests[n]])[0] for n in (0, 2)]
    first, failed, last = run(pair(), requests)
    assert [essence(first), essence(last)] == [essence(r) for r in good]
    assert failed.finish_reason is FinishReason.ERROR
    assert isinstance(failed.error, RowError)
    assert isinstance(failed.error.__cause__, ZeroDivisionError)
    assert str(failed.error) == "ZeroDivisionError: of my own"
    plain = run(pair(), [request([2], policy, new=10)])[0].token_ids
    assert failed.token_ids == plain[: len(failed.token_ids)]
    assert len(failed.token_ids) < 10


def test_a_tokenizer_that_raises_ends_its_row_alone() -> None:
    class Holes(ByteTokenizer):
        def decode(self, tokens: Sequence[int], **options: Any) -> str:
            if 1 in tokens:
                raise TypeError("no such token")
            return super().decode(tokens, **options)

    other = next(n for n in range(2, VOCAB) if 1 not in greedy([n], 6))
    requests = [request([n], "none", new=6) for n in (1, other)]
    engine = engine_of(ScriptedRunner(markov(0), VOCAB), None, Holes())
    first, second = run(engine, requests)
    assert str(first.error) == "TypeError: no such token"
    assert (first.text, first.token_ids) == ("", greedy([1], 1))
    assert (second.error, second.token_ids) == (None, greedy([other], 6))


def test_processors_that_rule_out_every_token() -> None:
    def nothing(input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf)

    (result,) = run(pair(), [request([1], pipeline=Pipeline(custom=(nothing,)))])
    assert str(result.error) == "the logits processors ruled out every token"


@pytest.mark.parametrize("policy", ["static:tokens=3", "bild", "none"])
@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline(True, pointwise=(tf.SuppressTokensLogitsProcessor(list(range(VOCAB))),)),
        Pipeline(True, prefix=(tf.NoRepeatNGramLogitsProcessor(1),)),
        Pipeline(True, pointwise=(tf.TemperatureLogitsWarper(1e-40),)),
        Pipeline(True, (tf.NoRepeatNGramLogitsProcessor(1),), (lambda ids, scores: scores,)),
    ],
    ids=["all suppressed", "vocabulary used up", "too cold", "custom"],
)
def test_a_row_that_can_draw_nothing_ends_alone(pipeline: Pipeline, policy: str) -> None:
    requests = [
        request([1], policy, new=40),
        request([2], policy, new=40, pipeline=pipeline),
        request([3], policy, new=40, sampling=True, seed=0),
    ]
    good = [run(pair(), [requests[n]])[0] for n in (0, 2)]
    first, failed, last = run(pair(), requests)
    assert [essence(first), essence(last)] == [essence(r) for r in good]
    assert failed.finish_reason is FinishReason.ERROR
    assert "every" in str(failed.error)
    assert len(failed.token_ids) < VOCAB


# Processors of the request's own.


class Recorder(tf.LogitsProcessor):
    """Keeps the prefixes that it is called with."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        self.seen.append(input_ids[0].tolist())
        return scores


@pytest.mark.parametrize("policy", ["static:tokens=4", "dynamic", "bild", "none"])
@pytest.mark.parametrize("sampling", [False, True])
def test_custom_processors_see_accepted_prefixes_once(policy: str, sampling: bool) -> None:
    recorder = Recorder()
    pipeline = Pipeline(sampling, custom=(recorder,))
    eos = set(greedy([1, 2], 8)[-1:])
    (result,) = run(pair(), [request([1, 2], policy, new=20, eos=eos, pipeline=pipeline, seed=2)])
    tokens = [1, 2, *result.token_ids]
    assert recorder.seen == [tokens[:n] for n in range(2, len(tokens))]
    plain = request([1, 2], policy, new=20, eos=eos, sampling=sampling, seed=2)
    assert essence(result) == essence(run(pair(), [plain])[0])


@pytest.mark.parametrize("sampling", [False, True])
def test_custom_processors_are_not_asked_past_an_eos(sampling: bool) -> None:
    """An accepted EOS is the last token, though the target has looked at the position after it."""
    table = Table(VOCAB, lost=0)
    table.write([1], [2, 3, EOS, 4, 5], confidence=1 - 1e-12)
    drafter = ScriptedDrafter(lambda tokens, budget: [(3, 1.0), (EOS, 1.0)])
    recorder = Recorder()
    pipeline = Pipeline(sampling, custom=(recorder,))
    engine = engine_of(ScriptedRunner(table, VOCAB), drafter)
    (result,) = run(engine, [request([1], "static:tokens=4", eos=[EOS], pipeline=pipeline)])
    assert result.token_ids == (2, 3, EOS)
    assert result.origins[1:] == (Origin.ACCEPTED, Origin.ACCEPTED)
    assert recorder.seen == [[1], [1, 2], [1, 2, 3]]


def test_greedy_with_a_stateful_processor_is_plain() -> None:
    def tokens(policy: str) -> tuple[int, ...]:
        pipeline = Pipeline(custom=(Nudge(),))
        return run(pair(), [request([1], policy, new=20, pipeline=pipeline)])[0].token_ids

    assert tokens("static:tokens=5") == tokens("dynamic") == tokens("none")


def test_greedy_with_a_penalty_is_plain() -> None:
    def tokens(policy: str) -> tuple[int, ...]:
        pipeline = Pipeline(prefix=(PENALTY, tf.NoRepeatNGramLogitsProcessor(2)))
        return run(pair(), [request([1, 2], policy, new=30, pipeline=pipeline)])[0].token_ids

    assert tokens("static:tokens=5") == tokens("dynamic") == tokens("none")
    assert tokens("none") != greedy([1, 2], 30)


# Drafts that drop out.


@pytest.mark.parametrize("rows", [1, 4])
def test_a_draft_that_is_full_drops_out(rows: int) -> None:
    context, window = 12, 4
    prompts = [[1] * 3, [2] * 9, [3] * 12, [4] * 20][:rows]
    engine = pair(draft_context=context)
    results = run(engine, [request(p, f"static:tokens={window}", new=16) for p in prompts])
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == greedy(prompt, 16)
        length, left = len(prompt) + 1, 15
        for entry in result.rounds or ():
            assert entry.drafted == max(0, min(window, context - length + 1, left - 1))
            length, left = length + entry.accepted + 1, left - entry.accepted - 1
        assert result.rounds is not None
        assert result.rounds[-1].drafted == 0


def test_a_draft_that_meets_an_unknown_token_drops_out() -> None:
    known, texts = 20, {n: [5] * 10 for n in range(1, 4)}
    texts[2][4] = texts[3][0] = known + 1
    big, small = Table(VOCAB, lost=0), Table(known, lost=0)
    for n, text in texts.items():
        big.write([n], text)
        for k in range(10):
            small.write([n, *text[:k]], [5])
    little = ModelDrafter(ScriptedRunner(small, known), known)
    engine = engine_of(ScriptedRunner(big, VOCAB), little)
    results = run(engine, [request([n], "static:tokens=2", new=10) for n in texts])
    assert [list(r.token_ids) for r in results] == list(texts.values())
    assert [[r.drafted for r in result.rounds or ()] for result in results] == [
        [2, 2, 2],
        [2, 2, 0, 0, 0, 0, 0],  # the token is the target's correction of the second draft
        [0] * 9,
    ]


def test_ids_beyond_the_shared_vocabulary_are_never_written() -> None:
    shared = 10
    target = ScriptedRunner(markov(0), VOCAB)
    draft = ModelDrafter(ScriptedRunner(markov(0), VOCAB), shared)
    engine = Engine(target, draft, vocab=shared)
    requests = [request([n], "static:tokens=3", new=15, sampling=n % 2 > 0) for n in range(6)]
    requests.append(request([1, 20, 3], "static:tokens=3", new=15))
    for result in run(engine, requests):
        assert max(result.token_ids) < shared


# What rows keep.


@pytest.mark.parametrize(
    "policy", ["static:tokens=3", "bild:fallback=0.3", "bild:fallback=0.3,verify_end=false", "none"]
)
@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("sampling", [False, True])
def test_every_token_has_the_targets_log_probability(
    sampling: bool, custom: bool, policy: str
) -> None:
    warp = tf.TemperatureLogitsWarper(0.5)
    pipeline = Pipeline(sampling, custom=(Recorder(),) if custom else (), pointwise=(warp,))
    engine = pair()
    requests = [
        request([n], policy, pipeline=pipeline, seed=n, logprobs=3, keep_logits=True)
        for n in range(3)
    ]
    for asked in requests:
        asked.keep_scores = True
    rows = [engine.admit(asked) for asked in requests]
    finish(engine)
    for n, row in enumerate(rows):
        result = row.result()
        before = [n, *result.token_ids[:-1]]
        raw = markov(0).logits[torch.tensor(before)]
        assert torch.allclose(torch.stack(row.logits).double(), raw, atol=1e-5)
        assert torch.allclose(torch.stack(row.scores).double(), raw / 0.5, atol=1e-5)
        assert result.logprobs is not None
        for entry, token, expected in zip(
            result.logprobs, result.token_ids, raw.log_softmax(-1), strict=True
        ):
            assert entry.token == token
            assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-5)
            assert [t for t, _ in entry.top] == expected.topk(3).indices.tolist()


def test_the_callback_hears_every_token_in_order() -> None:
    heard: list[int] = []
    (result,) = run(pair(), [request([1], on_token=heard.append)])
    assert heard == list(result.token_ids)


def test_criteria_are_asked_after_every_token() -> None:
    lengths: list[int] = []

    def at_six(ids: Tensor, scores: Any) -> bool:
        lengths.append(ids.shape[1])
        return ids.shape[1] == 6

    (result,) = run(pair(), [request([1, 2], "static:tokens=5", criteria=(at_six,))])
    assert lengths == [3, 4, 5, 6]
    assert result.token_ids == greedy([1, 2], 4)
    assert result.finish_reason is FinishReason.STOP


# A next turn.


def test_a_next_turn_reuses_what_is_cached() -> None:
    engine = pair()
    row = engine.admit(request([1, 2, 3], "static:tokens=3", new=9, keep_state=True))
    finish(engine)
    assert row.saved is not None
    turn = [*row.tokens, 5, 6]
    again = request(turn, "static:tokens=3", new=9, saved=row.saved)
    (result,) = run(engine, [again])
    assert essence(result) == essence(run(pair(), [request(turn, "static:tokens=3", new=9)])[0])
    assert result.stats.reused_tokens == len(row.tokens) - 1


def test_a_turn_that_begins_otherwise_reuses_the_common_beginning() -> None:
    engine = pair()
    row = engine.admit(request([1, 2, 3], "static:tokens=3", new=9, keep_state=True))
    finish(engine)
    turn = [1, 2, 9, 9]
    (result,) = run(engine, [request(turn, "static:tokens=3", new=9, saved=row.saved)])
    assert result.token_ids == greedy(turn, 9)
    assert result.stats.reused_tokens == 2


# Text.


def speaker(text: str, rows: int = 1) -> tuple[Engine, list[int]]:
    """An engine that says `text`, with a draft that knows most of it."""
    prompt, tokens = list(b"say: "), list(text.encode())
    table = Table(258, lost=257)
    table.write(prompt, [*tokens, 256])

    def plan(read: Sequence[int], budget: int) -> list[tuple[int, float]]:
        at = len(read) - len(prompt)
        rest = [*tokens, 256][at : at + budget]
        return [(t if (at + k) % 7 else 257, 1.0) for k, t in enumerate(rest)]

    target = ScriptedRunner(table, 258)
    return engine_of(target, ScriptedDrafter(plan), ByteTokenizer()), prompt


@pytest.mark.parametrize("window", [1, 4, 9])
def test_nothing_past_a_stop_string_is_shown(window: int) -> None:
    engine, prompt = speaker("naïve 😀 STOP and more")
    row = engine.admit(
        request(prompt, f"static:tokens={window}", new=60, eos=[256], stop=("STOP", "never"))
    )
    pieces = []
    while engine.busy:
        engine.step()
        if chunk := row.take_chunk():
            pieces.append(chunk.text)
    result = row.result()
    assert result.text == "".join(pieces) == "naïve 😀 "
    assert result.finish_reason is FinishReason.STOP
    assert bytes(result.token_ids).decode() == "naïve 😀 STOP"


@pytest.mark.parametrize("window", [1, 4, 9])
def test_chunks_are_the_result(window: int) -> None:
    said = "ünïcødé 😀👨‍👩‍👧 end"
    engine, prompt = speaker(said)
    row = engine.admit(request(prompt, f"static:tokens={window}", new=90, eos=[256]))
    chunks = []
    while engine.busy:
        engine.step()
        if chunk := row.take_chunk():
            chunks.append(chunk)
    result = row.result()
    assert "".join(c.text for c in chunks) == result.text == said
    assert all("\ufffd" not in c.text for c in chunks)
    assert tuple(t for c in chunks for t in c.token_ids) == result.token_ids
    assert tuple(o for c in chunks for o in c.origins) == result.origins
    assert [c.finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].result == result
    assert set(result.origins) == {Origin.ACCEPTED, Origin.CORRECTED, Origin.TARGET}


def test_a_draft_that_ends_too_early_is_corrected() -> None:
    prompt, text = [1], [2, 3, 4, 5, 6]
    table = Table(VOCAB, lost=7)
    table.write(prompt, text)
    drafter = ScriptedDrafter(lambda tokens, budget: [(EOS, 1.0)] * budget)
    engine = engine_of(ScriptedRunner(table, VOCAB), drafter)
    (result,) = run(engine, [request(prompt, "static:tokens=3", new=5, eos=[EOS])])
    assert list(result.token_ids) == text
    assert result.rounds is not None
    assert {r.drafted for r in result.rounds[:-1]} == {1}  # nothing is drafted past an EOS
