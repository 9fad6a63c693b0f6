"""What learns: a draft, given or cut out of the target, whole or by an adapter; or an exit."""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import transformers as tf

from .. import catalogue
from ..engines.transformers.capability import context_limit, is_seq2seq, vocab_size
from ..engines.transformers.cut_head import SAVED
from ..engines.transformers.loading import is_adapter, load_model, load_tokenizer, locate
from ..errors import ParameterError
from .cut import Cut, check_cut, cut_model, frequent_tokens
from .data import Sample
from .exit import train_exit, train_joint
from .files import writing, written_whole
from .plan import Plan
from .training import Progress, Settings, TrainingReport, fine_tune

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["Student", "make_student"]

LOGITS = 1 << 30  # bytes of a forward's logits, about: there are several copies


class Student(Protocol):
    """What is trained."""

    writes_with: str | None
    """What drafts while the target answers."""
    before: str
    """What drafts before the training."""
    after: tuple[str, str]
    """Target and draft after it."""
    is_model: bool
    """Whether it is a model that answers by itself, and can be judged by that."""
    costs_stay: bool
    """Whether passes cost afterwards what they cost before."""

    def check(self, pair: Pair) -> None:
        """Refuse what cannot be made or trained.

        Raises:
            ParameterError, UnsupportedModelError: With the reason.
        """

    def prepare(self) -> None:
        """Make what drafts before the training, if it is not there."""

    def train(
        self,
        samples: Sequence[Sample],
        held_out: Sequence[Sample],
        folder: Path,
        progress: Progress,
        stop: threading.Event | None,
    ) -> TrainingReport:
        """Train it, and write it out; see `fine_tune`."""


def make_student(plan: Plan, out: Path, work: Path) -> Student:
    """What the plan wants trained.

    Args:
        plan: The plan.
        out: Where the result goes.
        work: For what only the run needs.
    """
    if plan.early_exit is not None:
        return ExitStudent(plan, plan.early_exit, out)
    return DraftStudent(plan, out, work)


class DraftStudent:
    """A draft model; see `Student`."""

    def __init__(self, plan: Plan, out: Path, work: Path) -> None:
        self._plan, self._out, self._init = plan, out, work / "init"
        self._cut = plan.init if isinstance(plan.init, Cut) else None
        self.writes_with = plan.draft
        self.before = str(self._init) if plan.draft is None else plan.draft
        self.after = plan.target, str(out)
        self.is_model = True
        self.costs_stay = self._cut is None or self._cut.head is None

    def check(self, pair: Pair) -> None:
        """See `Student.check`."""
        if self._cut is not None and isinstance(pair.target, tf.PreTrainedModel):
            check_cut(pair.target, self._cut)
        if self._cut is None and not isinstance(pair.draft, tf.PreTrainedModel):
            raise ParameterError(
                f"{self.before} runs in llama.cpp, where it cannot be trained; give it as a folder "
                "of transformers"
            )
        if self._plan.lora and is_adapter(locate(self.before)):
            raise ParameterError(
                f"{self.before} is an adapter already; train it whole, or give its base with lora"
            )

    def prepare(self) -> None:
        """Cut it out of the target, where that is wanted."""
        if self._cut is None or self._init.is_dir():
            return
        target = load_part(self._plan, self._plan.target)
        fresh = self._init.with_name(".init")
        with writing(self._init):
            shutil.rmtree(fresh, ignore_errors=True)
            cut_model(target, self._cut).save_pretrained(fresh)
            save_tokenizer(self._plan, self._plan.target, fresh)
            fresh.rename(self._init)

    def train(
        self,
        samples: Sequence[Sample],
        held_out: Sequence[Sample],
        folder: Path,
        progress: Progress,
        stop: threading.Event | None,
    ) -> TrainingReport:
        """See `Student.train`."""
        plan = self._plan
        model, dtype = self._trainable()
        known = vocab_size(model)
        samples, held_out = (_readable(part, model) for part in (samples, held_out))
        report = fine_tune(
            model,
            samples,
            held_out,
            _fitting(plan.settings, [*samples, *held_out], known),
            folder,
            teacher=load_part(plan, plan.target) if plan.settings.soft else None,
            progress=progress,
            stop=stop,
        )
        with writing(self._out):
            self._save(model, dtype)
        if self._cut is not None and self._cut.head is not None:
            kept = frequent_tokens(samples, self._cut.head)
            written_whole(self._out / SAVED, json.dumps(kept))
        return report

    def _trainable(self) -> tuple[Any, torch.dtype]:
        """The draft, and the dtype that it is kept in. Weights that learn are in float32: steps are
        smaller than what bfloat16 resolves."""
        model = load_part(self._plan, self.before)
        dtype = model.dtype
        if self._plan.lora is None:
            return model.float(), dtype
        return self._with_lora(model, self._plan.lora), dtype

    def _with_lora(self, model: Any, rank: int) -> Any:
        """An adapter on all linear layers but the head; the model itself stays as it is."""
        from peft import LoraConfig, TaskType, get_peft_model

        torch.manual_seed(self._plan.settings.seed)
        kind = TaskType.SEQ_2_SEQ_LM if is_seq2seq(model) else TaskType.CAUSAL_LM
        config = LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type=kind
        )
        adapted: Any = get_peft_model(model, config)
        config.base_model_name_or_path = _lasting_name(self.before)
        return adapted

    def _save(self, model: Any, dtype: torch.dtype) -> None:
        model.to(dtype)
        if self._plan.lora is not None:
            model.save_pretrained(self._out, save_embedding_layers=False)
            return
        model.save_pretrained(self._out)
        save_tokenizer(self._plan, self.before, self._out)


class ExitStudent:
    """The target's exit after a layer; see `Student`."""

    def __init__(self, plan: Plan, layers: int, out: Path) -> None:
        self._plan, self._layers, self._out = plan, layers, out
        plain = f"early-exit:layers={layers}"
        self.writes_with: str | None = plain
        self.before = plain
        adapted = (plan.target, f"early-exit:adapter={out}")
        self.after = (str(out), plain) if plan.joint else adapted
        self.is_model = plan.joint
        self.costs_stay = plan.joint  # an adapter is not free

    def check(self, pair: Pair) -> None:
        """See `Student.check`: whether the target has the exit, loading the pair has told."""
        if torch.cuda.is_available() and torch.cuda.device_count() > 1:
            raise ParameterError(
                "an exit is trained on one GPU; choose it, for example with CUDA_VISIBLE_DEVICES=0"
            )

    def prepare(self) -> None:
        """See `Student.prepare`: there is nothing to make."""

    def train(
        self,
        samples: Sequence[Sample],
        held_out: Sequence[Sample],
        folder: Path,
        progress: Progress,
        stop: threading.Event | None,
    ) -> TrainingReport:
        """See `Student.train`."""
        target, plan = load_part(self._plan, self._plan.target), self._plan
        settings = _fitting(plan.settings, [*samples, *held_out], vocab_size(target))
        data: Any = (samples, held_out, settings, folder)
        watch: Any = {"progress": progress, "stop": stop}
        if not plan.joint:
            adapter, report = train_exit(target, self._layers, *data, **watch)
            with writing(self._out):
                adapter.save(self._out)
            return report
        dtype = target.dtype
        report = train_joint(target.float(), [self._layers], *data, **watch)
        with writing(self._out):
            target.to(dtype).save_pretrained(self._out)
            save_tokenizer(plan, plan.target, self._out)
        return report


def load_part(plan: Plan, source: str) -> Any:
    """The target or the draft alone, as it can be trained; an adapter is in its weights."""
    options = plan.options
    asked = {name: options.get(name, "auto") for name in ("dtype", "device")}
    if source == plan.target:
        asked["adapter"] = options.get("adapter")
    else:
        asked |= {n: options[f"draft_{n}"] for n in asked if options.get(f"draft_{n}") is not None}
    trust = bool(options.get("trust_remote_code"))
    model = load_model(source, **asked, pack=False, trust_remote_code=trust)
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def save_tokenizer(plan: Plan, source: str, folder: Path) -> None:
    """Write a model's tokenizer, if it has one, to another folder."""
    trust = bool(plan.options.get("trust_remote_code"))
    if (tokenizer := load_tokenizer(source, trust_remote_code=trust)) is not None:
        tokenizer.save_pretrained(folder)


def _lasting_name(source: str) -> str:
    """A name of a model that another folder can give: of a folder, its whole path."""
    here = Path(source).expanduser()
    known = catalogue.find(source) is not None and not here.exists()
    return str(here.resolve()) if here.exists() and not known else source


def _readable(samples: Sequence[Sample], model: Any) -> list[Sample]:
    """Samples whose tokens the draft knows, and that fit in its context."""
    known, context = vocab_size(model), context_limit(model) or math.inf
    return [
        sample
        for sample in samples
        if max(*sample.prompt, *sample.output, *(sample.source or ())) < known
        and max(len(sample.prompt) + len(sample.output) - 1, len(sample.source or ())) <= context
    ]


def _fitting(settings: Settings, samples: Sequence[Sample], vocab: int) -> Settings:
    """The settings, with as many samples a forward as their logits have room for."""
    if settings.micro_batch is not None or not samples:
        return settings
    longest = max(len(sample.prompt) + len(sample.output) for sample in samples)
    room = max(1, LOGITS // (4 * vocab * longest))
    fits = [size for size in range(1, settings.batch + 1) if settings.batch % size == 0]
    return replace(settings, micro_batch=max(size for size in fits if size <= room))
