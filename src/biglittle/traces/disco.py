"""Training DISCO's classifier from traces (Mamou et al. 2024)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import ParameterError
from ..lookahead.disco import Classifier
from .base import Traces
from .replay import windows_of

__all__ = ["Calibration", "DiscoReport", "fit_disco", "train_disco"]

STEPS = 1000
BATCH = 512
RATE = 5e-3
HELD_OUT = 5  # every fifth prompt
BINS = 10


@dataclass(frozen=True, slots=True)
class Calibration:
    """Tokens to which a classifier gave a probability of a tenth."""

    tokens: int
    predicted: float
    """Their mean probability."""
    accepted: float
    """The share that was accepted."""


@dataclass(frozen=True, slots=True)
class DiscoReport:
    """How a classifier does on prompts that it was not trained on."""

    prompts: int
    """Held out."""
    tokens: int
    """Judged there."""
    accepted: float
    """Share of them that the target accepts."""
    accuracy: float
    """Share that the classifier is right about."""
    confidence_accuracy: float
    """The same of the draft's own probability, with the best threshold on the training prompts."""
    error: float
    """Expected calibration error: the mean distance between what was predicted and what came."""
    calibration: tuple[Calibration, ...]
    """Of every tenth that occurs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Samples:
    top: Tensor
    entropy: Tensor
    place: Tensor
    accepted: Tensor
    confidence: Tensor

    @property
    def both(self) -> bool:
        """Whether there are accepted and rejected ones."""
        return bool(self.accepted.any()) and not bool(self.accepted.all())

    def of(self, which: Tensor) -> _Samples:
        return _Samples(*(getattr(self, name)[which] for name in self.__slots__))


def train_disco(traces: Traces, path: str | Path, *, seed: int = 0) -> DiscoReport:
    """Train a classifier and write it; every fifth prompt is kept to judge it by.

    Args:
        traces: Of a draft with a distribution, of several prompts.
        path: Where the classifier goes; "disco:path=…" is its policy.
        seed: Of the first weights and the order of the samples.

    Raises:
        ParameterError: Too few prompts, nothing but accepted or rejected tokens, or a draft
            without a distribution; a path that cannot be written.
    """
    samples, prompt = _samples(traces)
    held = prompt % HELD_OUT == HELD_OUT - 1
    train, test = samples.of(~held), samples.of(held)
    if len(traces) < HELD_OUT or not train.both or not len(test.accepted):
        raise ParameterError(
            f"DISCO needs accepted and rejected tokens of at least {HELD_OUT} prompts; this trace "
            f"has {len(traces)}"
        )
    classifier = _fitted(traces, train, seed)
    report = _judge(classifier, train, test, int(prompt[held].unique().numel()))
    classifier.about |= {"report": asdict(report)}
    _save(classifier, path)
    return report


def fit_disco(traces: Traces, path: str | Path, *, seed: int = 0) -> None:
    """Train a classifier on all prompts and write it; for whoever judges it by other means.

    Args:
        traces: See `train_disco`.
        path: Where the classifier goes.
        seed: See `train_disco`.

    Raises:
        ParameterError: Nothing but accepted or rejected tokens, or a draft without a distribution;
            a path that cannot be written.
    """
    samples, _ = _samples(traces)
    if not samples.both:
        raise ParameterError("DISCO needs tokens that the target accepts, and some that it rejects")
    _save(_fitted(traces, samples, seed), path)


def _fitted(traces: Traces, samples: _Samples, seed: int) -> Classifier:
    classifier = Classifier(traces.header.top, {"models": dict(traces.header.models)})
    _fit(classifier, samples, seed)
    return classifier


def _save(classifier: Classifier, path: str | Path) -> None:
    try:
        classifier.save(path)
    except (OSError, SafetensorError) as error:
        raise ParameterError(f"{path}: cannot be written ({error})") from None


def _samples(traces: Traces) -> tuple[_Samples, Tensor]:
    """Tokens of all windows that could start anywhere, up to and with the first that is rejected;
    and which prompt each is of."""
    if not traces.header.chained:
        raise ParameterError("DISCO reads the draft's probabilities, and this trace has none")
    windows = windows_of(traces)
    judged = np.minimum(windows.matches + 1, windows.available)
    width = np.arange(windows.index.shape[1])
    row, place = np.nonzero(width < np.minimum(judged, traces.header.cap)[:, None])
    at = torch.from_numpy(windows.index[row, place])
    found = _Samples(
        windows.top[at],
        windows.entropy[at],
        torch.from_numpy(place).float(),
        torch.from_numpy(place < windows.matches[row]).float(),
        windows.confidence[at],
    )
    return found, torch.from_numpy(np.searchsorted(windows.offset + 1, row, side="right") - 1)


def _fit(classifier: Classifier, samples: _Samples, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in classifier.parameters():
        if weight.dim() > 1:
            nn.init.kaiming_uniform_(weight, generator=generator)
        else:
            nn.init.zeros_(weight)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=RATE)
    loss = nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        batch = samples.of(torch.randint(len(samples.accepted), (BATCH,), generator=generator))
        optimizer.zero_grad()
        loss(classifier(batch.top, batch.entropy, batch.place), batch.accepted).backward()
        optimizer.step()
    classifier.eval()


@torch.inference_mode()
def _judge(classifier: Classifier, train: _Samples, test: _Samples, prompts: int) -> DiscoReport:
    chance = classifier(test.top, test.entropy, test.place).sigmoid()
    right = (chance >= 0.5) == (test.accepted > 0)
    rows = []
    for low in range(BINS):
        inside = (chance * BINS).long().clamp(max=BINS - 1) == low
        if inside.any():
            rows.append(
                Calibration(
                    int(inside.sum()),
                    float(chance[inside].mean()),
                    float(test.accepted[inside].mean()),
                )
            )
    threshold = _best_threshold(train)
    own = (test.confidence >= threshold) == (test.accepted > 0)
    total = len(chance)
    return DiscoReport(
        prompts=prompts,
        tokens=total,
        accepted=float(test.accepted.mean()),
        accuracy=float(right.float().mean()),
        confidence_accuracy=float(own.float().mean()),
        error=sum(row.tokens * abs(row.predicted - row.accepted) for row in rows) / total,
        calibration=tuple(rows),
    )


def _best_threshold(samples: _Samples) -> float:
    points = torch.linspace(0, 1, 101)
    right = ((samples.confidence[None] >= points[:, None]) == (samples.accepted > 0)).float()
    return float(points[right.mean(dim=1).argmax()])
