"""BiLD through the engine: its limits, and every choice in which the paper and its code differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers as tf
from tests.fakes import (
    Markov,
    ScriptedDrafter,
    ScriptedRunner,
    engine_of,
    request,
    run,
)
from torch import Tensor

from biglittle import FinishReason, Origin, Result
from biglittle.decoding.sampling import Pipeline
from biglittle.drafters import ModelDrafter

VOCAB, NEW = 17, 25
PROMPTS = [[1, 2, 3], [4], [5, 6]]


def chain(seed: int) -> Markov:
    generator = torch.Generator().manual_seed(seed)
    return Markov(2 * torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))


BIG, LITTLE = chain(0), chain(1)


def bild(policy: str, **options: Any) -> list[Result]:
    """Ragged rows with two models that know nothing of each other."""
    little = ModelDrafter(ScriptedRunner(LITTLE, VOCAB), VOCAB)
    engine = engine_of(ScriptedRunner(BIG, VOCAB), little)
    return run(engine, [request(p, policy, new=NEW, **options) for p in PROMPTS])


def written(prompt: Sequence[int], by_target: Sequence[bool]) -> list[int]:
    """Greedy tokens, every one by the model whose turn it is."""
    last, tokens = prompt[-1], []
    for big in by_target:
        last = int((BIG if big else LITTLE).logits[last].argmax())
        tokens.append(last)
    return tokens


# The limits.


@pytest.mark.parametrize("rollback", ["0", "3", "inf"])
@pytest.mark.parametrize("sampling", [False, True])
def test_fallback_above_one_is_the_target_alone(sampling: bool, rollback: str) -> None:
    results = bild(f"bild:fallback=1.1,rollback={rollback}", sampling=sampling, seed=3)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert set(result.origins) == {Origin.TARGET}
        assert (result.stats.drafted, result.stats.rollbacks) == (0, 0)
        # The last token is not worth a draft: the target's own would follow it.
        assert result.stats.fallbacks == result.stats.predicted == NEW - 1
        if not sampling:
            assert list(result.token_ids) == written(prompt, [True] * NEW)


@pytest.mark.parametrize("shortcut", ["on", "off", "rest"])
@pytest.mark.parametrize("rollback", ["-1", "-inf"])
def test_rollback_below_zero_is_the_targets_greedy_output(rollback: str, shortcut: str) -> None:
    results = bild(f"bild:fallback=0,rollback={rollback},shortcut={shortcut},tokens=1")
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == written(prompt, [True] * NEW)
        if shortcut == "off":  # not one drafted token stays
            assert result.stats.rollbacks == result.stats.drafted == NEW - 1
            assert result.stats.accepted == 0


def test_rollback_below_zero_with_longer_windows() -> None:
    for shortcut in ("on", "off"):
        results = bild(f"bild:fallback=0,rollback=-1,shortcut={shortcut},tokens=4")
        for prompt, result in zip(PROMPTS, results, strict=True):
            assert list(result.token_ids) == written(prompt, [True] * NEW)


@pytest.mark.parametrize("window", [1, 3, 10, 40])
def test_without_both_policies_the_draft_writes_all_but_the_hand_overs(window: int) -> None:
    """The target writes after each full window, and the last token, which ends a window too."""
    turns = [n % (window + 1) == window or n == NEW - 1 for n in range(NEW)]
    for prompt, result in zip(
        PROMPTS, bild(f"bild:fallback=0,rollback=inf,tokens={window}"), strict=True
    ):
        assert list(result.token_ids) == written(prompt, turns)
        assert [o is Origin.TARGET for o in result.origins] == turns
        assert Origin.CORRECTED not in result.origins


@pytest.mark.parametrize("window", [1, 3, 40])
def test_the_same_when_the_end_is_not_verified(window: int) -> None:
    turns = [n % (window + 1) == window for n in range(NEW)]
    policy = f"bild:fallback=0,rollback=inf,verify_end=false,tokens={window}"
    for prompt, result in zip(PROMPTS, bild(policy), strict=True):
        assert list(result.token_ids) == written(prompt, turns)
        assert [o is Origin.TARGET for o in result.origins] == turns


def test_the_same_when_the_target_begins() -> None:
    turns = [n % 5 == 0 or n == NEW - 1 for n in range(NEW)]
    results = bild("bild:fallback=0,rollback=inf,first=target,tokens=4")
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert list(result.token_ids) == written(prompt, turns)


def test_thresholds_of_zero_are_honoured() -> None:
    """Fallback 0 never falls back; rollback 0 keeps only what the target would write itself."""
    for prompt, result in zip(PROMPTS, bild("bild:fallback=0,rollback=0"), strict=True):
        assert list(result.token_ids) == written(prompt, [True] * NEW)
        assert result.stats.fallbacks == 0
        assert result.stats.drafted > 0


def test_thresholds_trade() -> None:
    """A higher rollback threshold keeps more of the draft, a higher fallback drafts less."""
    kept = [
        sum(r.stats.acceptance_rate for r in bild(f"bild:fallback=0,rollback={rollback}"))
        for rollback in (0, 1, 2, 4, 8)
    ]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1]
    drafted = [
        sum(r.stats.drafted for r in bild(f"bild:fallback={fallback},rollback=inf"))
        for fallback in (0, 0.3, 0.6, 0.9, 1.1)
    ]
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[0] > drafted[-1] == 0


# The choices. The target always says the same: token 1 most likely (0.5 nats), then 2 (1.2),
# and all others far away (4.1). What is drafted is told for every position of the text.

FIRST, SECOND, FAR, END = 1, 2, 3, 7
SAYS = torch.tensor([0.1 / 6, 0.6, 0.3, *[0.1 / 6] * 5], dtype=torch.float64).log()
ACCEPTED, CORRECTED, TARGET = Origin.ACCEPTED, Origin.CORRECTED, Origin.TARGET


def choose(
    options: str, drafted: Sequence[int], new: int = 8, says: Tensor = SAYS, **rest: Any
) -> Result:
    def plan(tokens: Sequence[int], budget: int) -> list[tuple[int, float]]:
        at = len(tokens) - 1
        return [(token, 1.0) for token in drafted[at : at + budget]]

    engine = engine_of(ScriptedRunner(lambda prefix: says, len(says)), ScriptedDrafter(plan))
    policy = "bild:fallback=0,tokens=4" + ("," + options if options else "")
    (result,) = run(engine, [request([0], policy, new=new, eos=[END], **rest)])
    return result


@pytest.mark.parametrize(
    ("first", "origins"),
    [("draft", [ACCEPTED] * 4 + [TARGET]), ("target", [TARGET] + [ACCEPTED] * 4)],
)
def test_who_emits_the_first_token(first: str, origins: list[Origin]) -> None:
    result = choose(f"first={first}", [SECOND] * 9)
    assert list(result.origins[:5]) == origins
    assert result.token_ids[:5] == tuple(
        FIRST if origin is TARGET else SECOND for origin in origins
    )


def test_after_a_rollback_the_draft_goes_on_at_once() -> None:
    result = choose("rollback=2", [SECOND, SECOND, FAR, *[SECOND] * 9])
    assert result.token_ids == (SECOND, SECOND, FIRST, *[SECOND] * 4, FIRST)
    assert list(result.origins[:4]) == [ACCEPTED, ACCEPTED, CORRECTED, ACCEPTED]
    assert [(r.drafted, r.accepted) for r in result.rounds or ()] == [(4, 2), (4, 4)]
    assert result.stats.target_passes == 3  # the prompt, and one for each round


def test_after_a_rollback_the_target_goes_on() -> None:
    result = choose("rollback=2,after_rollback=target", [SECOND, SECOND, FAR, *[SECOND] * 9])
    assert result.token_ids == (SECOND, SECOND, FIRST, FIRST, *[SECOND] * 3, FIRST)
    assert list(result.origins[:5]) == [ACCEPTED, ACCEPTED, CORRECTED, TARGET, ACCEPTED]
    assert [(r.drafted, r.accepted) for r in result.rounds or ()] == [(4, 2), (0, 0), (3, 3)]
    assert result.stats.target_passes == 4


@pytest.mark.parametrize("custom", [(), (lambda ids, scores: scores,)])
@pytest.mark.parametrize(
    ("shortcut", "accepted"),
    [
        ("on", 1),  # the favourite stays, the next violation counts
        ("off", 0),  # the favourite itself is rolled back, to itself
        ("rest", 4),  # and with it whatever comes later in this window
    ],
)
def test_a_violation_that_is_the_targets_favourite(
    shortcut: str, accepted: int, custom: tuple[Any, ...]
) -> None:
    result = choose(
        f"rollback=0.1,shortcut={shortcut}",
        [FIRST, SECOND, FAR, SECOND],
        pipeline=Pipeline(custom=custom),
    )
    assert result.rounds is not None
    assert (result.rounds[0].drafted, result.rounds[0].accepted) == (4, accepted)
    assert result.token_ids[0] == FIRST


def test_the_draft_ends_verified() -> None:
    result = choose("rollback=2", [SECOND, END, *[SECOND] * 9])
    assert result.token_ids[:2] == (SECOND, FIRST)
    assert result.finish_reason is FinishReason.LENGTH


def test_the_draft_ends_unverified() -> None:
    result = choose("rollback=2,verify_end=false", [SECOND, END, *[SECOND] * 9])
    assert result.token_ids == (SECOND, END)
    assert result.finish_reason is FinishReason.EOS
    assert result.stats.target_passes == 1  # the prompt's


@pytest.mark.parametrize("stage", ["custom", "prefix", "pointwise"])
def test_what_a_processor_forbids_does_not_end_a_row_unverified(stage: str) -> None:
    """The draft knows nothing of the user's processors, nor a draft without a model of any."""
    forbids = tf.SuppressTokensLogitsProcessor([END], device="cpu")
    stages: dict[str, Any] = {stage: (forbids,)}
    pipeline = Pipeline(**stages)
    draft = [SECOND, END, *[SECOND] * 9]
    result = choose("rollback=100,verify_end=false", draft, pipeline=pipeline, new=6)
    assert END not in result.token_ids
    assert result.finish_reason is FinishReason.LENGTH


def test_an_end_within_the_threshold_stays() -> None:
    result = choose("rollback=5", [SECOND, END, *[SECOND] * 9])
    assert result.token_ids == (SECOND, END)
    assert list(result.origins) == [ACCEPTED, ACCEPTED]


def test_a_replacement_that_is_the_end_ends_the_row() -> None:
    says = SAYS.clone()
    says[END] = 9.0
    result = choose("rollback=2", [FAR] * 9, says=says)
    assert result.token_ids == (END,)
    assert (result.finish_reason, result.origins) == (FinishReason.EOS, (CORRECTED,))


def test_the_tail_is_verified() -> None:
    result = choose("rollback=2", [SECOND, SECOND, FAR], new=3)
    assert result.token_ids == (SECOND, SECOND, FIRST)
    assert [(r.drafted, r.accepted) for r in result.rounds or ()] == [(2, 2)]


def test_the_tail_is_not_verified() -> None:
    result = choose("rollback=2,verify_end=false", [SECOND, SECOND, FAR], new=3)
    assert result.token_ids == (SECOND, SECOND, FAR)
    assert result.stats.target_passes == 1


@pytest.mark.parametrize(("distribution", "accepted"), [("processed", 0), ("raw", 4)])
def test_which_distribution_the_distance_is_read_from(distribution: str, accepted: int) -> None:
    """At temperature 1/3 the second token is 2.2 nats away instead of 1.2."""
    cold = Pipeline(pointwise=(tf.TemperatureLogitsWarper(1 / 3),))
    result = choose(f"rollback=2,distribution={distribution}", [SECOND] * 9, pipeline=cold)
    assert result.rounds is not None
    assert result.rounds[0].accepted == accepted


def test_both_policies_hold_when_sampling() -> None:
    """Tokens within the threshold stay whatever the numbers drawn; others are the target's."""
    for seed in range(20):
        result = choose("rollback=2", [SECOND, FIRST, FAR, FAR], sampling=True, seed=seed)
        assert result.rounds is not None
        assert (result.rounds[0].drafted, result.rounds[0].accepted) == (4, 2)
        assert result.token_ids[:2] == (SECOND, FIRST)
        assert result.origins[2] is CORRECTED
    assert math.isclose(float(SAYS[FAR]), -4.09, abs_tol=0.01)


def test_rows_with_an_unverified_end_beside_others() -> None:
    """In a batch the target looks at the others; what it says of an unverified end is not asked."""

    def plan(tokens: Sequence[int], budget: int) -> list[tuple[int, float]]:
        return [(END if tokens[0] == 0 else SECOND, 1.0)] * budget

    engine = engine_of(ScriptedRunner(lambda prefix: SAYS, len(SAYS)), ScriptedDrafter(plan))
    policy = "bild:fallback=0,rollback=2,tokens=4"
    ends, goes_on = run(
        engine,
        [
            request([0], policy + ",verify_end=false", eos=[END]),
            request([1], policy, eos=[END], new=10),
        ],
    )
    assert (ends.token_ids, ends.finish_reason) == ((END,), FinishReason.EOS)
    assert goes_on.token_ids == (*[SECOND] * 4, FIRST, *[SECOND] * 4, FIRST)
