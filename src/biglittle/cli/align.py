"""`biglittle align`: make a draft that proposes what the target would write."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import ParameterError
from .loading import fetch, load_options, notes, quiet_libraries
from .options import ModelOptions, given
from .screen import Screen, first_interrupt, percent, plural

if TYPE_CHECKING:
    from ..align import AlignReport, Plan, Settings
    from ..bench.tasks import Task

__all__ = ["EPILOG", "align"]

EPILOG = """
**Examples**

`biglittle align -t ./big -d ./little --task prompts.jsonl --out aligned`

`biglittle align -t ./big -d ./little --lora 16 --out aligned` (the target writes its own prompts)

`biglittle align -t ./big --init layers=4 --source train.de --raw --out aligned`

`biglittle align -t ./big --early-exit 8 --task prompts.jsonl --out exit`

and then `biglittle generate -t ./big -d aligned …`

**What it does.** The target answers the prompts greedily. The draft is trained on its answers,
until it agrees no more often with the target on prompts that it is not trained on. Acceptance and
the predicted speed are measured before and after. Everything is kept as it comes: a run that was
stopped goes on when the same command is given again.
"""

_LEARNER: Any = {"rich_help_panel": "What is trained", "show_default": False}
_DATA: Any = {"rich_help_panel": "What the target is asked", "show_default": False}
_TRAINING: Any = {"rich_help_panel": "Training"}
_OUTPUT: Any = {"rich_help_panel": "Output"}
ROWS = 16
PROMPTS = 1000
USUAL = {"whole": ("adafactor", 1e-4), "lora": ("adamw", 5e-4), "exit": ("adamw", 1e-3)}
EVERY = 60.0  # seconds between two lines where there is no terminal
ENOUGH = 5  # steps from which the time left is told


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What the target is asked."""

    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Prompts, as for `biglittle bench`: a text file with a prompt a line, JSONL with "
            "prompts, turns or chats, Spec-Bench questions, HumanEval, MBPP, or a data set of the "
            "hub; repeatable. Of a conversation every turn is asked, after the target's own "
            "answers. Default: the target writes the prompts.",
            **_DATA,
        ),
    ] = None
    format: Annotated[str, typer.Option(help="Of the files; as for bench.", **_DATA)] = "auto"
    source: Annotated[
        str | None, typer.Option(metavar="FILE", help="Texts to translate, a line each.", **_DATA)
    ] = None
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Their translations, to judge the draft's own by.", **_DATA
        ),
    ] = None
    template: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The prompt around a text, with {source} in its place.", **_DATA
        ),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="What the draft alone is judged by; as for bench.", **_DATA
        ),
    ] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put prompts into the model's chat template, or not. Default: as the format has "
            "it.",
            **_DATA,
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(min=2, help="Only the first so many prompts of a file.", **_DATA)
    ] = None
    prompts: Annotated[
        int,
        typer.Option(
            min=2,
            help="How many prompts the target writes, where none are given.",
            rich_help_panel="What the target is asked",
        ),
    ] = PROMPTS
    max_new_tokens: Annotated[
        int,
        typer.Option(
            "--max-new-tokens",
            "-m",
            min=1,
            help="Most tokens of an answer.",
            rich_help_panel="What the target is asked",
        ),
    ] = 256
    held_out: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompts that are not trained on. Default: one in ten, at most 100.",
            **_DATA,
        ),
    ] = None

    def _check(self) -> None:
        """Refuse what would be ignored."""
        if self.reference is not None and self.source is None:
            raise ParameterError("--reference is of a text that --source gives")
        if self.task or self.source is not None:
            if self.prompts != PROMPTS:
                raise ParameterError("--prompts is for a target that writes its own; give no files")
        else:
            names = ("template", "metric", "chat", "limit")
            for name in names:
                if getattr(self, name) is not None:
                    flag = "chat/--raw" if name == "chat" else name
                    raise ParameterError(f"--{flag} is of files: give --task or --source")
        if self.metric and not self.task and self.reference is None:
            raise ParameterError("--metric needs a --reference to judge by")

    def read(self) -> list[Task]:
        """The tasks; none where the target is to write its prompts."""
        from ..bench.readers import read_tasks
        from ..bench.readers.options import ReadOptions
        from ..bench.readers.parallel import read_source

        options: dict[str, Any] = {
            "template": self.template,
            "chat": self.chat,
            "metrics": self.metric,
            "limit": self.limit,
        }
        self._check()
        found: list[Task] = []
        for spec in self.task or []:
            found += read_tasks(spec, format=self.format, **options)
        if self.source is not None and self.reference is not None:
            found += read_tasks(self.source, reference=self.reference, **options)
        elif self.source is not None:
            how = ReadOptions(chat=self.chat, template=self.template, limit=self.limit)
            found += read_source(Path(self.source).expanduser(), how)
        names = [task.name for task in found]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ParameterError(f"two tasks are called {twice[0]!r}; rename a file")
        return found


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How it is trained."""

    epochs: Annotated[
        float, typer.Option(help="Times that every answer is seen, at most.", **_TRAINING)
    ] = 3.0
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps in all, in place of epochs.", show_default=False, **_TRAINING
        ),
    ] = None
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate. Default: 1e-4; 5e-4 with --lora, 1e-3 for an exit.",
            show_default=False,
            **_TRAINING,
        ),
    ] = None
    schedule: Annotated[
        str,
        typer.Option(
            help="What becomes of the rate: constant, or linear or cosine, which fall to nothing "
            "at the last step (with --patience 0, which lets it get there).",
            **_TRAINING,
        ),
    ] = "constant"
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="adafactor, adafactor-scaled (its rate is relative to every weight's size, for "
            "T5-like models trained from little) or adamw. Default: adafactor; adamw with --lora "
            "and for an exit.",
            show_default=False,
            **_TRAINING,
        ),
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Answers a step.", **_TRAINING)] = 16
    soft: Annotated[
        float,
        typer.Option(
            help="Weight of the target's distribution as labels, 0 … 1; the rest is its tokens'.",
            **_TRAINING,
        ),
    ] = 0.0
    evaluations: Annotated[
        int,
        typer.Option(
            min=1,
            help="An epoch; each leaves a checkpoint, from which a killed training goes on.",
            **_TRAINING,
        ),
    ] = 1
    patience: Annotated[
        int,
        typer.Option(
            min=0,
            help="Evaluations without a higher agreement before it ends; 0 goes on.",
            **_TRAINING,
        ),
    ] = 3
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.", **_TRAINING)] = 0

    def settings(self, kind: str, device: str) -> Settings:
        """As the library has them, with what is usual for "whole" models, "lora" or an "exit"."""
        import torch

        from ..align import Settings

        optimizer, rate = USUAL[kind]
        return Settings(
            optimizer=self.optimizer or optimizer,
            learning_rate=rate if self.lr is None else self.lr,
            schedule=self.schedule,
            epochs=self.epochs,
            steps=self.steps,
            batch=self.batch,
            soft=self.soft,
            patience=self.patience,
            evaluations=self.evaluations,
            bf16=device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
            seed=self.seed,
        )


def align(
    *,
    models: ModelOptions,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="layers=N",
            help="Cut the draft out of the target: so many layers, spread evenly, or which "
            "(layers=0+7+15+23); encoder=N for an encoder's; head=N limits it to the most frequent "
            "tokens.",
            **_LEARNER,
        ),
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option(
            metavar="RANK", min=1, help="Train an adapter in place of the whole draft.", **_LEARNER
        ),
    ] = None,
    early_exit: Annotated[
        int | None,
        typer.Option(
            metavar="LAYERS",
            min=1,
            help="Train an exit of the target after so many layers; the target stays as it is.",
            **_LEARNER,
        ),
    ] = None,
    joint: Annotated[
        bool,
        typer.Option(
            "--joint",
            help="Train the whole target with its exit, ½(L₁ + L_last): another model.",
            **_LEARNER,
        ),
    ] = False,
    data: DataOptions,
    training: TrainingOptions,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the target's answers are kept. Runs that share it do not ask twice. "
            "Default: in the folder.",
            show_default=False,
            **_OUTPUT,
        ),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Texts that are written beside each other.", **_OUTPUT)
    ] = ROWS,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Where the draft goes, with align.json and a model card. A run that was stopped "
            "goes on there.",
            **_OUTPUT,
        ),
    ] = Path("aligned"),
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on standard error but errors.", **_OUTPUT),
    ] = False,
) -> None:
    """Make a little model that proposes what the big one would write.

    It drafts for any target: fine-tuned from a model that there is, whole or by an adapter, cut
    out of the target, or an exit of it.
    """
    screen = Screen(quiet=quiet)
    with screen.status("starting"):
        quiet_libraries()
        plan = make_plan(models, init, lora, early_exit, joint, data, training)
    fetch(plan.target, plan.draft, options_now(plan), screen)
    from ..align import align as run

    with first_interrupt() as stop, _progress(screen) as say, notes(screen):
        try:
            command = shlex.join(["biglittle", *sys.argv[1:]])
            report = run(
                plan, out, answers=answers, rows=rows, command=command, progress=say, stop=stop
            )
        except KeyboardInterrupt:
            screen.note("stopped: the same command goes on")
            raise typer.Exit(130) from None
    show(report, models, screen)


def make_plan(
    models: ModelOptions,
    init: str | None,
    lora: int | None,
    early_exit: int | None,
    joint: bool,
    data: DataOptions,
    training: TrainingOptions,
) -> Plan:
    """What is asked for, checked."""
    from ..align import Plan

    kind = "lora" if lora else "exit" if early_exit and not joint else "whole"
    own = models.drafter if init is None and early_exit is None else models.draft
    return Plan(
        target=models.target,
        draft=own,
        init=init,
        lora=lora,
        early_exit=early_exit,
        joint=joint,
        tasks=data.read(),
        prompts=data.prompts,
        held_out=data.held_out,
        max_new_tokens=data.max_new_tokens,
        settings=training.settings(kind, models.device),
        options={name: value for name, value in load_options(models).items() if value},
    )


def options_now(plan: Plan) -> dict[str, Any]:
    """Options of loading: those of a draft that is yet to be cut are for later."""
    later = ("draft_",) if plan.init is not None else ()
    return {name: value for name, value in plan.options.items() if not name.startswith(later)}


@contextmanager
def _progress(screen: Screen) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for every part of the work on a terminal, with the time left; elsewhere a line now and
    then."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    live = screen.err.is_terminal and not screen.err.quiet
    left = TextColumn("left:"), TimeRemainingColumn()
    bar = Progress(*columns, *left, console=screen.err, transient=True, disable=not live)
    shown: dict[str, Any] = {}
    lines = _Lines(screen)
    with bar:

        def say(what: str, done: int, total: int) -> None:
            part = what.partition(",")[0]  # what follows changes
            if part not in shown:
                shown[part] = bar.add_task(what, total=total)
            bar.update(shown[part], description=what, completed=done, total=total or None)
            if not live:
                lines.say(part, what, done, total)

        yield say


class _Lines:
    """Tells of a part of the work when it begins, and then once a minute."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._part, self._began, self._first, self._said = "", 0.0, 0, 0.0

    def say(self, part: str, what: str, done: int, total: int) -> None:
        """A line, if it is time for one."""
        now = time.monotonic()
        if part != self._part:
            self._part, self._began, self._first, self._said = part, now, done, now
            self._screen.note(what)
        elif now - self._said >= EVERY and done - self._first >= ENOUGH:
            self._said = now
            left = (now - self._began) / (done - self._first) * (total - done) / 60
            minutes = "less than a minute" if left < 1 else f"about {plural(round(left), 'minute')}"
            self._screen.note(f"{what}: {done} of {total}, {minutes} left")


def show(report: AlignReport, models: ModelOptions, screen: Screen) -> None:
    """What was measured, and how to use what was made."""
    training, before, after = report.training, report.before, report.after
    title = f"{plural(training.held_out, 'answer')} held out from training"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for column in ("before", "after"):
        table.add_column(column, justify="right")
    table.add_row("agreement", _share(training.before), _share(training.after))
    table.add_row("accepted, of 5 drafted", percent(before.acceptance), percent(after.acceptance))
    passes = (before.tokens_per_pass, after.tokens_per_pass)
    table.add_row("tokens a pass of the target", *(f"{value:.2f}" for value in passes))
    table.add_row("predicted speed-up", f"{before.speedup:.2f}×", f"{after.speedup:.2f}×")
    for name, value in after.quality.items():
        table.add_row(f"alone: {name}", f"{before.quality[name]:.2f}", f"{value:.2f}")
    screen.out.print(table)
    if report.too_long:
        screen.note(f"{plural(report.too_long, 'text')} left out: too long", "yellow")
    if not report.rose:
        screen.note(
            "the agreement did not rise: keep the draft as it was, or try another --lr, more "
            "--epochs, or more prompts",
            "yellow",
        )
    words = ["biglittle", "generate", "-t", report.target, "-d", report.draft, *given(models)]
    screen.note(f"use it: {shlex.join(words)}")


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
