"""What every lookahead rule promises. A new module of `biglittle.lookahead` is found and tested."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import Markov, ScriptedRunner, engine_of, request, round_of, run

from biglittle import Policy, parse_policy
from biglittle.drafters import ModelDrafter, PromptLookupDrafter
from biglittle.lookahead import Decision, DraftStep, Lookahead
from biglittle.lookahead.disco import Classifier
from biglittle.policy import lookahead_names
from biglittle.results import Round

VOCAB, NEW = 19, 30


torch.manual_seed(0)
CLASSIFIER = Path(tempfile.mkdtemp(prefix="biglittle-")) / "classifier.safetensors"
Classifier(3).save(CLASSIFIER)
NEEDED = {"disco": f":path={CLASSIFIER}"}
"""Options without which a rule is nothing."""


def rule_of(name: str) -> Lookahead:
    rule = parse_policy(name + NEEDED.get(name, "")).lookahead
    assert rule is not None
    return rule


NAMES = lookahead_names()
RULES = [
    dataclasses.replace(rule_of(name), tokens=tokens)  # type: ignore[type-var]
    for name in NAMES
    for tokens in (1, 4, rule_of(name).tokens)
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}-{rule.tokens}")


def make_step(rows: int, index: int, seed: int, *, with_logits: bool = True) -> DraftStep:
    """A step as a drafter makes it, of rows that are more and less sure."""
    generator = torch.Generator().manual_seed(seed)
    before = tuple(torch.rand(rows, generator=generator) for _ in range(index))
    scale = 6 * torch.rand(rows, 1, generator=generator)
    logits = scale * torch.randn(rows, VOCAB, generator=generator)
    probabilities = logits.softmax(-1)
    tokens = torch.multinomial(probabilities, 1, generator=generator)
    if not with_logits:
        return DraftStep(index, tokens[:, 0], torch.ones(rows), torch.ones(rows), None, before)
    confidence = probabilities.gather(-1, tokens)[:, 0]
    return DraftStep(index, tokens[:, 0], confidence, probabilities.amax(-1), logits, before)


def row_of(step: DraftStep, rows: Sequence[int]) -> DraftStep:
    """The step of some of its rows alone."""
    logits = None if step.logits is None else step.logits[rows]
    before = tuple(earlier[rows] for earlier in step.before)
    return DraftStep(
        step.index, step.tokens[rows], step.confidence[rows], step.top[rows], logits, before
    )


def test_there_are_rules() -> None:
    assert {"constant", "heuristic", "confidence", "fallback", "cost_aware"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_is_named_after_its_module(name: str) -> None:
    rule = rule_of(name)
    assert rule.name == name == type(rule).__module__.rpartition(".")[2]


@every_rule
def test_rules_are_frozen_values(rule: Lookahead) -> None:
    assert rule == copy.copy(rule)
    assert hash(rule) == hash(copy.copy(rule))
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.tokens = 2


HISTORY = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.floats(0, 1), st.booleans()), max_size=12
)


@every_rule
@given(history=HISTORY)
def test_budgets_are_bounded_and_states_are_values(
    rule: Lookahead, history: list[tuple[int, int, float, bool]]
) -> None:
    state, again = rule.initial(), rule.initial()
    assert state == again
    for drafted, accepted, confidence, fallback in history:
        budget = rule.budget(state)
        assert 0 <= rule.budget(state, 32, 1) <= rule.budget(state, 32) <= budget <= rule.tokens
        drafted = min(drafted, budget)
        accepted = min(accepted, drafted)
        fallback &= drafted < budget
        seen = Round(drafted, accepted, (confidence,) * drafted, fallback)
        before = copy.deepcopy(state)
        after = rule.observe(state, seen)
        assert state == before  # a state is not changed in place
        assert after == rule.observe(copy.deepcopy(before), seen)
        state = after
    assert 0 <= rule.budget(state) <= rule.tokens
    assert rule.initial() == again  # whatever was observed


@every_rule
def test_a_row_that_goes_on_drafting_gets_a_budget(rule: Lookahead) -> None:
    """Success never makes a rule stop for good."""
    state = rule.initial()
    for _ in range(20):
        assert rule.budget(state) >= 1
        state = rule.observe(state, round_of(rule.budget(state), rule.budget(state)))


@every_rule
@pytest.mark.parametrize("with_logits", [True, False])
@given(rows=st.integers(1, 5), index=st.integers(0, 3), seed=st.integers(0, 999))
def test_decisions(rule: Lookahead, with_logits: bool, rows: int, index: int, seed: int) -> None:
    step = make_step(rows, index, seed, with_logits=with_logits)
    states = [rule.initial() for _ in range(rows)]
    decisions = rule.decide(step, states)
    assert decisions.shape == (rows,)
    assert decisions.dtype == torch.int8
    assert set(decisions.tolist()) <= set(Decision)
    assert torch.equal(decisions, rule.decide(step, states))
    singly = [int(rule.decide(row_of(step, [r]), [states[r]])) for r in range(rows)]
    assert decisions.tolist() == singly
    beside = [dataclasses.replace(row_of(step, [r]), rows=8) for r in range(rows)]
    together = rule.decide(dataclasses.replace(step, rows=8), states).tolist()
    assert together == [
        int(rule.decide(own, [state])) for own, state in zip(beside, states, strict=True)
    ]
    backwards = list(reversed(range(rows)))
    assert rule.decide(row_of(step, backwards), states).tolist() == singly[::-1]


@every_rule
@given(rows=st.integers(1, 5), width=st.integers(1, 4), seed=st.integers(0, 999))
def test_whole_windows_are_decided_as_token_after_token(
    rule: Lookahead, rows: int, width: int, seed: int
) -> None:
    steps: list[DraftStep] = []
    for index in range(width):
        before = tuple(step.confidence for step in steps)
        step = make_step(rows, index, seed + index)
        steps.append(dataclasses.replace(step, before=before))
    states = [rule.observe(rule.initial(), round_of(1, row % 2)) for row in range(rows)]
    confidence = torch.stack([step.confidence for step in steps], dim=1)
    found = rule.decide_window(confidence, iter(steps), states)
    assert found.dtype == torch.int8
    singly = torch.stack([rule.decide(step, states) for step in steps], dim=1)
    assert torch.equal(found, singly)


def options(rule: Lookahead) -> list[Lookahead]:
    """The rule with each of its options at another value."""
    others: list[Lookahead] = []
    for field in dataclasses.fields(rule):  # type: ignore[arg-type]
        value = getattr(rule, field.name)
        other = {bool: not value, int: 3, float: 0.125}.get(type(value))
        if other is not None:
            others.append(dataclasses.replace(rule, **{field.name: other}))  # type: ignore[type-var]
    return others


@pytest.mark.parametrize("name", NAMES)
def test_strings_are_read_back(name: str) -> None:
    for rule in [rule_of(name), *options(rule_of(name))]:
        for tail in ("", "+bild", "+bild:rollback=0,shortcut=off"):
            policy = dataclasses.replace(parse_policy("static" + tail), lookahead=rule)
            assert parse_policy(str(policy)) == policy


def chain(seed: int) -> Markov:
    generator = torch.Generator().manual_seed(seed)
    return Markov(2.5 * torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))


BIG = chain(0)
MODELS = {"same": BIG, "near": Markov(BIG.logits + 0.4 * chain(1).logits), "unrelated": chain(2)}


@every_rule
@pytest.mark.parametrize("draft", [*MODELS, "prompt-lookup"])
def test_greedy_output_is_the_targets(rule: Lookahead, draft: str) -> None:
    prompts = [[1, 2, 3], [4], [5, 6, 5]]
    target = ScriptedRunner(BIG, VOCAB)
    drafter = (
        ModelDrafter(ScriptedRunner(MODELS[draft], VOCAB), VOCAB)
        if draft in MODELS
        else PromptLookupDrafter(vocab=VOCAB)
    )
    policy = Policy(rule)
    assert policy.lossless
    engine = engine_of(target, drafter)
    first = run(engine, [request(p, policy, new=NEW) for p in prompts])
    again = run(engine, [request(p, policy, new=NEW) for p in prompts])
    for prompt, result, other in zip(prompts, first, again, strict=True):
        last, expected = prompt[-1], []
        for _ in range(NEW):
            last = int(BIG.logits[last].argmax())
            expected.append(last)
        assert list(result.token_ids) == expected
        assert result.rounds == other.rounds  # a request does not depend on earlier ones
        assert result.origins == other.origins
    assert max(max(counts) for counts in target.forwards) <= 1 + rule.tokens
