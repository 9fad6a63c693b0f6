"""What is searched."""

from __future__ import annotations

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biglittle import parse_policy
from biglittle.acceptance import Bild
from biglittle.tune.space import FAMILIES, PAPER, ROLLBACKS, Space

COST_AWARE = "cost-aware:draft=0.2,verify=1.1/1.2/1.5/2"


@given(st.data())
def test_every_choice_is_a_lossy_policy(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(FAMILIES)))
    choices = {
        option: data.draw(st.integers(0, len(values) - 1))
        for option, values in FAMILIES[name].items()
    }
    rollback = data.draw(st.integers(0, len(ROLLBACKS) - 1))
    trial = optuna.trial.FixedTrial({"lookahead": name, **choices, "rollback": rollback})
    text = Space(COST_AWARE, modelled=True).suggest(trial)  # type: ignore[arg-type]
    policy = parse_policy(text)
    assert str(policy) == text
    assert not policy.lossless
    assert isinstance(policy.acceptance, Bild)
    assert policy.acceptance.rollback == ROLLBACKS[rollback]
    for option, at in choices.items():
        assert getattr(policy.lookahead, option) == FAMILIES[name][option][at]


def suggested(space: Space, lossless: list[str]) -> list[str]:
    return [
        space.suggest(optuna.trial.FixedTrial(choices))  # type: ignore[arg-type]
        for choices in space.first(lossless)
    ]


def test_what_comes_first() -> None:
    lossless = [
        "dynamic:threshold=0.3,tokens=8",
        "fallback:threshold=0.5,tokens=12",
        "static:tokens=11",
        f"{COST_AWARE},tokens=8",
        "heuristic:start=3,tokens=20",
    ]
    found = suggested(Space(COST_AWARE, modelled=True), lossless)
    assert found[:4] == [
        "dynamic:threshold=0.3,tokens=8+bild:rollback=2",
        "bild:fallback=0.5,rollback=2,tokens=12",
        str(parse_policy(f"{COST_AWARE}+bild:rollback=2")),  # eleven tokens are not searched
        "heuristic:start=3,tokens=20+bild:rollback=2",
    ]
    assert found[4:] == [f"bild:fallback={a:g},rollback={b:g}" for a, b in PAPER]


def test_copies_have_no_confidence() -> None:
    space = Space(COST_AWARE, modelled=False)
    assert suggested(space, ["static:tokens=4"]) == ["static:tokens=4+bild:rollback=2"]
    with pytest.raises(ValueError, match="'dynamic' not in"):
        space.suggest(optuna.trial.FixedTrial({"lookahead": "dynamic"}))  # type: ignore[arg-type]
