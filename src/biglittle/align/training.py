"""Fine-tuning a model on a target's answers, with transformers' `Trainer`.

The paper's recipe (Kim et al. 2023, §3.5): the target's greedy answers are hard labels, Adafactor,
a constant learning rate. What is watched is not the loss but the agreement: on held-out samples,
the share of the target's tokens that the model would have proposed. It is the probability that a
drafted token is accepted, which is what speed depends on.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ..errors import ParameterError, nearest
from .data import IGNORED, Collator, Order, Sample, Samples, data_hash
from .files import writing, written_whole

__all__ = ["Settings", "TrainingReport", "agreement", "fine_tune"]

SCALED = "adafactor-scaled"
OPTIMIZERS = {"adafactor": "adafactor", SCALED: "adafactor", "adamw": "adamw_torch"}
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
METRIC = "agreement"

Progress = Callable[[int, int, float | None], None]
"""Steps that are done, steps in all, and the last agreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a model is trained. The defaults are the paper's, but for the number of steps."""

    optimizer: str = "adafactor"
    """"adafactor", "adamw", or "adafactor-scaled": its rate, about a hundred times as high, is
    relative to every weight's size, as T5's was when it was trained from nothing."""
    learning_rate: float = 1e-4
    schedule: str = "constant"
    """"constant", "linear" or "cosine": what becomes of the rate after the warm-up."""
    warmup: int = 0
    """Steps in which the rate rises."""
    epochs: float = 3.0
    """Times that every sample is seen, unless the agreement stops growing before."""
    steps: int | None = None
    """Steps in all, in place of `epochs`."""
    batch: int = 16
    """Samples a step."""
    micro_batch: int | None = None
    """Samples a forward; fewer take less memory. Default: as `batch`."""
    soft: float = 0.0
    """Weight of the target's distribution as soft labels; the rest is that of its tokens."""
    smoothing: float = 0.0
    """Label smoothing of the hard labels."""
    weight_decay: float = 0.0
    patience: int = 3
    """Evaluations without a higher agreement after which it ends; 0 goes on to the end."""
    evaluations: int = 1
    """An epoch; each leaves a checkpoint."""
    bf16: bool = False
    """Whether products are computed in bfloat16 (weights stay as they are)."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            value = getattr(self, name)
            if value not in known:
                hint = nearest(str(value), known)
                raise ParameterError(f"unknown {name} {value!r}; known: {', '.join(known)}{hint}")
        for name in ("learning_rate", "epochs"):
            if not (math.isfinite(value := getattr(self, name)) and value > 0):
                raise ParameterError(f"{name}={value!r} must be above 0")
        for name in ("soft", "smoothing"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ParameterError(f"{name}={value!r} must be between 0 and 1")
        least = {"batch": 1, "micro_batch": 1, "evaluations": 1, "steps": 1}
        for name, low in {**least, "warmup": 0, "patience": 0}.items():
            if (value := getattr(self, name)) is not None and value < low:
                raise ParameterError(f"{name}={value!r} must be at least {low}")
        if self.batch % self.forward_batch:
            raise ParameterError(
                f"micro_batch={self.micro_batch!r} must divide batch={self.batch!r}"
            )

    @property
    def forward_batch(self) -> int:
        """Samples a forward."""
        return self.batch if self.micro_batch is None else self.micro_batch


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """How a training went."""

    steps: int
    before: float
    """Agreement on the held-out samples before the first step."""
    after: float
    """Of the weights that were kept: those of the best evaluation."""
    history: tuple[tuple[int, float], ...]
    """Steps and agreement of every evaluation."""
    samples: int
    held_out: int


def fine_tune(
    model: Any,
    samples: Sequence[Sample],
    held_out: Sequence[Sample],
    settings: Settings,
    folder: str | Path,
    *,
    teacher: Any = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> TrainingReport:
    """Train a model on samples, until the agreement on the held-out ones stops growing.

    A run that was killed goes on from its last checkpoint. At the end the model has the weights of
    the best evaluation.

    Args:
        model: A transformers (or PEFT) model; what of it requires a gradient is trained.
        samples: What it learns from.
        held_out: What the agreement is measured on.
        settings: How.
        folder: Where checkpoints are kept; new, or that of the same run.
        teacher: The target, if `settings.soft` asks for its distribution.
        progress: Told what is done.
        stop: Once it is set, the step that runs is the last, and a checkpoint is left.

    Raises:
        ParameterError: No samples, a folder with another run's checkpoints or one that cannot be
            written, or soft labels without a teacher.
        KeyboardInterrupt: It was stopped.
    """
    if not samples or not held_out:
        raise ParameterError("training needs samples, and others that are held out")
    if settings.soft and teacher is None:
        raise ParameterError(f"soft={settings.soft} needs the target as a teacher")
    run = _Run(Path(folder), settings, samples, held_out)
    trainer = _Trainer(
        model=model,
        args=_arguments(settings, len(samples), run.checkpoints, model.device),
        data_collator=Collator(model),
        train_dataset=Samples(samples),
        eval_dataset=Samples(sorted(held_out, key=len)),
        compute_metrics=_hits,
        callbacks=_callbacks(settings, progress, stop),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.teacher, trainer.soft, trainer.smoothing = teacher, settings.soft, settings.smoothing
    trainer.scaled = settings.optimizer == SCALED
    last = run.last_checkpoint()
    if run.before is None:
        run.begin(trainer.evaluate()[f"eval_{METRIC}"])
    assert run.before is not None
    with writing(run.checkpoints):
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt
    return _report(trainer.state, run.before, len(samples), len(held_out))


def agreement(model: Any, samples: Sequence[Sample], *, batch: int = 8) -> float:
    """The share of the samples' output tokens that are the model's own first choice, given the
    tokens before them: 0 … 1."""
    collator, data = Collator(model), Samples(sorted(samples, key=len))
    device = next(model.parameters()).device
    hits = total = 0
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(data), batch):
            rows = range(first, min(first + batch, len(data)))
            inputs = {
                name: value.to(device) if isinstance(value, Tensor) else value
                for name, value in collator([data[row] for row in rows]).items()
            }
            labels = inputs.pop("labels")
            chosen = _kept(model(**inputs).logits, labels).argmax(-1)
            hits += int((chosen == labels).sum())
            total += int((labels != IGNORED).sum())
    return hits / max(1, total)


def _kept(logits: Tensor, labels: Tensor) -> Tensor:
    """The positions that have labels, of a model that gives all."""
    return logits[:, -labels.shape[1] :]


def alignment_loss(
    logits: Tensor, hard: Tensor, taught: Tensor | None, soft: float = 0.0, smoothing: float = 0.0
) -> Tensor:
    """(1 − soft) · cross-entropy with the target's tokens + soft · KL(target ‖ draft), summed over
    tokens.

    Args:
        logits: The draft's, [tokens, vocab].
        hard: The target's tokens, [tokens].
        taught: The target's logits, [tokens, its vocab]: heads may be padded differently, and what
            only one has is left out. Needed where `soft` is not 0.
        soft: Weight of the target's distribution.
        smoothing: Label smoothing of the target's tokens.
    """
    logits = logits.float()
    loss = (1 - soft) * functional.cross_entropy(
        logits, hard, reduction="sum", label_smoothing=smoothing
    )
    if taught is None:
        return loss
    shared = min(logits.shape[-1], taught.shape[-1])
    own, wanted = (part[:, :shared].float().log_softmax(-1) for part in (logits, taught))
    return loss + soft * functional.kl_div(own, wanted, reduction="sum", log_target=True)


class _Trainer(Trainer):
    """transformers' trainer with our loss, and predictions instead of logits to be judged by."""

    teacher: Any = None
    soft = 0.0
    smoothing = 0.0
    scaled = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.model_accepts_loss_kwargs = True  # our loss is a mean over all tokens of a step

    def _get_train_sampler(self, train_dataset: Any = None) -> Order:
        data: Any = self.train_dataset
        samples = data.samples
        batch = self._train_batch_size * self.args.gradient_accumulation_steps
        epoch = math.ceil(len(samples) / (batch * self.args.world_size))  # steps
        return Order(samples, batch, self.args.seed, lambda: self.state.global_step // epoch)

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        """The `Trainer`'s own optimizer."""
        made = super().create_optimizer(*args, **options)
        for group in made.param_groups if self.scaled else ():
            group["scale_parameter"] = True
        return made

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Mean over predicted tokens of the cross-entropy with hard and soft labels; where the
        model has exits (see `exit.train_joint`), of theirs, too, of which the first is judged."""
        labels = inputs.pop("labels")
        output = model(**inputs)
        ends = [_kept(logits, labels) for logits in (*output.get("exits", ()), output.logits)]
        seen = labels != IGNORED
        count = seen.sum() if num_items_in_batch is None else num_items_in_batch
        taught = None
        if self.soft:
            with torch.no_grad():
                taught = _kept(self.teacher(**inputs).logits, labels)[seen]
        smoothing = self.smoothing if model.training else 0.0
        losses = [
            alignment_loss(logits[seen], labels[seen], taught, self.soft, smoothing)
            for logits in ends
        ]
        loss = torch.stack(losses).mean() / count
        return (loss, {"predictions": ends[0].argmax(-1)}) if return_outputs else loss


def _hits(found: EvalPrediction) -> dict[str, float]:
    labels: Any = found.label_ids
    seen = labels != IGNORED
    return {METRIC: float((found.predictions == labels)[seen].mean())}


class _Watch(TrainerCallback):
    """Tells how far it is."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._agreement: float | None = None

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """After an evaluation."""
        self._agreement = (metrics or {}).get(f"eval_{METRIC}")
        self._progress(state.global_step, state.max_steps, self._agreement)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """After a step."""
        self._progress(state.global_step, state.max_steps, self._agreement)


class _Patience(TrainerCallback):
    """Ends a training whose agreement has stopped growing.

    What it knows is in the trainer's state, which a checkpoint holds: a training that goes on from
    there ends where it would have ended.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """After an evaluation."""
        rates = [rate for _, rate in _history(state)]
        if rates and len(rates) - 1 - rates.index(max(rates)) >= self._patience:
            control.should_training_stop = True

    on_step_begin = on_evaluate  # where a checkpoint is of a training that had ended


class _Best(TrainerCallback):
    """Finds the best checkpoint where it is now: what went before may have been elsewhere."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Before the first step of this run."""
        best = Path(args.output_dir or "") / f"checkpoint-{state.best_global_step}"
        if state.best_global_step and best.is_dir():
            state.best_model_checkpoint = str(best)


class _Stop(TrainerCallback):
    """Ends a training that its user ends, with a checkpoint."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """After a step."""
        if self._stop.is_set():
            control.should_save = control.should_training_stop = True


def _callbacks(
    settings: Settings, progress: Progress | None, stop: threading.Event | None
) -> list[TrainerCallback]:
    found: list[TrainerCallback] = [_Best()]
    if settings.patience:
        found.append(_Patience(settings.patience))
    if progress is not None:
        found.append(_Watch(progress))
    if stop is not None:
        found.append(_Stop(stop))
    return found


def _arguments(
    settings: Settings, samples: int, folder: Path, device: torch.device
) -> TrainingArguments:
    devices = _devices(device)
    share = max(1, settings.forward_batch // devices)
    forwards = max(1, settings.batch // (share * devices))
    steps = math.ceil(samples / (share * devices * forwards))  # an epoch
    if settings.steps is not None:
        steps = min(steps, settings.steps)
    every = max(1, steps // settings.evaluations)
    return TrainingArguments(
        output_dir=str(folder),
        optim=OPTIMIZERS[settings.optimizer],
        learning_rate=settings.learning_rate,
        lr_scheduler_type=SCHEDULES[settings.schedule],
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        num_train_epochs=settings.epochs,
        max_steps=settings.steps or -1,
        per_device_train_batch_size=share,
        per_device_eval_batch_size=share,
        gradient_accumulation_steps=forwards,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model=METRIC,
        bf16=settings.bf16,
        seed=settings.seed,
        use_cpu=device.type == "cpu",
        remove_unused_columns=False,
        label_names=["labels"],
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=device.type == "cuda",
        logging_strategy="no",
    )


def _devices(device: torch.device) -> int:
    """How many share a batch: processes, or all GPUs of a single one."""
    if device.type != "cuda":
        return 1
    return int(os.environ.get("WORLD_SIZE", torch.cuda.device_count()))


class _Run:
    """What a folder knows of a training: which it is, and how far it came."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        samples: Sequence[Sample],
        held_out: Sequence[Sample],
    ) -> None:
        self.checkpoints = folder / "checkpoints"
        self._file = folder / "training.json"
        self._key = {
            "settings": dataclasses.asdict(settings),
            "samples": data_hash(samples),
            "held_out": data_hash(held_out),
        }
        self.before: float | None = None
        """Agreement before the first step, once it is known."""
        if self._file.exists():
            found = json.loads(self._file.read_text(encoding="utf8"))
            self.before = found.pop("before")
            if found != self._key:
                names = [name for name in self._key if found.get(name) != self._key[name]]
                raise ParameterError(
                    f"{folder} holds another training (its {' and '.join(names)} differ); give "
                    "another folder, or remove this one"
                )

    def begin(self, before: float) -> None:
        """Note what the folder holds, before the first step."""
        self.before = before
        written_whole(self._file, json.dumps({**self._key, "before": before}, indent=1))

    def last_checkpoint(self) -> Path | None:
        """The last one that is whole; one that a kill left unfinished is removed."""
        found = sorted(self.checkpoints.glob("checkpoint-*"), key=lambda path: _steps(path.name))
        while found and not _is_whole(found[-1]):
            shutil.rmtree(found.pop())
        return found[-1] if found else None


def _is_whole(checkpoint: Path) -> bool:
    """Whether its last file was written to the end."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        return False
    return True


def _steps(name: str) -> int:
    return int(name.rpartition("-")[2])


def _history(state: TrainerState) -> list[tuple[int, float]]:
    """Steps and agreement of every evaluation."""
    name = f"eval_{METRIC}"
    return [(int(entry["step"]), entry[name]) for entry in state.log_history if name in entry]


def _report(state: TrainerState, before: float, samples: int, held_out: int) -> TrainingReport:
    history = tuple(_history(state))
    after = max((rate for _, rate in history), default=before)
    return TrainingReport(state.global_step, before, after, history, samples, held_out)
