"""The whole: predictions, the conclusion, and what is saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.diagnosis.conftest import NEW, PROMPTS, Recorded, make_pair, periodic, profile, written

from biglittle import Pair, ParameterError
from biglittle.diagnosis import Agreement, Diagnosis, Profile, builtin_prompts, diagnose
from biglittle.diagnosis.diagnosis import conclude
from biglittle.diagnosis.plots import save_plots
from biglittle.diagnosis.predict import Comparison, settings
from biglittle.traces import replay

NOWHERE = Path("no classifier is written")


def concluded(recorded: Recorded, kind: str, costs: Profile) -> Diagnosis:
    pair, traces = recorded(kind)
    requests = pair.requests(PROMPTS, policy="none", temperature=0, max_new_tokens=NEW)
    return conclude(pair, requests, traces, costs, ["a", "b", "a"], classifier=NOWHERE)


# Predictions.


def test_no_policy_takes_fewer_passes_than_the_oracle(recorded: Recorded) -> None:
    found = concluded(recorded, "near", profile(draft=0.1, verify=0.0))
    own = [one for one in found.predictions if one.family != "prompt lookup"]
    assert {one.family for one in own} == set(settings(20, profile().costs[0]))
    assert all(one.target_passes >= found.oracle.target_passes for one in own)
    assert all(one.of_oracle <= 1 for one in own)
    assert found.oracle.of_oracle == 1.0
    assert found.oracle.acceptance_rate == 1.0
    (reason,) = found.left_out
    assert reason.startswith("DISCO learns from at least 6 prompts")


def test_fastest_first_and_each_family_at_its_best(recorded: Recorded) -> None:
    _, traces = recorded("near")
    costs = profile(draft=0.3)
    found = concluded(recorded, "near", costs)
    speeds = [one.speedup for one in found.predictions]
    assert speeds == sorted(speeds, reverse=True)
    plain = len(PROMPTS) * (NEW - 1)
    for family, policies in settings(20, costs.costs[0]).items():
        seconds = [costs.seconds(traces, replay(traces, policy)).sum() for policy in policies]
        best = next(one for one in found.predictions if one.family == family)
        assert best.speedup == pytest.approx(plain / min(seconds))


def test_prediction_of_one_setting(recorded: Recorded) -> None:
    """The draft is the target: windows of 3 write 4 tokens a round."""
    _, traces = recorded("itself")
    comparison = Comparison(traces, profile(0.25, 0.5), {"constant": ["static:tokens=3"]})
    (found,) = comparison.best()
    seconds = 5 * (3 * 0.25 + 2.5) + (2 * 0.25 + 2.0)
    assert found.policy == "static:tokens=3"
    assert found.speedup == pytest.approx(23 / seconds)
    assert found.by_prompt == pytest.approx([23 / seconds] * 3)
    assert found.ms_per_token == pytest.approx(1000 * seconds / 23)
    assert (found.target_passes, found.draft_passes) == (3 * 7, 3 * 17)
    assert (found.drafted_per_round, found.accepted_per_round) == (17 / 6, 17 / 6)


def test_no_window_is_longer_than_what_was_recorded() -> None:
    for policies in settings(4, profile().costs[0]).values():
        for policy in policies:
            tokens = policy.partition("tokens=")[2].partition(",")[0]
            assert int(tokens) <= 4


# The conclusion.


def test_a_good_cheap_draft(recorded: Recorded) -> None:
    advice = concluded(recorded, "itself", profile(draft=0.1)).advice
    assert advice.speculate
    assert advice.speedup > 2
    assert advice.draft != "none"
    assert "100 % of tokens" in advice.reason
    assert "a draft step costs 0.10 of a target step" in advice.reason


def test_a_draft_as_slow_as_the_target(recorded: Recorded) -> None:
    advice = concluded(recorded, "itself", profile(draft=1.0, verify=1.0)).advice
    assert not advice.speculate
    assert (advice.policy, advice.draft, advice.speedup) == ("none", "none", 1.0)
    assert advice.verdict.startswith("Do not speculate here")


@pytest.mark.parametrize(
    ("kind", "draft", "verify", "word"),
    [
        ("itself", 0.9, 0.05, "a draft step costs 0.90"),
        ("itself", 0.05, 0.9, "verifying"),
        ("other", 0.1, 0.05, "agrees with the target on"),
    ],
)
def test_what_holds_it_back(
    recorded: Recorded, kind: str, draft: float, verify: float, word: str
) -> None:
    """Of the pair's own drafter: copying could be better and have other limits."""
    from biglittle.diagnosis.advice import advise

    _, traces = recorded(kind)
    costs = profile(draft, verify)
    comparison = Comparison(traces, costs, settings(20, costs.costs[0]))
    best = max(comparison.best(), key=lambda one: one.speedup)
    assert word in advise(best, comparison, "CPU").limit


def test_copying_alone(recorded: Recorded) -> None:
    found = concluded(recorded, "prompt-lookup:ngram=3", profile(draft=0.0))
    assert {one.family for one in found.predictions} == {
        "constant",
        "heuristic",
        "cost-aware",
        "prompt lookup",
    }
    assert all(one.draft_passes == 0 for one in found.predictions)
    assert found.advice.reason.startswith("copying from the text so far gets")
    assert found.agreement.bins == ()
    assert found.left_out == ()
    assert found.head is None


def test_copying_beside_a_draft_costs_no_draft_steps() -> None:
    """A draft that costs more than it saves, and a text that repeats itself."""
    pair = make_pair("other")
    requests = pair.requests(PROMPTS[:1], policy="none", temperature=0, max_new_tokens=99)
    costs = profile(draft=5.0, verify=0.0)
    found = conclude(pair, requests, periodic(), costs, ["a"], classifier=NOWHERE)
    best = found.predictions[0]
    assert best.family == "prompt lookup"
    assert best.speedup > 2
    assert found.advice.draft == best.draft
    assert found.advice.draft.startswith("prompt-lookup:ngram=")
    # By task, too, it is copying that is spoken of: not the draft, which is always right.
    assert found.agreement.rate == 1.0
    assert found.tasks[0].agreement == pytest.approx(32 / 39)  # all but the first round


def test_tasks(recorded: Recorded) -> None:
    found = concluded(recorded, "near", profile())
    assert [(part.task, part.prompts) for part in found.tasks] == [("a", 2), ("b", 1)]
    best = found.predictions[0].by_prompt
    assert found.tasks[0].speedup == pytest.approx((best[0] + best[2]) / 2)


def test_a_text_that_ends_at_once(tmp_path: Path) -> None:
    """There is nothing to compare, and nothing breaks."""
    pair = make_pair("other")
    requests = pair.requests(PROMPTS[:1], policy="none", temperature=0, max_new_tokens=99)
    found = conclude(pair, requests, written([9], [], []), profile(), classifier=NOWHERE)
    assert not found.advice.speculate
    assert {one.speedup for one in found.predictions} == {1.0}
    assert found.agreement == Agreement(0.0, 0, (), ())
    save_plots(found, tmp_path)


# All of it.


def test_diagnose_a_pair(tmp_path: Path) -> None:
    pair, told = make_pair("near"), set[str]()
    found = diagnose(
        pair,
        PROMPTS,
        tmp_path / "t.jsonl",
        max_new_tokens=NEW,
        progress=lambda what, done, total: told.add(what),
    )
    assert len(told) == 2
    assert (found.prompts, found.new_tokens) == (3, 3 * NEW)
    found.save(tmp_path / "diagnosis.json")
    data = json.loads((tmp_path / "diagnosis.json").read_text())
    assert data["advice"]["policy"] == found.advice.policy
    assert len(data["profile"]["costs"][0]["seconds"]) == 16
    assert data["agreement"]["calibration_error"] == found.agreement.calibration_error
    names = {file.name for file in save_plots(found, tmp_path)}
    assert names == {"passes.svg", "acceptance.svg", "speedups.svg", "calibration.svg"}
    assert all((tmp_path / name).read_text().startswith("<?xml") for name in names)


def test_a_pair_without_a_draft(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="draft"):
        diagnose(Pair(make_pair("near").target), PROMPTS, tmp_path)


# The project's own prompts.


def test_six_prompts_of_every_task() -> None:
    prompts = builtin_prompts()
    tasks = [one.task for one in prompts]
    five = {"chat", "code", "summarization", "translation", "extraction"}
    assert {task: tasks.count(task) for task in tasks} == dict.fromkeys(five, 6)
    assert set(tasks[:5]) == five
    assert len({one.text for one in prompts}) == 30
    lengths = [len(one.text) for one in prompts]
    assert min(lengths) < 150
    assert max(lengths) > 700
