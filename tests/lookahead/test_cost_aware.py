"""Cost-aware lookahead: what a token is worth against what it costs, and when to leave off."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.fakes import round_of

from biglittle import PolicyError, Round, parse_policy
from biglittle.lookahead import CostAware, Decision, DraftStep
from biglittle.lookahead.cost_aware import PAUSE, RARE, REACH, WIDTHS, _beside, _marginal, _pass

CHEAP = CostAware(draft=0.01, verify=(1.0, 1.0, 1.0, 1.0))
DEAR = CostAware(draft=0.3, verify=(1.5, 2.5, 4.5, 8.5))  # half a step a token


def decide(rule: CostAware, *confidence: float, state: Any = None) -> Decision:
    """What the rule says of the last token of a window of such confidences."""
    *before, last = (torch.tensor([sure]) for sure in confidence)
    step = DraftStep(len(before), torch.tensor([1]), last, last, None, tuple(before))
    return Decision(int(rule.decide(step, [state or rule.initial()])))


def test_a_sure_token_is_followed_by_another() -> None:
    assert decide(CHEAP, 0.97) == decide(CostAware(), 0.999) == Decision.CONTINUE
    assert decide(DEAR, 0.999) == Decision.KEEP  # the next one is not expected to be as sure


def test_a_token_that_is_not_worth_its_verification_is_dropped() -> None:
    assert decide(DEAR, 0.4) == Decision.DROP
    assert decide(CHEAP, 0.4) != Decision.DROP  # to verify it costs nothing


def test_doubt_adds_up_over_the_window() -> None:
    window: list[float] = []
    while decide(CostAware(), *window, 0.75) == Decision.CONTINUE:
        window.append(0.75)
    assert 1 <= len(window) <= 4
    assert decide(CostAware(), 0.75) == Decision.CONTINUE


@pytest.mark.parametrize("confidence", [0.2, 0.6, 0.9, 0.999])
def test_dearer_drafts_and_passes_make_windows_shorter(confidence: float) -> None:
    def length(rule: CostAware) -> int:
        window = [confidence]
        while len(window) < 16 and decide(rule, *window) == Decision.CONTINUE:
            window.append(confidence)
        return len(window) - (decide(rule, *window) == Decision.DROP)

    by_draft = [length(CostAware(draft=cost)) for cost in (0.0, 0.1, 0.3, 0.6, 0.9)]
    assert by_draft == sorted(by_draft, reverse=True)
    passes = [(1 + c, 1 + 3 * c, 1 + 7 * c, 1 + 15 * c) for c in (0.0, 0.05, 0.2, 0.6)]
    by_pass = [length(CostAware(verify=verify)) for verify in passes]
    assert by_pass == sorted(by_pass, reverse=True)


def test_learns_what_confidence_is_worth_here() -> None:
    rule = CostAware(draft=0.1, verify=(1.2, 1.6, 2.4, 4.0))
    state = rule.initial()
    assert decide(rule, 0.6, state=state) == Decision.CONTINUE
    for _ in range(9):
        state = rule.observe(state, Round(2, 1, (0.97, 0.6), fallback=False))
    assert decide(rule, 0.6, state=state) == Decision.DROP
    assert decide(rule, 0.97, state=state) == Decision.CONTINUE


def test_unsure_drafts_that_are_given_up_teach_as_well() -> None:
    """Each costs a draft step; a draft that is never sure is not asked on and on."""
    rule = CostAware()
    state, rounds = rule.initial(), 0
    while rule.budget(state):
        state = rule.observe(state, Round(0, 0, (0.05,), fallback=True))
        rounds += 1
    assert rounds < 16


def test_windows_start_short_and_grow_with_success() -> None:
    rule = CostAware()
    state, budgets = rule.initial(), []
    for _ in range(5):
        budgets.append(rule.budget(state))
        state = rule.observe(state, round_of(budgets[-1], budgets[-1], 0.99))
    assert budgets == [REACH, 2 * REACH, 4 * REACH, rule.tokens, rule.tokens]
    short = rule.observe(rule.initial(), round_of(1, 1, 0.99))
    assert rule.budget(short) == REACH  # it was the rule that stopped there


def lost(rule: CostAware) -> Any:
    """The state of a row in which speculation has just lost."""
    state = rule.initial()
    while rule.budget(state):
        state = rule.observe(state, round_of(rule.budget(state), 0, 0.99))
    return state


@pytest.mark.parametrize(("read", "times"), [(0.01, RARE), (0.0, 1)])
def test_pauses_where_speculation_loses_and_looks_again(read: float, times: int) -> None:
    rule = CostAware(read=read)
    state = lost(rule)
    pauses = []
    for _ in range(5):
        pause = 0
        while not rule.budget(state):
            state = rule.observe(state, round_of(0, 0))
            pause += 1
        pauses.append(pause)
        assert rule.budget(state) == 1  # a short look
        state = rule.observe(state, round_of(1, 0, 0.99))
    first, most = (times * pause for pause in PAUSE)
    assert pauses == [min(first * 2**n, most) for n in range(5)]


def test_comes_back_when_the_draft_does() -> None:
    rule = CostAware()
    state = lost(rule)
    windows: list[int] = []
    while len(windows) < 150 and (not windows or windows[-1] < rule.tokens):
        windows.append(rule.budget(state))
        state = rule.observe(state, round_of(windows[-1], windows[-1], 0.99))
    assert windows[-1] == rule.tokens


@pytest.mark.parametrize("confidence", [0.05, 0.5, 0.96, 0.999])
@pytest.mark.parametrize(
    "rule",
    [
        CostAware(),
        CostAware(draft=0.15, verify=(1.1, 1.3, 1.9, 3.4)),
        CostAware(draft=0.37, verify=(1.15, 1.46, 2.63, 5.0)),
        CostAware(draft=0.25, verify=(1.0, 1.01, 1.03, 1.08), read=0.002),
        CostAware(draft=0.36, verify=(1.17, 1.24, 1.8, 2.7), read=0.025),
    ],
)
def test_a_useless_draft_costs_little(rule: CostAware, confidence: float) -> None:
    """By its own costs, the draft's reading among them, at most 3 % of 256 tokens."""
    state, spent, unread = rule.initial(64), 0.0, 64
    for _ in range(256):
        drafted = 0
        fallback = False
        for index in range(rule.budget(state)):
            window = [confidence] * (index + 1)
            decision = decide(rule, *window, state=state)
            fallback = decision == Decision.DROP
            drafted += not fallback
            if decision != Decision.CONTINUE:
                break
        seen = Round(drafted, 0, (confidence,) * (drafted + fallback), fallback)
        spent += rule.draft * seen.predicted + _pass(rule.verify, 1 + drafted)
        if seen.predicted:
            spent += rule.read * unread
            unread = 0
        unread += 1
        state = rule.observe(state, seen)
    assert 256 <= spent <= 1.03 * 256


def test_a_draft_that_costs_more_than_it_can_give() -> None:
    rule = CostAware(draft=1.2)
    state = rule.observe(rule.initial(), round_of(1, 1, 0.99))
    assert rule.budget(state) == 0


def test_the_costs_of_passes() -> None:
    rule = CostAware(verify=(1.2, 1.4, 2.0, 3.0))
    assert [_pass(rule.verify, width) for width in WIDTHS] == [1.0, 1.2, 1.4, 2.0, 3.0]
    assert _pass(rule.verify, 3) == pytest.approx(1.3)
    assert _pass(rule.verify, 24) == pytest.approx(4.0)  # as from 8 to 16


def test_a_leap_is_shared_by_the_tokens_that_make_it() -> None:
    even = _marginal((1.2, 1.6, 2.4, 4.0), 18)
    assert even == pytest.approx([0.2] * 19)
    leap = _marginal((1.9, 1.9, 1.9, 1.9), 16)
    assert leap == pytest.approx([0.06] * 17)
    rising = _marginal((1.1, 1.3, 1.9, 3.5), 16)
    assert rising == pytest.approx([0.1] * 3 + [0.15] * 4 + [0.2] * 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": -0.1}, "draft=-0.1"),
        ({"draft": float("nan")}, "draft"),
        ({"draft": float("inf")}, "draft"),
        ({"verify": (1.1, 1.2)}, "verify=1.1/1.2"),
        ({"verify": (1.1, 1.0, 1.2, 1.3)}, "do not fall"),
        ({"verify": (0.9, 1.0, 1.2, 1.3)}, "from 1 up"),
        ({"verify": (1.1, 1.2, float("nan"), 1.3)}, "verify"),
        ({"verify": (1.1, 1.2, 1.3, float("inf"))}, "verify"),
        ({"tokens": 0}, "tokens=0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        CostAware(**options)


def test_its_string() -> None:
    policy = parse_policy("cost-aware:draft=0.17,verify=1.1/1.32/1.94/3.4")
    assert policy.lookahead == CostAware(0.17, (1.1, 1.32, 1.94, 3.4))
    assert str(policy) == "cost-aware:draft=0.17,verify=1.1/1.32/1.94/3.4"
    assert str(parse_policy("cost_aware")) == "cost-aware"
    with pytest.raises(PolicyError, match="verify=1.1/x is not numbers with slashes"):
        parse_policy("cost-aware:verify=1.1/x")
    assert dataclasses.replace(CostAware(), tokens=3).tokens == 3


# Beside other rows.


@pytest.mark.parametrize("rows", [2, 3, 8, 64])
def test_a_pass_over_rows_costs_what_one_over_as_many_tokens_does(rows: int) -> None:
    rule = CostAware(verify=(1.2, 1.4, 2.0, 3.0))
    beside = _beside(rule.verify, rows, rows)
    for width in range(1, 17):
        expected = _pass(rule.verify, rows * width) / _pass(rule.verify, rows)
        if width in WIDTHS:
            assert _pass(beside, width) == pytest.approx(expected)
    assert list(beside) == sorted(beside)
    assert beside[-1] <= 16
    lone = _beside(rule.verify, rows, 1)
    assert lone == pytest.approx([1 + rows * (cost - 1) for cost in beside])


def test_one_row_goes_by_the_costs_it_is_told() -> None:
    rule = CostAware()
    assert _beside(rule.verify, 1, 1) is rule.verify


def test_fuller_batches_draft_less_and_then_nothing() -> None:
    rule, state = CostAware(), CostAware().initial()

    def length(rows: int) -> int:
        window: list[float] = []
        for _ in range(rule.budget(state, rows)):
            window.append(0.97)
            sure = torch.tensor([window[-1]])
            before = tuple(torch.tensor([earlier]) for earlier in window[:-1])
            step = DraftStep(len(before), torch.tensor([1]), sure, sure, None, before, rows)
            if (decision := int(rule.decide(step, [state]))) != Decision.CONTINUE:
                return len(window) - (decision == Decision.DROP)
        return len(window)

    lengths = [length(rows) for rows in (1, 2, 4, 8, 16, 64)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] > 0
    assert lengths[-1] == 0


def test_rows_that_are_verified_for_nothing_draft_in_any_batch() -> None:
    rule = CostAware(draft=0.05, verify=(1.0, 1.0, 1.0, 1.0))
    assert {rule.budget(rule.initial(), rows) for rows in (1, 8, 64)} == {REACH}


def test_a_round_in_a_batch_costs_more() -> None:
    rule = CostAware()
    alone = rule.observe(rule.initial(), Round(4, 4, (0.9,) * 4, fallback=False))
    beside = rule.observe(rule.initial(), Round(4, 4, (0.9,) * 4, fallback=False, rows=8))
    assert beside.cost > alone.cost
    assert beside.written == alone.written


def test_the_few_that_draft_bear_the_padding_of_the_rest() -> None:
    rule = CostAware(draft=0.05)
    sure = torch.tensor([0.9])

    def first(drafting: int | None) -> Decision:
        step = DraftStep(0, torch.tensor([1]), sure, sure, None, rows=4, drafting=drafting)
        return Decision(int(rule.decide(step, [rule.initial()])))

    assert first(4) == first(None) != Decision.DROP
    assert first(1) == Decision.DROP
    assert rule.budget(rule.initial(), 4, 4) == rule.budget(rule.initial(), 4) == REACH
    assert rule.budget(rule.initial(), 4, 1) == 0
