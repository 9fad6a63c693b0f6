"""Policies by name: parsing, printing, and what is refused."""

from __future__ import annotations

import math
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biglittle import Policy, PolicyError, parse_policy
from biglittle.acceptance import Bild, Exact
from biglittle.lookahead import Confidence, Constant, Fallback, Heuristic


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("dynamic", Policy(Confidence(0.4, 20))),
        ("confidence", Policy(Confidence())),
        ("dynamic:threshold=0.5,tokens=8", Policy(Confidence(0.5, 8))),
        ("static", Policy(Constant(5))),
        ("static:tokens=3", Policy(Constant(3))),
        ("constant:tokens=3", Policy(Constant(3))),
        ("heuristic", Policy(Heuristic())),
        ("heuristic:start=2", Policy(Heuristic(2))),
        ("fallback:threshold=0.2", Policy(Fallback(0.2))),
        ("none", Policy(None)),
        ("bild", Policy(Fallback(0.6, 10), Bild(3.0))),
        ("bild:fallback=0.5,rollback=2,tokens=4", Policy(Fallback(0.5, 4), Bild(2.0))),
        ("bild:fallback=0,rollback=0", Policy(Fallback(0.0), Bild(0.0))),
        ("bild:fallback=1.5,rollback=inf", Policy(Fallback(1.5), Bild(math.inf))),
        ("bild:rollback=-1,shortcut=off", Policy(Fallback(), Bild(-1.0, shortcut="off"))),
        (
            "bild:first=target,after_rollback=target,shortcut=rest,verify_end=false,"
            "distribution=raw",
            Policy(Fallback(), Bild(3.0, "target", "target", "rest", False, "raw")),
        ),
        ("dynamic+bild:rollback=2", Policy(Confidence(), Bild(2.0))),
        ("static:tokens=2+exact", Policy(Constant(2), Exact())),
        ("  Dynamic : threshold = 0.5 , tokens = 8 ", Policy(Confidence(0.5, 8))),
        ("bild:verify_end=True", Policy(Fallback(), Bild())),
    ],
)
def test_reading(text: str, policy: Policy) -> None:
    assert parse_policy(text) == policy
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy.dynamic(), "dynamic"),
        (Policy.dynamic(0.5), "dynamic:threshold=0.5"),
        (Policy.static(3), "static:tokens=3"),
        (Policy.heuristic(), "heuristic"),
        (Policy.none(), "none"),
        (Policy.bild(), "bild:fallback=0.6,rollback=3"),  # thresholds are always told
        (Policy.bild(0, 0), "bild:fallback=0,rollback=0"),
        (Policy.bild(tokens=4), "bild:fallback=0.6,rollback=3,tokens=4"),
        (Policy(Constant(), Bild(2)), "static+bild:rollback=2"),
        (Policy(Fallback()), "fallback"),
    ],
)
def test_writing(policy: Policy, text: str) -> None:
    assert str(policy) == text


@pytest.mark.parametrize(
    ("policy", "lossless"),
    [
        ("none", True),
        ("dynamic", True),
        ("static", True),
        ("heuristic", True),
        ("fallback", True),
        ("bild", False),
        ("bild:rollback=0", False),
        ("dynamic+bild", False),
    ],
)
def test_each_knows_whether_it_is_lossless(policy: str, lossless: bool) -> None:
    assert parse_policy(policy).lossless is lossless


THRESHOLDS = st.floats(allow_nan=False)
OPTIONS = {
    name: st.sampled_from(get_args(hint))
    for name, hint in get_type_hints(Bild).items()
    if name in {"first", "after_rollback", "shortcut", "distribution"}
}


@given(
    fallback=st.floats(0, 2),
    rollback=THRESHOLDS,
    tokens=st.integers(1, 99),
    verify_end=st.booleans(),
    choices=st.fixed_dictionaries(OPTIONS),
)
def test_any_bild_policy_is_read_back(
    fallback: float, rollback: float, tokens: int, verify_end: bool, choices: dict[str, Any]
) -> None:
    rule = Bild(rollback=rollback, verify_end=verify_end, **choices)
    for ahead in (Fallback(fallback, tokens), Confidence(min(fallback, 1.0), tokens)):
        policy = Policy(ahead, rule)
        assert parse_policy(str(policy)) == policy


def test_a_policy_is_a_policy() -> None:
    policy = Policy.static(2)
    assert parse_policy(policy) is policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dinamic", "unknown policy 'dinamic'; known: bild, .*; did you mean 'dynamic'?"),
        ("zzz", "unknown policy 'zzz'; known: bild, .*"),
        ("", "policy '' has no name; try 'dynamic'"),
        (":tokens=3", "has no name"),
        ("static:token=3", "static: unknown option 'token'; .*; did you mean 'tokens'?"),
        ("static:threshold=3", "static: unknown option 'threshold'; it has tokens"),
        ("static:tokens", "'tokens' is not of the form option=value"),
        ("static:tokens=", "'tokens=' is not of the form option=value"),
        ("static:tokens=3,tokens=4", "'tokens' is given twice"),
        ("static:tokens=3.5", "static: tokens=3.5 is not a whole number"),
        ("static:tokens=0", "static: tokens=0 must be a whole number of at least 1"),
        ("dynamic:threshold=high", "dynamic: threshold=high is not a number"),
        ("dynamic:threshold=1.5", "threshold=1.5 must be a number between 0 and 1"),
        ("dynamic:threshold=nan", "threshold=nan must be a number between 0 and 1"),
        ("bild:fallback=nan", "bild: fallback=nan must be a number"),
        ("bild:fallback=much", "bild: fallback=much is not a number"),
        ("constant:tokens=0", "constant: tokens=0 must be a whole number of at least 1"),
        ("bild:rollback=nan", "rollback=nan must be a number"),
        ("bild:rolback=3", "bild: unknown option 'rolback'; .*; did you mean 'rollback'?"),
        ("bild:first=both", "bild: first=both must be one of draft, target"),
        ("bild:verify_end=yes", "bild: verify_end=yes is not true or false"),
        ("bild+exact", "'bild' names its acceptance already"),
        ("none:tokens=3", "'none' takes no options"),
        ("none+bild", "'none' takes no acceptance"),
        ("dynamic+", "has no name"),
        ("dynamic+bold", "unknown acceptance 'bold'; known: exact, bild; did you mean 'bild'?"),
        ("dynamic+exact:rollback=3", "exact: unknown option 'rollback'; it has none"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message.replace("?", r"\?")) as caught:
        parse_policy(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("thing", [None, 3, 0.5, ["dynamic"]])
def test_only_strings_and_policies(thing: Any) -> None:
    with pytest.raises(PolicyError, match="neither a string nor a Policy"):
        parse_policy(thing)


def test_a_policy_is_made_of_rules() -> None:
    with pytest.raises(PolicyError, match="lookahead: 'dynamic' is not a Lookahead"):
        Policy("dynamic")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="acceptance: None is not an Acceptance"):
        Policy(Constant(), None)  # type: ignore[arg-type]
