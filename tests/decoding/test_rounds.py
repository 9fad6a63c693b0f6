"""The loop, token by token: exactly i accepted, for every i, drafter, lookahead, window, EOS, rows.

The reference below computes a row's rounds from the definitions alone, one row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from tests.fakes import ScriptedDrafter, ScriptedRunner, Table, engine_of, request, run

from biglittle import FinishReason, Origin, Round
from biglittle.drafters import Drafter, ModelDrafter, PromptLookupDrafter

VOCAB, EOS, WRONG, LOST = 128, 127, 126, 125
NEW = 12
UNSURE = {3, 4, 9}  # where the draft's probability is 0.3 instead of 0.9


@dataclass
class Case:
    """One row: what the target writes, and where the draft goes wrong.

    Of the tokens that are written after the first, which the target writes alone, the draft gets
    `right` right, one wrong, and so on. Once wrong, it stays wrong.
    """

    text: list[int]
    right: int
    prompt: list[int] = field(init=False)

    def __post_init__(self) -> None:
        # What prompt lookup needs to draft the same: every run of right tokens, then wrong ones.
        step = self.right + 1
        runs = [self.text[start : start + step] for start in range(0, len(self.text), step)]
        self.prompt = [1 + len(self.text) % 2, *(t for r in runs for t in [*r, *[WRONG] * 8]), 5]

    def draft(self, n: int, budget: int) -> list[int]:
        """What is drafted from position n of the text on."""
        ids: list[int] = []
        for position in range(n, n + budget):
            wrong = WRONG in ids or (position - 1) % (self.right + 1) == self.right
            ids.append(WRONG if wrong else self.text[position])
            if ids[-1] == EOS:
                break
        return ids

    @staticmethod
    def confidence(position: int) -> float:
        return 0.3 if position in UNSURE else 0.9


def make_case(row: int, right: int, eos: int | None) -> Case:
    """Row `row`'s own tokens, with EOS at one position."""
    text = [10 + 30 * row + n for n in range(NEW + row)]
    if eos is not None:
        text[eos] = EOS
    return Case(text, right)


# The reference.


@dataclass
class Expected:
    tokens: list[int]
    origins: list[Origin]
    rounds: list[Round] = field(default_factory=list)


@dataclass
class Ahead:
    """A lookahead by its definition."""

    window: int
    rule: str

    def stop(self, confidences: Iterable[float]) -> tuple[int, bool]:
        """Tokens kept, and whether the next one was dropped."""
        kept = 0
        for confidence in confidences:
            if confidence < 0.5 and self.rule == "fallback":
                return kept, True
            kept += 1
            if confidence < 0.5 and self.rule == "dynamic":
                break
        return kept, False

    def learn(self, drafted: int, accepted: int) -> None:
        if self.rule == "heuristic" and drafted:
            self.window = (
                min(self.window + 2, 7) if accepted == drafted else max(self.window - 1, 1)
            )


POLICIES: dict[str, Callable[[int], str]] = {
    "static": lambda w: f"static:tokens={w}",
    "heuristic": lambda w: f"heuristic:start={w},tokens=7",
    "dynamic": lambda w: f"dynamic:threshold=0.5,tokens={w}",
    "fallback": lambda w: f"fallback:threshold=0.5,tokens={w}",
}


def expect(case: Case, rule: str, window: int, *, sure: bool) -> Expected:
    """What a greedy row does: tokens, who wrote them, and its rounds."""
    ahead = Ahead(window, rule)
    found = Expected([case.text[0]], [Origin.TARGET])
    while found.tokens[-1] != EOS and len(found.tokens) < NEW:
        n = len(found.tokens)
        ids = case.draft(n, min(ahead.window, NEW - n - 1))
        confidences = [1.0 if sure else case.confidence(n + k) for k in range(len(ids))]
        if WRONG in ids and not sure:  # a draft that is lost is sure of itself
            lost = ids.index(WRONG) + 1
            confidences[lost:] = [0.9] * (len(ids) - lost)
        kept, dropped = ahead.stop(confidences)
        ids = ids[:kept]
        accepted = 0
        while accepted < len(ids) and ids[accepted] == case.text[n + accepted]:
            accepted += 1
        for k in range(accepted + 1):
            if found.tokens[-1] == EOS:
                break
            own = Origin.CORRECTED if accepted < len(ids) else Origin.TARGET
            found.tokens.append(case.text[n + k])
            found.origins.append(Origin.ACCEPTED if k < accepted else own)
        found.rounds.append(
            Round(len(ids), accepted, tuple(confidences[: kept + dropped]), dropped)
        )
        ahead.learn(len(ids), accepted)
    return found


# The three drafters, told to draft the same.


def model_drafter(cases: Sequence[Case]) -> Drafter:
    table = Table(VOCAB, lost=WRONG)
    for case in cases:
        for n in range(len(case.text)):
            (token,) = case.draft(n, 1)
            table.write([*case.prompt, *case.text[:n]], [token], case.confidence(n))
    return ModelDrafter(ScriptedRunner(table, VOCAB), VOCAB)


def scripted_drafter(cases: Sequence[Case]) -> Drafter:
    def plan(tokens: Sequence[int], budget: int) -> list[tuple[int, float]]:
        (case,) = (c for c in cases if c.prompt == list(tokens[: len(c.prompt)]))
        n = len(tokens) - len(case.prompt)
        ids = case.draft(n, budget)
        lost = ids.index(WRONG) if WRONG in ids else len(ids)
        return [(t, case.confidence(n + k) if k <= lost else 0.9) for k, t in enumerate(ids)]

    return ScriptedDrafter(plan)


def lookup_drafter(cases: Sequence[Case]) -> Drafter:
    return PromptLookupDrafter(vocab=VOCAB)


DRAFTERS = {
    "model": model_drafter,
    "scripted": scripted_drafter,
    "prompt-lookup": lookup_drafter,
}


def target_runner(cases: Sequence[Case]) -> ScriptedRunner:
    table = Table(VOCAB, lost=LOST)
    for case in cases:
        table.write(case.prompt, case.text)
    return ScriptedRunner(table, VOCAB)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("rule", POLICIES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_round_is_as_the_definitions_say(drafter: str, rule: str, rows: int) -> None:
    for window, eos in product((1, 2, 4), (None, 0, 1, 2, 4, NEW - 1)):
        for right in range(window + 1):
            cases = [make_case(r, (right + r) % (window + 1), eos) for r in range(rows)]
            where = (window, right, eos)
            sure = drafter == "prompt-lookup"
            expected = [expect(case, rule, window, sure=sure) for case in cases]
            target = target_runner(cases)
            engine = engine_of(target, DRAFTERS[drafter](cases))
            policy = POLICIES[rule](window)
            got = run(engine, [request(c.prompt, policy, new=NEW, eos=[EOS]) for c in cases])
            for result, wanted in zip(got, expected, strict=True):
                assert (where, list(result.token_ids)) == (where, wanted.tokens)
                assert (where, list(result.origins)) == (where, wanted.origins)
                assert result.rounds is not None
                assert (where, rounded(result.rounds)) == (where, wanted.rounds)
                ended = FinishReason.EOS if EOS in wanted.tokens else FinishReason.LENGTH
                assert (where, result.finish_reason) == (where, ended)
                check_stats(result.stats, wanted, model=drafter == "model")
            check_widths(target, expected)


def rounded(rounds: Sequence[Round]) -> list[Round]:
    """Rounds with confidences to six places: drafts report them in single precision."""
    return [
        Round(r.drafted, r.accepted, tuple(round(c, 6) for c in r.confidence), r.fallback)
        for r in rounds
    ]


def check_stats(stats: Any, wanted: Expected, *, model: bool) -> None:
    rounds = wanted.rounds
    assert stats.rounds == len(rounds)
    assert stats.target_passes == 1 + len(rounds)  # the prompt's own
    assert stats.new_tokens == len(wanted.tokens)
    assert stats.drafted == sum(r.drafted for r in rounds)
    assert stats.accepted == sum(r.accepted for r in rounds)
    assert stats.accepted == wanted.origins.count(Origin.ACCEPTED)
    assert stats.predicted == sum(r.drafted + r.fallback for r in rounds)
    assert stats.fallbacks == sum(r.fallback for r in rounds)
    assert stats.rollbacks == sum(r.accepted < r.drafted for r in rounds)
    assert stats.draft_passes == (stats.predicted if model else 0)


def check_widths(target: ScriptedRunner, expected: Sequence[Expected]) -> None:
    """One pass a round, as wide as the drafts of the rows that are still there."""
    passes = [sorted(counts) for counts in target.forwards]
    longest = max(len(e.rounds) for e in expected)
    wanted = [
        sorted(1 + e.rounds[k].drafted for e in expected if k < len(e.rounds))
        for k in range(longest)
    ]
    assert passes == wanted


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("window", "right"), [(w, i) for w in (1, 3, 5) for i in range(w + 1)])
def test_exactly_so_many_are_accepted(drafter: str, window: int, right: int) -> None:
    case = make_case(0, right, None)
    engine = engine_of(target_runner([case]), DRAFTERS[drafter]([case]))
    (result,) = run(engine, [request(case.prompt, f"static:tokens={window}", new=NEW)])
    assert result.rounds is not None
    full = [r for r in result.rounds if r.drafted == window]
    assert full
    assert {r.accepted for r in full} == {right}
    assert list(result.token_ids) == case.text
