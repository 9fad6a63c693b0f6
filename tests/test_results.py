from __future__ import annotations

import json

import pytest

from biglittle import FinishReason, Origin, Result, Round, RowError, Stats, TokenLogprob

STATS = Stats(
    rounds=4,
    new_tokens=10,
    predicted=20,
    drafted=16,
    accepted=8,
    fallbacks=4,
    rollbacks=3,
    draft_seconds=1.0,
    target_seconds=2.0,
    total_seconds=4.0,
)


def test_rates() -> None:
    assert STATS.acceptance_rate == 0.5  # of drafted tokens
    assert STATS.accepted_per_round == 2.0
    assert STATS.tokens_per_round == 2.5
    assert STATS.fallback_rate == 0.2  # of predicted tokens, those given up included
    assert STATS.rollback_rate == 0.15
    assert STATS.outside_seconds == 1.0
    assert STATS.tokens_per_second == 2.5


def test_rates_of_nothing() -> None:
    empty = Stats().as_dict()
    assert set(empty.values()) == {0}


def test_totals() -> None:
    total = Stats.total([STATS, STATS, Stats(new_tokens=1)])
    assert (total.rounds, total.new_tokens, total.accepted) == (8, 21, 16)
    assert total.total_seconds == 8.0
    assert total.acceptance_rate == 0.5
    assert Stats.total([]) == Stats()


def make_result(error: Exception | None = None) -> Result:
    return Result(
        text="né",
        token_ids=(5, 6),
        finish_reason=FinishReason.ERROR if error else FinishReason.EOS,
        origins=(Origin.ACCEPTED, Origin.CORRECTED),
        policy="dynamic",
        lossless=True,
        stats=STATS,
        logprobs=(TokenLogprob(5, -0.1, ((5, -0.1), (2, -3.0))), TokenLogprob(6, -0.2)),
        rounds=(Round(2, 1, (0.9, 0.4), False),),
        error=error,
    )


def test_a_result_is_plain_data() -> None:
    data = json.loads(json.dumps(make_result().as_dict()))
    assert data["token_ids"] == [5, 6]
    assert data["finish_reason"] == "eos"
    assert data["origins"] == ["accepted", "corrected"]
    assert data["stats"]["acceptance_rate"] == 0.5
    assert data["logprobs"][0] == {"token": 5, "logprob": -0.1, "top": [[5, -0.1], [2, -3.0]]}
    assert data["rounds"] == [
        {"drafted": 2, "accepted": 1, "confidence": [0.9, 0.4], "fallback": False, "rows": 1}
    ]
    assert "error" not in data


def test_an_error_is_told() -> None:
    assert make_result(RowError("of its own")).as_dict()["error"] == "of its own"


def test_what_was_not_asked_for_is_not_there() -> None:
    result = Result("", (), FinishReason.CANCELLED, (), "none", True, Stats())
    assert result.as_dict().keys().isdisjoint({"logprobs", "rounds", "error"})


@pytest.mark.parametrize("kind", [Origin, FinishReason])
def test_names_are_text(kind: type[Origin] | type[FinishReason]) -> None:
    for member in kind:
        assert member == member.value == member.name.lower()
