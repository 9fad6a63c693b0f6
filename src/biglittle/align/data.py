"""What a little model learns from: prompts, and what the target answered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from ..engines.transformers.capability import is_seq2seq, parameters_of

__all__ = ["IGNORED", "Collator", "Order", "Sample", "Samples", "data_hash"]

IGNORED = -100  # a label that is none, as in torch and transformers


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and its answer, as token ids."""

    prompt: tuple[int, ...]
    """What the (decoder's) answer goes on from; of an encoder-decoder model its start token."""
    output: tuple[int, ...]
    """The answer, with the EOS that ended it."""
    source: tuple[int, ...] | None = None
    """What an encoder reads."""

    def __post_init__(self) -> None:
        if not self.prompt or not self.output:
            raise ValueError("a sample has a prompt and an output of at least one token each")

    def __len__(self) -> int:
        """Tokens that are read and predicted."""
        return len(self.prompt) + len(self.output) + len(self.source or ())


def data_hash(samples: Sequence[Sample]) -> str:
    """A hash of samples in their order."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(json.dumps(astuple(sample)).encode())
    return digest.hexdigest()[:16]


class Samples(Dataset[dict[str, Any]]):
    """Samples as the `Trainer` wants them."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"sample": self.samples[index]}


class Order(Sampler[int]):
    """A random order in which samples of about the same length are beside each other.

    An epoch's order follows from its number alone, so a training that was killed within one goes
    on with what is left of it.

    Args:
        samples: The samples.
        batch: Those of a step.
        seed: Of the first epoch.
        epoch: Says which epoch it is, when one begins or is gone on with.
    """

    def __init__(
        self, samples: Sequence[Sample], batch: int, seed: int, epoch: Callable[[], int]
    ) -> None:
        self._lengths = [len(sample) for sample in samples]
        self._batch, self._seed, self._epoch = batch, seed, epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch())
        return iter(get_length_grouped_indices(self._lengths, self._batch, generator=generator))


class Collator:
    """Samples to a batch.

    Args:
        model: Whose `forward` the batch is for; of a PEFT model, the one within.
        pad: The id that fills up; what it is does not matter, it is never seen.
    """

    def __init__(self, model: Any, pad: int = 0) -> None:
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._seq2seq = is_seq2seq(inner)
        self._keeps = "logits_to_keep" in parameters_of(inner.forward)
        self._pad = pad

    def __call__(self, features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The arguments of `forward`, and `labels` [rows, kept]: the token that each of the last
        `kept` positions should predict."""
        samples: list[Sample] = [feature["sample"] for feature in features]
        read = [(*sample.prompt, *sample.output)[:-1] for sample in samples]
        labels = [[IGNORED] * (len(s.prompt) - 1) + list(s.output) for s in samples]
        first = min(len(sample.prompt) for sample in samples) - 1
        batch: dict[str, Any] = {"labels": _padded(labels, IGNORED)[:, first:]}
        tokens, mask = self._read(read)
        if self._seq2seq:
            batch["decoder_input_ids"] = tokens  # padding is on the right, where none looks at it
            batch["input_ids"], batch["attention_mask"] = self._read(
                [sample.source or () for sample in samples]
            )
        else:
            batch["input_ids"], batch["attention_mask"] = tokens, mask
        if self._keeps:
            batch["logits_to_keep"] = batch["labels"].shape[1]
        return batch

    def _read(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        mask = _padded([[1] * len(row) for row in rows], 0)
        return _padded(rows, self._pad), mask


def _padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])
