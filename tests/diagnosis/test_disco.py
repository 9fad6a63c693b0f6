"""DISCO in a diagnosis: judged by prompts that its classifier has not seen, and ready to use."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tests.diagnosis.conftest import make_pair, profile
from tests.traces.test_disco import synthetic

from biglittle import ParameterError, parse_policy
from biglittle.diagnosis.diagnosis import conclude
from biglittle.diagnosis.disco import disco_candidates
from biglittle.diagnosis.predict import Comparison
from biglittle.lookahead.disco import Classifier
from biglittle.traces import Traces, fit_disco, replay


def varied(traces: Traces) -> Traces:
    """The same, with texts in which nothing recurs that could be copied."""
    generator, found = np.random.default_rng(2), []
    for trace in traces:
        text = generator.permutation(90)[: len(trace.tokens)].astype(np.int32)
        right = trace.chain.tokens == trace.tokens[0]
        chain = dataclasses.replace(trace.chain, tokens=text[1:] + ~right)
        found.append(dataclasses.replace(trace, tokens=tuple(text.tolist()), chain=chain))
    return Traces(traces.header, tuple(found))


def test_a_prompts_rounds_are_of_a_classifier_trained_on_the_others(tmp_path: Path) -> None:
    traces, path = synthetic(8), tmp_path / "c"
    found = {one.policy: one for one in disco_candidates(traces, path)}
    for fold in (0, 1):
        others, held = traces.traces[1 - fold :: 2], traces.traces[fold::2]
        fit_disco(Traces(traces.header, others), tmp_path / "other")
        known = replay(Traces(traces.header, held), f"disco:path={tmp_path / 'other'},tokens=4")
        ours = found[f"disco:path={path},tokens=4"].replay
        for at in range(4):
            assert ours.rounds(fold + 2 * at) == known.rounds(at)
    assert ours.target_passes == 8 + len(ours.prompt)
    assert ours.new_tokens == sum(len(trace.tokens) for trace in traces)
    assert (np.diff(ours.prompt) >= 0).all()


def test_the_recommended_policy_can_be_used(tmp_path: Path) -> None:
    """These drafts say nothing by their confidence, and everything by what comes second."""
    pair, path = make_pair("other"), tmp_path / "disco.safetensors"
    traces = varied(synthetic(12))
    requests = pair.requests([[1]] * 12, policy="none", temperature=0, max_new_tokens=40)
    found = conclude(pair, requests, traces, profile(draft=0.2, verify=0.2), classifier=path)
    assert found.left_out == ()
    assert found.predictions[0].family == "disco"
    assert found.advice.policy.startswith(f"disco:path={path}")
    assert parse_policy(found.advice.policy).lossless
    assert Classifier.load(path).k == traces.header.top


def test_a_draft_that_is_guessed_from_noise_is_not_flattered(tmp_path: Path) -> None:
    """Classifiers that have seen the prompts do better than those that have not."""
    generator = np.random.default_rng(3)
    noisy = []
    for trace in synthetic(6):
        chain = dataclasses.replace(
            trace.chain,
            top=generator.random(trace.chain.top.shape).astype(np.float32),
            entropy=generator.random(len(trace.chain)).astype(np.float32),
        )
        branches = {at: chain[at : at + 5] for at in trace.branches}
        noisy.append(dataclasses.replace(trace, chain=chain, branches=branches))
    traces = Traces(synthetic(1).header, tuple(noisy))
    path = tmp_path / "c"
    held = Comparison(traces, profile(0.5, 0.3), {}, disco_candidates(traces, path))
    seen = Comparison(
        traces, profile(0.5, 0.3), {"disco": [one.policy for one in held.found]}
    )  # the classifier of all prompts
    assert seen.fastest() < held.fastest()


@pytest.mark.parametrize(
    ("prompts", "name", "message"),
    [
        (5, "c", "at least 6 prompts and 200 tokens, and these are 5 and 200"),
        (6, "a+b", "rename the file"),
        (6, "missing/c", "cannot be written"),
    ],
)
def test_why_it_is_left_out(tmp_path: Path, prompts: int, name: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        disco_candidates(synthetic(prompts), tmp_path / name)


def test_a_draft_that_is_always_right_teaches_nothing(tmp_path: Path) -> None:
    right = [
        dataclasses.replace(trace, tokens=(7, *trace.chain.tokens.tolist()), branches={})
        for trace in synthetic(6)
    ]
    with pytest.raises(ParameterError, match="accepts, and some that it rejects"):
        disco_candidates(Traces(synthetic(1).header, tuple(right)), tmp_path / "c")
