from __future__ import annotations

import pytest

import biglittle
from biglittle import errors

TREE = [getattr(errors, name) for name in errors.__all__ if name != "nearest"]


@pytest.mark.parametrize("kind", TREE)
def test_there_is_one_tree(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.BiglittleError)
    assert getattr(biglittle, kind.__name__) is kind  # each is public


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ParameterError, ValueError),
        (errors.PolicyError, errors.ParameterError),
        (errors.ContextError, errors.ParameterError),
        (errors.LoadError, OSError),
        (errors.UnsupportedModelError, TypeError),
        (errors.IncompatiblePairError, ValueError),
        (errors.RowError, RuntimeError),
    ],
)
def test_callers_catch_what_they_expect(kind: type[Exception], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match="the reason"):
        raise kind("the reason")


def test_a_message_stays_what_it_is() -> None:
    """An OSError of one argument has no errno in front of its message."""
    assert str(errors.LoadError("model 'x' is not there")) == "model 'x' is not there"


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("rolback", "; did you mean 'rollback'?"),
        ("threshhold", "; did you mean 'threshold'?"),
        ("tokens", "; did you mean 'tokens'?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_the_nearest_name(name: str, clause: str) -> None:
    assert errors.nearest(name, ["rollback", "threshold", "tokens"]) == clause


def test_nothing_is_near_to_nothing() -> None:
    assert errors.nearest("rollback", []) == ""
