"""Training on a target's answers: what it learns, going on after a kill, when it ends."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.align.common import samples_of, simple

from biglittle import ParameterError
from biglittle.align import Sample, Settings, TrainingReport, agreement, fine_tune
from biglittle.align.training import alignment_loss

FAST = Settings(learning_rate=1e-3, optimizer="adamw", epochs=4, batch=4, patience=0)


@pytest.fixture(scope="module", params=["llama", "t5"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def target() -> Any:
    return simple("llama")


@pytest.fixture(scope="module")
def samples(target: Any) -> list[Sample]:
    return samples_of(target, 24)


def train(
    target: Any, samples: list[Sample], folder: Path, settings: Settings = FAST, **more: Any
) -> tuple[Any, TrainingReport]:
    draft = simple(target.config.model_type, seed=1)
    return draft, fine_tune(draft, samples[4:], samples[:4], settings, folder, **more)


def same_weights(one: Any, other: Any) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_agreement_rises(kind: str, tmp_path: Path) -> None:
    target = simple(kind)
    samples = samples_of(target, 24)
    draft, report = train(target, samples, tmp_path)
    assert report.before < report.after
    assert agreement(draft, samples[:4]) == pytest.approx(report.after)
    assert (report.samples, report.held_out, report.steps) == (20, 4, 20)
    assert [step for step, _ in report.history] == [5, 10, 15, 20]


@pytest.mark.parametrize(("optimizer", "times"), [("adafactor", 1), ("adafactor-scaled", 20)])
def test_a_scaled_rate_is_relative_to_the_size_of_a_weight(
    optimizer: str, times: int, samples: list[Sample], tmp_path: Path
) -> None:
    settings = Settings(optimizer=optimizer, steps=1, batch=4, patience=0)
    moved = []
    for factor in (1, 20):
        draft = simple("llama", seed=1)
        weight = draft.lm_head.weight.detach()
        weight *= factor
        before = weight.clone()
        fine_tune(draft, samples[4:], samples[:4], settings, tmp_path / str(factor))
        moved.append(float((weight - before).square().mean().sqrt()))
    assert moved[1] / moved[0] == pytest.approx(times, rel=0.1)


def test_agreement_counts_first_choices(kind: str) -> None:
    target = simple(kind)
    samples = samples_of(target, 3)
    assert agreement(target, samples, batch=2) == 1.0
    output = list(samples[0].output)
    output[-1] = (output[-1] + 1) % 97  # nothing comes after it
    samples[0] = dataclasses.replace(samples[0], output=tuple(output))
    total = sum(len(sample.output) for sample in samples)
    assert agreement(target, samples, batch=2) == pytest.approx((total - 1) / total)


def test_the_loss_in_closed_form() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, -1.0]])
    taught = torch.tensor([[1.0, 1.0, 0.0, 9.0], [0.0, 2.0, 0.0, 9.0]])  # one more is padding
    hard = torch.tensor([1, 0])
    q, p = logits.softmax(-1), taught[:, :3].softmax(-1)
    surprise = -(q[0, 1].log() + q[1, 0].log())
    divergence = (p * (p / q).log()).sum()
    assert alignment_loss(logits, hard, None).item() == pytest.approx(surprise.item())
    mixed = alignment_loss(logits, hard, taught, soft=0.3).item()
    assert mixed == pytest.approx((0.7 * surprise + 0.3 * divergence).item())
    assert alignment_loss(logits, hard, logits, soft=1.0).item() == pytest.approx(0, abs=1e-6)


def test_soft_labels_teach(target: Any, samples: list[Sample], tmp_path: Path) -> None:
    settings = dataclasses.replace(FAST, soft=0.9)
    _, report = train(target, samples, tmp_path, settings, teacher=target)
    assert report.after > report.before


@pytest.mark.parametrize(
    ("at", "evaluations"),  # checkpoints at the end of epochs, and within
    [(7, 2), pytest.param(11, 1, marks=pytest.mark.slow)],
)
def test_stopped_and_gone_on_with_equals_uninterrupted(
    target: Any, samples: list[Sample], tmp_path: Path, at: int, evaluations: int
) -> None:
    settings = dataclasses.replace(FAST, epochs=3, evaluations=evaluations)
    whole, wanted = train(target, samples, tmp_path / "whole", settings)
    stop = threading.Event()

    def watch(done: int, total: int, agreement: float | None) -> None:
        if done == at:
            stop.set()

    with pytest.raises(KeyboardInterrupt):
        train(target, samples, tmp_path / "part", settings, progress=watch, stop=stop)
    part, found = train(target, samples, tmp_path / "part", settings)
    assert found == wanted
    assert same_weights(part, whole)


def test_killed_in_a_checkpoint(target: Any, samples: list[Sample], tmp_path: Path) -> None:
    whole, wanted = train(target, samples, tmp_path)
    last = tmp_path / "checkpoints" / "checkpoint-20"
    (last / "trainer_state.json").write_text('{"epoch": 1.')  # cut off
    part, found = train(target, samples, tmp_path)
    assert found == wanted
    assert same_weights(part, whole)


def test_the_best_weights_of_a_folder_that_was_moved(
    target: Any, samples: list[Sample], tmp_path: Path
) -> None:
    """A full disk at the end of a training: its folder goes to another disk."""
    settings = dataclasses.replace(FAST, learning_rate=1e-2, epochs=5)
    best, wanted = train(target, samples, tmp_path / "here", settings)
    rates = [rate for _, rate in wanted.history]
    assert rates.index(max(rates)) < len(rates) - 1  # else the last weights are the best
    (tmp_path / "here").rename(tmp_path / "there")
    again, found = train(target, samples, tmp_path / "there", settings)
    assert found == wanted
    assert same_weights(best, again)


def test_it_ends_when_the_agreement_has_stopped_growing(
    target: Any, samples: list[Sample], tmp_path: Path
) -> None:
    settings = dataclasses.replace(FAST, learning_rate=1e-9, epochs=9, patience=2)
    draft, report = train(target, samples, tmp_path, settings)
    assert [step for step, _ in report.history] == [5, 10, 15]
    again, found = train(target, samples, tmp_path, settings)  # of the last checkpoint
    assert found.history == report.history
    assert same_weights(draft, again)


def test_steps_in_place_of_epochs(target: Any, samples: list[Sample], tmp_path: Path) -> None:
    settings = dataclasses.replace(FAST, steps=3)
    assert train(target, samples, tmp_path, settings)[1].history[-1][0] == 3


def test_what_is_refused(target: Any, samples: list[Sample], tmp_path: Path) -> None:
    for changes, message in (
        ({"optimizer": "adafacto"}, "did you mean 'adafactor'"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"soft": 1.5}, "soft=1.5"),
        ({"batch": 4, "micro_batch": 3}, "micro_batch=3 must divide batch=4"),
        ({"steps": 0}, "steps=0 must be at least 1"),
    ):
        with pytest.raises(ParameterError, match=message):
            dataclasses.replace(FAST, **changes)
    soft = dataclasses.replace(FAST, soft=0.5)
    with pytest.raises(ParameterError, match="as a teacher"):
        train(target, samples, tmp_path, soft)
    with pytest.raises(ParameterError, match="others that are held out"):
        fine_tune(target, samples, [], FAST, tmp_path)
    train(target, samples, tmp_path, dataclasses.replace(FAST, steps=1))
    with pytest.raises(ParameterError, match="another training.*settings"):
        train(target, samples, tmp_path)
    assert json.loads((tmp_path / "training.json").read_text())["settings"]["steps"] == 1


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
        RuntimeError("basic_ios::clear: iostream error"),
    ],
    ids=["of Python", "of torch, at the beginning", "of torch, later"],
)
def test_a_full_disk(
    target: Any,
    samples: list[Sample],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """The second checkpoint does not fit; with room again, it goes on from the first."""
    whole, wanted = train(target, samples, tmp_path / "whole")
    save = torch.save
    saved = 0

    def full(*args: Any, **options: Any) -> None:
        nonlocal saved
        saved += 1
        if saved > 3:
            raise error
        save(*args, **options)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        ParameterError, match="cannot be written .(No space|is the disk full).*is kept"
    ):
        train(target, samples, tmp_path / "part")
    monkeypatch.setattr(torch, "save", save)
    assert (tmp_path / "part" / "checkpoints" / "checkpoint-5").is_dir()
    part, found = train(target, samples, tmp_path / "part")
    assert found == wanted
    assert same_weights(part, whole)
