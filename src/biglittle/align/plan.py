"""What is to be aligned with what, and how: checked before any work starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

from ..bench.runner import data_hash
from ..bench.tasks import Task
from ..errors import ParameterError
from ..matching import parse_draft
from .cut import Cut, parse_cut
from .training import Settings

__all__ = ["INSTALL", "Plan"]

INSTALL = "pip install 'biglittle[align]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is aligned, with what, and how.

    Exactly one of `draft`, `init` and `early_exit` says what learns.
    """

    target: str
    """A name, a folder or a file, as for `biglittle.load`."""
    draft: str | None = None
    """A little model, given the same way."""
    init: Cut | str | None = None
    """What to cut out of the target instead, e.g. `layers=4`; see `parse_cut`."""
    early_exit: int | None = None
    """The layer after which the target's exit is trained instead."""
    joint: bool = False
    """Whether the whole target is trained with its exit; then it is another model."""
    lora: int | None = None
    """Rank of an adapter that is trained in place of the whole draft."""
    tasks: Sequence[Task] = ()
    """What the target is asked. Without any, it writes its own prompts."""
    prompts: int = 1000
    """How many it writes."""
    held_out: int | None = None
    """Conversations that are not trained on. Default: one in ten, at most 100."""
    max_new_tokens: int = 256
    """Of an answer."""
    settings: Settings = field(default_factory=Settings)
    """Of the training. Its seed is also that of the prompts and of what is held out."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `biglittle.load`: dtype, device …"""

    def __post_init__(self) -> None:
        if isinstance(self.init, str):
            object.__setattr__(self, "init", parse_cut(self.init))
        given = [name for name in ("draft", "init", "early_exit") if getattr(self, name)]
        if len(given) > 1:
            one, other = (f"{name}={str(getattr(self, name))!r}" for name in given[:2])
            raise ParameterError(f"{one} and {other} are two drafts; leave one out")
        if not given:
            raise ParameterError(
                "there is nothing to train; give a draft, cut one out of the target (init, e.g. "
                "layers=4), or train an early exit of it"
            )
        self._check_kinds()
        limits = {"prompts": 2, "held_out": 1, "max_new_tokens": 1, "early_exit": 1, "lora": 1}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ParameterError(f"{name}={value!r} must be at least {least}")

    def _check_kinds(self) -> None:
        if self.draft and parse_draft(self.draft).model is None:
            raise ParameterError(
                f"draft={self.draft!r} is no model that can be trained; give one, cut one out of "
                "the target with init, or train an exit with early_exit"
            )
        if self.joint and not self.early_exit:
            raise ParameterError("joint is for an early exit; say after which layer it is")
        if self.lora and not self.draft:
            raise ParameterError("lora is for a draft; a cut or an exit is small as it is")
        if self.lora and find_spec("peft") is None:
            raise ParameterError(f"lora needs the package peft: {INSTALL}")
        if self.joint and (self.settings.soft or self.options.get("adapter")):
            raise ParameterError(
                "joint training makes another target: it goes without soft labels, which are the "
                "target's, and without an adapter for it"
            )
        self._check_devices()
        for what in (self.target if self.settings.soft or self.init else "", self.draft or ""):
            self._check_trainable(what)

    def _check_devices(self) -> None:
        """Training runs on the first GPU that is seen, or where the model is without one."""
        devices = {name: str(self.options.get(name) or "") for name in ("device", "draft_device")}
        for name, device in devices.items():
            if (number := device.partition("cuda:")[2]).isdecimal() and int(number):
                raise ParameterError(
                    f"{name}={device!r}: training is on the first GPU that is seen; choose it with "
                    f"CUDA_VISIBLE_DEVICES={number} and {name}='cuda'"
                )
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        big = devices["device"].replace("auto", "") or usual
        if self.settings.soft and (devices["draft_device"].replace("auto", "") or big) != big:
            raise ParameterError("soft labels need target and draft on one device")

    def _check_trainable(self, model: str) -> None:
        """What is trained, cut, or asked for its distribution, is transformers'."""
        if model.lower().endswith(".gguf"):
            raise ParameterError(
                f"{model} is a quantized file, which cannot be trained, cut or asked for "
                "distributions; give the model as a folder or by its name"
            )

    @property
    def kind(self) -> str:
        """What learns: "draft", "init" or "early_exit"."""
        return next(name for name in ("draft", "init", "early_exit") if getattr(self, name))

    def as_dict(self) -> dict[str, Any]:
        """What the result depends on, as plain data."""
        apart = {"init", "tasks", "settings", "options"}
        names = [field.name for field in dataclasses.fields(self) if field.name not in apart]
        return {
            **{name: getattr(self, name) for name in names},
            "init": None if self.init is None else str(self.init),
            **{f"data {task.name}": data_hash(task) for task in self.tasks},
            **dataclasses.asdict(self.settings),
            **{key: str(v) for key, v in self.options.items() if v is not None},
        }
