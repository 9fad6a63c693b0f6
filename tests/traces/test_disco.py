"""DISCO: trained from a trace, kept in a file, and used as a policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.traces.conftest import PROMPTS, make_pair

from biglittle import Pair, ParameterError, PolicyError, parse_policy
from biglittle.lookahead.disco import Classifier, Disco
from biglittle.traces import Header, Proposals, Trace, Traces, record, replay, train_disco

TOKENS = 40


def synthetic(prompts: int, *, seed: int = 0) -> Traces:
    """Traces whose draft is right where its second probability is small, whatever its first."""
    generator = np.random.default_rng(seed)
    traces = []
    for prompt in range(prompts):
        right = generator.random(TOKENS - 1) < 0.7
        first = generator.uniform(0.5, 0.6, TOKENS - 1)
        second = np.where(right, 0.05, 0.3) + generator.uniform(0, 0.05, TOKENS - 1)
        top = np.stack([first, second], axis=1).astype(np.float32)
        entropy = np.ones(TOKENS - 1, np.float32)
        tokens = np.where(right, 7, 8).astype(np.int32)
        chain = Proposals(tokens, top[:, 0], top, entropy)
        branches = {int(at) + 1: chain[:5] for at in np.flatnonzero(~right)}
        written = (7,) * TOKENS
        key = str(prompt)
        traces.append(Trace((1,), key, written, TOKENS, TOKENS, None, chain, branches))
    models = {"target": "t", "draft": "d", "summary": "", "tokenizer": ""}
    return Traces(Header(models=models, chained=True, cap=6, top=2), tuple(traces))


def test_learns_what_the_confidence_does_not_tell(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    report = train_disco(synthetic(20), path)
    assert report.prompts == 4
    assert report.accuracy > 0.99 > 0.9 > report.confidence_accuracy
    assert report.accepted == pytest.approx(0.7, abs=0.15)
    assert report.error < 0.05
    assert sum(row.tokens for row in report.calibration) == report.tokens
    fresh = synthetic(10, seed=1)
    found = replay(fresh, f"disco:path={path},tokens=6")
    assert (found.accepted >= found.drafted - 1).all()  # it stops at the first bad token
    best = replay(fresh, "dynamic:threshold=0.55,tokens=6")
    assert found.target_passes < best.target_passes


def test_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    traces = synthetic(5)
    reports = [train_disco(traces, tmp_path / name) for name in ("a", "b")]
    assert reports[0] == reports[1]
    first, second = (Classifier.load(tmp_path / name) for name in ("a", "b"))
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert first.about["models"]["target"] == "t"


def test_a_real_run_does_what_replay_says(near: Pair, tmp_path: Path) -> None:
    prompts = [[1, n, n + 3, n] for n in range(2, 8)]
    traces = record(near, prompts, tmp_path / "t", max_new_tokens=20)
    train_disco(traces, tmp_path / "c")
    policy = f"disco:path={tmp_path / 'c'},threshold=0.6"
    found = replay(traces, policy)
    for i, prompt in enumerate(prompts):
        real = near.generate(prompt, policy=policy, max_new_tokens=20, trace=True)
        assert found.rounds(i) == [(r.drafted, r.accepted, r.fallback) for r in real.rounds]


def test_knows_the_pair_that_it_was_trained_for(
    near: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(pair: Pair) -> list[str]:
        caplog.clear()
        for prompt in PROMPTS:  # said once, not every time
            pair.generate(prompt, policy=f"disco:path={tmp_path / 'c'}", max_new_tokens=4)
        return [record.getMessage() for record in caplog.records]

    Classifier(2).save(tmp_path / "c")
    assert warned(near) == []  # nothing is known
    own = {"target": f"elsewhere/{near.name}", "draft": near.draft_name}
    Classifier(3, {"models": own}).save(tmp_path / "c")
    assert warned(near) == []
    Classifier(4, {"models": own | {"draft": "another"}}).save(tmp_path / "c")
    (line,) = warned(near)
    assert "was trained for" in line
    assert "with another, and this is" in line
    assert warned(near) == []
    (line,) = warned(make_pair("prompt-lookup"))
    assert line.endswith("`biglittle traces disco` trains one")


def test_looks_at_no_more_than_was_recorded(near: Pair, tmp_path: Path) -> None:
    Classifier(4).save(tmp_path / "c")
    traces = record(near, PROMPTS, tmp_path / "t", max_new_tokens=9, top=3)
    with pytest.raises(ParameterError, match="record with top=4"):
        replay(traces, f"disco:path={tmp_path / 'c'}")


def test_drafts_without_a_distribution(tmp_path: Path) -> None:
    pair = make_pair("prompt-lookup")
    with pytest.raises(ParameterError, match="probabilities"):
        train_disco(record(pair, PROMPTS, tmp_path / "t", max_new_tokens=9), tmp_path / "c")
    Classifier(4).save(tmp_path / "c")
    policy = f"disco:path={tmp_path / 'c'}"
    tokens = pair.generate(PROMPTS[0], policy=policy, max_new_tokens=9).token_ids
    assert tokens == pair.generate(PROMPTS[0], policy="none", max_new_tokens=9).token_ids


def test_too_little_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="at least 5 prompts; this trace has 4"):
        train_disco(synthetic(4), tmp_path / "c")
    with pytest.raises(ParameterError, match="cannot be written"):
        train_disco(synthetic(5), tmp_path / "missing" / "c")


def test_files_that_hold_no_classifier(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(PolicyError, match=r"path='.*c' is not there; .*trains one"):
        parse_policy(f"disco:path={path}")
    with pytest.raises(PolicyError, match="must name a classifier's file"):
        parse_policy("disco")
    with pytest.raises(PolicyError, match="rename the file"):
        Disco(str(tmp_path / "a+b"))
    path.write_bytes(b"nonsense")
    with pytest.raises(PolicyError, match="holds no classifier"):
        parse_policy(f"disco:path={path}")
    save_file({"weight": torch.zeros(2)}, str(path))
    with pytest.raises(PolicyError, match="holds no classifier"):
        parse_policy(f"disco:path={path}")
    whole = tmp_path / "whole"
    Classifier(4).save(whole)
    for length in (3, 100, whole.stat().st_size - 1):
        path.write_bytes(whole.read_bytes()[:length])
        with pytest.raises(PolicyError, match="holds no classifier"):
            parse_policy(f"disco:path={path}")
    with pytest.raises(PolicyError, match="threshold"):
        Disco(str(whole), threshold=2.0)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "c"
    Classifier(4).save(path)
    rule = Disco(str(path))
    assert rule.classifier.k == 4
    path.unlink()
    Classifier(6).save(path)
    assert rule.classifier.k == 6
