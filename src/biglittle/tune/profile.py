"""A profile: the policy that a tuning run found for a pair and a task, and the evidence for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.summary import Interval
from ..costs import Costs
from ..errors import ParameterError, PolicyError
from ..files import write_whole
from ..policy import parse_policy
from ..traces.base import check_models
from .confirm import Timed
from .lab import Setting
from .quality import Change

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["Profile", "Rejected"]

NAME = {"format": "biglittle profile", "version": 1}
TRUST = "trust_remote_code"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A setting that the search promised and the confirmation did not bear out."""

    policy: str
    reason: str


@dataclass(frozen=True, slots=True)
class Profile:
    """What `tune` found. `biglittle.load(profile=...)` uses it."""

    policy: str
    """The answer."""
    lossless: bool
    """Whether it is lossless. A lossy one is used only where its profile is asked for."""
    verdict: str
    """In a sentence or two."""
    notes: tuple[str, ...]
    """What could not be shown, and what was given up."""
    target: str | None
    """What `load` was given; None for a model that was in memory."""
    draft: str | None
    options: Mapping[str, Any]
    """Options of `load` that were not its defaults."""
    models: Mapping[str, str]
    """Models, how they ran, and a hash of the vocabulary, by which a pair is known again."""
    task: str
    data: str
    """A hash of the task's examples."""
    seed: int
    """Of the split and the search."""
    max_new_tokens: int
    budgets: tuple[str, ...]
    promised: Setting
    """The answer on the examples that were searched."""
    best_lossless: Setting
    """The best lossless policy, on the same."""
    found: Setting | None
    """The answer on examples that were not searched; None where none were held out, or the time
    was over."""
    timed: Timed | None
    """The same, timed."""
    rejected: tuple[Rejected, ...]
    settings: tuple[Setting, ...]
    """Every lossy setting that was tried."""
    costs: tuple[Costs, ...]
    """Of passes, at every context that was measured."""
    hardware: Mapping[str, Any]
    versions: Mapping[str, str]
    command: str
    """How it came about."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**NAME, **asdict(self)}

    def save(self, path: str | Path) -> None:
        """Write it as JSON; the file is never there by halves."""
        write_whole(Path(path), json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read one.

        Raises:
            ParameterError: No file, no profile, one of another version, or a damaged one.
        """
        try:
            data = json.loads(Path(path).expanduser().read_text("utf-8-sig"))
            name = {key: data.pop(key, None) for key in NAME}
        except OSError as cause:
            raise ParameterError(f"profile {path} cannot be read: {cause.strerror}") from None
        except (ValueError, AttributeError, TypeError):
            name = {}
        if name.get("format") != NAME["format"]:
            raise ParameterError(f"{path} is no profile; `biglittle tune` writes one")
        if name != NAME:
            raise ParameterError(
                f"{path} is a profile of version {name['version']}, and this program reads version "
                f"{NAME['version']}; tune anew"
            )
        try:
            return _profile(data)
        except (KeyError, TypeError, ValueError, AttributeError, PolicyError) as cause:
            raise ParameterError(f"profile {path} is damaged ({cause}); tune anew") from None

    def check(self, pair: Pair) -> None:
        """Raise `ParameterError` unless it is of this pair."""
        check_models(self.models, pair, "the profile", "tune this pair")

    def sources(
        self, target: Any, draft: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        """What `load` should load: what it was given, and the profile's own for the rest. How
        models are loaded does not matter to a target in memory, and trust in code that comes with
        a model is no file's to give.

        Raises:
            ParameterError: No target, neither there nor here.
        """
        if target is None and self.target is None:
            raise ParameterError(
                "the profile was made of a model in memory and names no target; give one"
            )
        named = target is None or isinstance(target, str | Path)
        tuned = self.options if named else {}
        own = {
            name: tuned.get(name, value) if value == defaults[name] and name != TRUST else value
            for name, value in options.items()
        }
        return (
            self.target if target is None else target,
            self.draft if draft is None else draft,
            own,
        )


def _profile(data: Mapping[str, Any]) -> Profile:
    names = {field.name for field in fields(Profile)}
    values = {name: data[name] for name in names}
    parse_policy(values["policy"])
    _check_sources(values)
    return Profile(
        **values
        | {
            "notes": tuple(data["notes"]),
            "budgets": tuple(data["budgets"]),
            "promised": _setting(data["promised"]),
            "best_lossless": _setting(data["best_lossless"]),
            "found": _setting(data["found"]) if data["found"] else None,
            "timed": _timed(data["timed"]) if data["timed"] else None,
            "rejected": tuple(Rejected(**one) for one in data["rejected"]),
            "settings": tuple(map(_setting, data["settings"])),
            "costs": tuple(map(Costs.from_dict, data["costs"])),
        }
    )


def _check_sources(values: Mapping[str, Any]) -> None:
    """Raise `ValueError` for what `load` cannot take: a profile may have been edited by hand."""
    from ..pair import DEFAULTS

    for name in ("target", "draft"):
        if not isinstance(values[name], str | None):
            raise ValueError(f"{name} is {values[name]!r}, and no name")
    if unknown := [name for name in _mapping(values, "options") if name not in DEFAULTS]:
        raise ValueError(f"there is no option {unknown[0]!r}")
    if missing := {"target", "draft", "tokenizer"} - set(_mapping(values, "models")):
        raise ValueError(f"models has no {min(missing)!r}")


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(values[name], Mapping):
        raise ValueError(f"{name} is no object")
    found: Mapping[str, Any] = values[name]
    return found


def _setting(data: Mapping[str, Any]) -> Setting:
    return Setting(**{**data, "changes": tuple(Change(**change) for change in data["changes"])})


def _timed(data: Mapping[str, Any]) -> Timed:
    lossless = data["over_lossless"]
    return Timed(
        data["examples"],
        Interval(**data["speedup"]),
        Interval(**data["whole"]),
        Interval(**lossless) if lossless else None,
    )
