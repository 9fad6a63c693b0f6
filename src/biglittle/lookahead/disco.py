"""DISCO: a small classifier, trained on recorded windows, says whether a token will be accepted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import PolicyError
from .base import Decision, DraftStep, Lookahead, check_probability, check_tokens, keep_below

__all__ = ["Classifier", "Disco"]

HIDDEN = 32
FORMAT = "biglittle-disco"
TRAIN = "`biglittle traces disco` trains one"


class Classifier(nn.Module):
    """Two layers over the draft's `k` largest probabilities, its entropy in nats, and the token's
    place in the window.

    Args:
        k: Probabilities that it looks at.
        about: What it was trained on and how well it did; plain data.
    """

    def __init__(self, k: int, about: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.k = k
        self.about = about or {}
        self.layers = nn.Sequential(nn.Linear(k + 2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, top: Tensor, entropy: Tensor, place: Tensor) -> Tensor:
        """Log-odds of acceptance: [n, k], [n], [n] (from 0) → [n]."""
        # Scaled, so that all inputs are of the size of probabilities.
        rest = torch.stack([entropy / 4, (place + 1) / 16], dim=-1)
        odds: Tensor = self.layers(torch.cat([top, rest], dim=-1)).squeeze(-1)
        return odds

    def save(self, path: str | Path) -> None:
        """Write the weights, and what they are, as safetensors."""
        about = {"format": FORMAT, "k": str(self.k), "about": json.dumps(self.about)}
        save_file(self.state_dict(), str(path), metadata=about)

    @classmethod
    def load(cls, path: str | Path) -> Classifier:
        """Read a classifier.

        Raises:
            PolicyError: The file is missing or something else.
        """
        if not _is_file(Path(path)):
            raise PolicyError(f"disco: path={str(path)!r} is not there; {TRAIN}")
        try:
            with safe_open(str(path), "pt") as file:
                metadata = file.metadata() or {}
            if metadata.get("format") == FORMAT:
                found = cls(int(metadata["k"]), json.loads(metadata["about"]))
                found.load_state_dict(load_file(str(path)))
                return found.eval()
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError):
            pass  # of whatever kind, it is no classifier
        raise PolicyError(f"disco: path={str(path)!r} holds no classifier; {TRAIN}")


@dataclass(frozen=True, slots=True)
class Disco(Lookahead):
    """Stop after a token that the classifier gives less than `threshold`; the token is kept.

    `path` is the classifier's file; `biglittle.traces.train_disco` makes one. At most `tokens` a
    round. Source: Mamou et al. 2024, arXiv 2405.04304.
    """

    name: ClassVar[str] = "disco"
    path: str = ""
    threshold: float = 0.5
    tokens: int = 20

    def __post_init__(self) -> None:
        check_probability(self.name, "threshold", self.threshold)
        check_tokens(self.name, self.tokens)
        if not self.path:
            raise PolicyError(f"disco: path='' must name a classifier's file; {TRAIN}")
        if odd := [sign for sign in "+," if sign in self.path]:
            raise PolicyError(
                f"disco: path={self.path!r} has a {odd[0]!r}, which means something else in a "
                "policy; rename the file"
            )
        self.classifier  # noqa: B018 - a file that cannot be read is found out now

    @property
    def classifier(self) -> Classifier:
        """The classifier in the file."""
        file = Path(self.path).expanduser()
        return _load(str(file), file.stat().st_mtime_ns if _is_file(file) else 0)

    def warning(self, target: str, draft: str) -> str:
        """See `Lookahead.warning`: a classifier knows the pair that it was trained for. Folders
        may have moved, so their last names count."""
        known = self.classifier.about.get("models", {})
        theirs = known.get("target", target), known.get("draft", draft)
        if [Path(name).name for name in theirs] == [Path(target).name, Path(draft).name]:
            return ""
        return (
            f"disco: {self.path} was trained for {theirs[0]} with {theirs[1]}, and this is "
            f"{target} with {draft}: it may stop too early or too late; {TRAIN}"
        )

    def decide(self, step: DraftStep, states: Sequence[Any]) -> Tensor:
        """Keep the token that will not be accepted, and stop."""
        classifier = self.classifier
        top, entropy = step.uncertainty(classifier.k)
        place = torch.full_like(entropy, step.index)
        with torch.inference_mode():
            chance = classifier(top.cpu(), entropy.cpu(), place.cpu()).sigmoid()
        return keep_below(chance, self.threshold, Decision.KEEP).to(step.tokens.device)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no file can have that name
        return False


@lru_cache(maxsize=8)
def _load(path: str, changed: int) -> Classifier:
    """A file's classifier, read again when the file changes."""
    return Classifier.load(path)
