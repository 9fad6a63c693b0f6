"""BiLD's rollback in closed form: every option, with tokens whose −ln p is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from biglittle import PolicyError
from biglittle.acceptance import Bild, Block, Verdict, judge

# Token 0 is the target's favourite; −ln p of the others is about 2, 3 and 4 nats.
ROW = torch.tensor([1 - sum(math.exp(-d) for d in (2, 3, 4)), *(math.exp(-d) for d in (2, 3, 4))])
LOGITS = ROW.double().log()


def verdict(
    rule: Bild,
    *tokens: int,
    logits: Tensor = LOGITS,
    raw: Tensor | None = None,
    uniform: float | None = None,
) -> Verdict:
    width = len(tokens)
    block = Block(
        tokens=torch.tensor([tokens], dtype=torch.long).view(1, width),
        counts=torch.tensor([width]),
        logits=logits.expand(1, width + 1, -1),
        raw=(logits if raw is None else raw).expand(1, width + 1, -1),
        q=None,
        uniforms=None if uniform is None else torch.full((1, width + 1), uniform).double(),
    )
    return judge(rule, block)


def accepted(rule: Bild, *tokens: int, **options: Any) -> int:
    return int(verdict(rule, *tokens, **options).accepted)


@pytest.mark.parametrize(
    ("rollback", "expected"), [(1.9, 1), (2.1, 2), (3.1, 3), (4.1, 4), (math.inf, 4)]
)
def test_the_earliest_token_beyond_the_threshold_is_replaced(
    rollback: float, expected: int
) -> None:
    found = verdict(Bild(rollback), 0, 1, 2, 3)
    assert found.accepted.item() == expected
    assert found.next_tokens.item() == 0


def test_a_token_after_the_first_violation_is_discarded() -> None:
    assert accepted(Bild(2.5), 0, 1, 3, 1, 0) == 2


def test_the_comparison_is_strict() -> None:
    even = torch.zeros(2)  # −ln p is ln 2 for both tokens, as single precision has it
    exactly = float(even.logsumexp(-1))
    assert accepted(Bild(exactly, shortcut="off"), 1, logits=even) == 1
    below = math.nextafter(exactly, 0)
    assert accepted(Bild(float(torch.tensor(below))), 1, logits=even) == 1
    assert accepted(Bild(exactly - 1e-6, shortcut="off"), 1, logits=even) == 0


@pytest.mark.parametrize(("shortcut", "expected"), [("on", 1), ("off", 0), ("rest", 3)])
def test_shortcut_after_an_excused_violation(shortcut: Any, expected: int) -> None:
    """The favourite itself is beyond the threshold: −ln 0.78 > 0.1."""
    assert -LOGITS[0] > 0.1
    assert accepted(Bild(0.1, shortcut=shortcut), 0, 1, 2) == expected


@pytest.mark.parametrize(("shortcut", "expected"), [("on", 0), ("off", 0), ("rest", 0)])
def test_no_shortcut_excuses_an_earlier_violation(shortcut: Any, expected: int) -> None:
    assert accepted(Bild(0.1, shortcut=shortcut), 1, 0) == expected


def test_shortcut_rest_needs_a_violation() -> None:
    """A favourite within the threshold excuses nothing after it."""
    assert accepted(Bild(0.5, shortcut="rest"), 0, 1) == 1
    assert accepted(Bild(0.1, shortcut="rest"), 0, 1) == 2


@pytest.mark.parametrize("rollback", [0.0, -1.0, -math.inf])
def test_thresholds_of_zero_and_below_are_honoured(rollback: float) -> None:
    assert accepted(Bild(rollback, shortcut="off"), 0, 0) == 0
    assert accepted(Bild(rollback), 0, 1) == 1  # the shortcut keeps the favourite


def test_zero_keeps_what_the_target_is_certain_of() -> None:
    certain = torch.tensor([0.0, -math.inf, -math.inf])
    assert accepted(Bild(0.0, shortcut="off"), 0, 0, logits=certain) == 2
    assert accepted(Bild(-1.0, shortcut="off"), 0, logits=certain) == 0


def test_infinity_keeps_even_what_the_target_excludes() -> None:
    certain = torch.tensor([0.0, -math.inf])
    assert accepted(Bild(math.inf), 1, 1, logits=certain) == 2
    assert accepted(Bild(1e9), 1, logits=certain) == 0


def test_the_distance_is_read_from_the_chosen_distribution() -> None:
    cold = LOGITS / 0.5  # at temperature 0.5 token 1 is 3.3 nats away instead of 2
    assert accepted(Bild(2.5, distribution="raw"), 1, logits=cold, raw=LOGITS) == 1
    assert accepted(Bild(2.5, distribution="processed"), 1, logits=cold, raw=LOGITS) == 0


def test_the_replacement_is_read_from_the_processed_one() -> None:
    banned = LOGITS.clone()
    banned[0] = -math.inf
    found = verdict(Bild(0.0, shortcut="off", distribution="raw"), 2, logits=banned, raw=LOGITS)
    assert (found.accepted.item(), found.next_tokens.item()) == (0, 1)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.7, 0), (0.85, 1), (0.96, 2)])
def test_sampling_draws_the_replacement_from_the_target(uniform: float, token: int) -> None:
    """Not from a residual: both policies are as in greedy decoding (§7.4 of the paper)."""
    found = verdict(Bild(2.5), 3, uniform=uniform)
    assert (found.accepted.item(), found.next_tokens.item()) == (0, token)
    assert accepted(Bild(2.5), 1, 1, uniform=uniform) == 2


def test_the_defaults_are_those_of_the_table() -> None:
    rule = Bild()
    assert (rule.first, rule.after_rollback, rule.shortcut) == ("draft", "draft", "on")
    assert (rule.verify_end, rule.distribution) == (True, "processed")
    assert not rule.lossless


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollback": math.nan}, "rollback=nan must be a number"),
        ({"rollback": "3"}, "rollback='3' must be a number"),
        ({"rollback": None}, "rollback=None must be a number"),
        ({"first": "big"}, "first='big' must be one of draft, target"),
        ({"shortcut": "yes"}, "shortcut='yes' must be one of on, off, rest"),
        ({"distribution": ""}, "distribution='' must be one of processed, raw"),
        ({"after_rollback": None}, "after_rollback=None must be one of draft, target"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Bild(**options)
