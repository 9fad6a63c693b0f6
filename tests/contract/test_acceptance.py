"""What every acceptance rule promises. A rule in a new module has to be named, and is tested."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pkgutil
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import Markov, ScriptedRunner, engine_of, request, run

from biglittle import Policy, acceptance, parse_policy
from biglittle.acceptance import Acceptance, Block, judge
from biglittle.drafters import ModelDrafter
from biglittle.lookahead import Constant
from biglittle.policy import ACCEPTANCES

VOCAB = 9


def variants(kind: type[Any]) -> list[Acceptance]:
    """The rule, and the rule with each choice and threshold at other values."""
    rule = kind()
    found = [rule]
    for field in dataclasses.fields(kind):
        if isinstance(field.default, float):
            found += [dataclasses.replace(rule, **{field.name: value}) for value in (0.0, 0.7)]
        if isinstance(field.default, bool):
            found.append(dataclasses.replace(rule, **{field.name: not field.default}))
        choices = {"first": "target", "shortcut": "off", "distribution": "raw"}
        if field.name in choices:
            found.append(dataclasses.replace(rule, **{field.name: choices[field.name]}))
    return found


RULES = [rule for kind in ACCEPTANCES.values() for rule in variants(kind)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(Policy(Constant(), rule)))


def test_every_rule_has_its_name() -> None:
    found = set()
    for module in pkgutil.iter_modules(acceptance.__path__):
        names = vars(importlib.import_module(f"{acceptance.__name__}.{module.name}")).values()
        found |= {n for n in names if isinstance(n, type) and issubclass(n, Acceptance)}
    assert found - {Acceptance} == set(ACCEPTANCES.values())
    assert {name: kind.name for name, kind in ACCEPTANCES.items()} == {n: n for n in ACCEPTANCES}


@every_rule
def test_rules_are_frozen_values(rule: Acceptance) -> None:
    assert rule == copy.copy(rule)
    assert hash(rule) == hash(copy.copy(rule))


@every_rule
def test_strings_are_read_back(rule: Acceptance) -> None:
    for head in ("dynamic", "static:tokens=3", "fallback:threshold=0.25"):
        policy = dataclasses.replace(parse_policy(head), acceptance=rule)
        assert parse_policy(str(policy)) == policy
        assert policy.lossless == rule.lossless


def make_block(rows: int, width: int, seed: int, *, sampling: bool) -> Block:
    """Random rows: unlike counts, tokens that are excluded, drafts that are certain."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, width + 1, VOCAB, generator=generator)
    logits[torch.rand(logits.shape, generator=generator) < 0.2] = -torch.inf
    logits[..., 0] = 0.0  # never all excluded
    q = (3 * torch.randn(rows, width, VOCAB, generator=generator)).softmax(-1)
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(rows, width)
    counts = torch.randint(0, width + 1, (rows,), generator=generator)
    uniforms = torch.rand(rows, width + 1, generator=generator, dtype=torch.float64)
    uniforms[torch.rand(uniforms.shape, generator=generator) < 0.2] = 0.0
    if not sampling:
        return Block(tokens, counts, logits, logits, None, None)
    return Block(tokens, counts, logits, logits, q, uniforms)


def row_of(block: Block, row: int) -> Block:
    """One row alone, no wider than its own draft."""
    count = int(block.counts[row])
    at = slice(row, row + 1)
    q = None if block.q is None else block.q[at, :count]
    u = None
    if block.uniforms is not None:
        u = torch.cat([block.uniforms[at, :count], block.uniforms[at, -1:]], dim=1)
    logits = block.logits[at, : count + 1]
    return Block(block.tokens[at, :count], block.counts[at], logits, logits, q, u)


@every_rule
@pytest.mark.parametrize("sampling", [False, True])
@given(rows=st.integers(1, 4), width=st.integers(1, 4), seed=st.integers(0, 9999))
def test_verdicts(rule: Acceptance, sampling: bool, rows: int, width: int, seed: int) -> None:
    block = make_block(rows, width, seed, sampling=sampling)
    verdict = judge(rule, block)
    for row in range(rows):
        accepted, token = int(verdict.accepted[row]), int(verdict.next_tokens[row])
        assert 0 <= accepted <= int(block.counts[row])
        assert block.logits[row, accepted, token] > -torch.inf  # never an excluded token
        alone = judge(rule, row_of(block, row))
        assert (int(alone.accepted), int(alone.next_tokens)) == (accepted, token)
        if rule.lossless:
            kept = block.tokens[row, :accepted]
            possible = block.logits[row, torch.arange(accepted), kept]
            assert (possible > -torch.inf).all()
            if not sampling:
                best = block.logits[row].argmax(-1).tolist()
                assert [*kept.tolist(), token] == best[: accepted + 1]


BIG = Markov(2 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(3)))
LITTLE = Markov(2 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(4)))


@every_rule
def test_the_lossless_flag_is_true(rule: Acceptance) -> None:
    """Greedy output is the target's for rules that say so; others, as they come, change it."""
    little = ModelDrafter(ScriptedRunner(LITTLE, VOCAB), VOCAB)
    engine = engine_of(ScriptedRunner(BIG, VOCAB), little)
    prompts = [[n] for n in range(VOCAB)]
    drafted = run(engine, [request(p, Policy(Constant(3), rule), new=20) for p in prompts])
    plain = run(engine, [request(p, "none", new=20) for p in prompts])
    same = [a.token_ids == b.token_ids for a, b in zip(drafted, plain, strict=True)]
    if rule.lossless:
        assert all(same)
    elif rule == type(rule)():
        assert not all(same)
