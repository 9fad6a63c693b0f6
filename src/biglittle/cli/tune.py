"""`biglittle tune`: the fastest policy whose loss of quality stays inside a budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..errors import ParameterError
from .loading import load_pair, quiet_libraries
from .options import ModelOptions, TaskOptions, parse_time
from .screen import Screen, parts, percent, plural

if TYPE_CHECKING:
    from ..bench.tasks import Task
    from ..tune import Profile, Setting

__all__ = ["tune"]

EPILOG = """
**Examples**

`biglittle tune --task prompts.txt` – the best lossless policy for these prompts

`biglittle tune --task prompts.txt --budget "agreement: -2%" --time 30m`

`biglittle tune --source test.de --reference test.en --budget "bleu: -0.5" --out tuned-de-en`

`biglittle tune --task HumanEval.jsonl --run-code --budget "pass@1: 0"`

`biglittle generate --profile tune/profile.json "Write a haiku about rivers"`

**What it does.** Lossless lookaheads are tuned by replay of recorded traces. With a budget, half of
the examples serve the search for a faster lossy setting, and the other half, which the search has
not seen, confirm what it found; where that cannot be shown, the answer is lossless. Everything is
kept in the folder of `--out`: a run that was stopped goes on when the same command is given again,
and more time never gives a worse answer.
"""

SHOWN = 8  # lossy settings in the table
_RUN: Any = {"rich_help_panel": "Run"}
_OUTPUT: Any = {"rich_help_panel": "Output"}


def tune(
    *,
    models: ModelOptions,
    tasks: TaskOptions,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            "-b",
            metavar="BUDGET",
            help='What quality may lose against the target alone: "bleu: -0.5" in points, "rougeL: '
            '-1%" of the target\'s own, "exact_match: 0", "pass@1: -1", "agreement: -2%" (likeness '
            "to the target's own output, which needs no references). Repeatable: all must be "
            "kept. Default: none, so that the answer is lossless.",
            show_default=False,
            **_RUN,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="At most so long, e.g. 30m or 1h30m; then the best that was found is the answer.",
            show_default=False,
            **_RUN,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-m", min=2, help="Of every answer.", **_RUN)
    ] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Of the split and the search.", **_RUN)] = 0,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Where profile.json, the picture and all that was measured go. With those of the "
            "same run, it goes on there.",
            **_OUTPUT,
        ),
    ] = Path("tune"),
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on standard error but errors.", **_OUTPUT),
    ] = False,
) -> None:
    """Find the fastest policy for a task, losing no more quality than you allow.

    The answer is a profile, which `load(profile=…)` and `--profile` take.
    """
    screen = Screen(quiet=quiet)
    seconds = parse_time(time)
    with screen.status("starting"):
        quiet_libraries()
        from ..tune import parse_budget
        from ..tune import tune as run
        from ..tune.tuning import prepare

        tasks.check()
        budgets = [parse_budget(one) for one in budget or []]
        asked = tasks.read(metrics=())
        task = prepare(asked, budgets, seed=seed, run_code=tasks.run_code)
        check_models(models)
        check_folder(out, task, seed=seed, max_new_tokens=max_new_tokens)
    left = sum(len(one.examples) for one in asked) - len(task.examples)
    if left:
        screen.note(f"{plural(left, 'example')} left out: asked before", "yellow")
    pair = load_pair(models, None, screen)
    try:
        with parts(screen) as say:
            found = run(
                pair, task, budgets, out=out, time_limit=seconds, max_new_tokens=max_new_tokens,
                seed=seed, run_code=tasks.run_code, progress=say,
            )  # fmt: skip
    except KeyboardInterrupt:
        screen.note(f"stopped; what was measured is in {out}: the same command goes on")
        raise typer.Exit(130) from None
    show(found, out, screen)
    screen.note(f"saved in {out}: profile.json" + (", pareto.svg" if found.budgets else ""))


def check_models(models: ModelOptions) -> None:
    """Refuse a target alone."""
    from ..matching import parse_draft

    if not parse_draft(models.drafter).drafts:
        raise ParameterError("tuning needs a draft: give one with --draft, or prompt-lookup")


def check_folder(out: Path, task: Task, **settings: Any) -> None:
    """Refuse what is no folder, or one of another task or settings."""
    from ..bench.runner import data_hash
    from ..tune import Profile
    from ..tune.runs import check_beforehand

    if out.exists() and not out.is_dir():
        raise ParameterError(f"--out {out} is no folder to write to")
    check_beforehand(out / "runs.jsonl", {"task": data_hash(task)}, settings)
    if (out / "profile.json").exists():
        Profile.load(out / "profile.json")  # refuses what would be written over


# What is shown.


def show(found: Profile, out: Path, screen: Screen) -> None:
    """The answer first, then what it rests on."""
    style = "bold green" if found.lossless else "bold yellow"
    screen.out.print(Text(found.verdict, style), soft_wrap=True)
    for note in found.notes:
        screen.out.print(Text(f"Note: {note}."), soft_wrap=True)
    if found.policy != "none":
        words = ["biglittle", "generate", "--profile", str(out / "profile.json")]
        screen.out.print(Text.assemble(("Use: ", "bold"), shlex.join(words)), soft_wrap=True)
    screen.out.print(_table(found))


def _table(found: Profile) -> Table:
    """The best lossless policy, the answer, and the fastest of the others."""
    table = Table(
        title=f"{found.task}: predicted on {plural(found.promised.examples, 'example')}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    table.add_column("policy", overflow="fold")
    for column in ("speed-\nup", "ms a\ntoken", "accep-\nted"):
        table.add_column(column, justify="right", no_wrap=True)
    for budget in found.budgets:
        table.add_column(f"{budget}\nat worst", justify="right")
    table.add_column("", overflow="fold")
    table.add_row(*_cells(found.best_lossless, "lossless"))
    whole = [one for one in found.settings if one.examples == found.promised.examples]
    for one in whole[:SHOWN]:
        answer = not found.lossless and one.policy == found.policy
        table.add_row(*_cells(one, "the answer" if answer else one.outcome))
    return table


def _cells(one: Setting, outcome: str) -> Sequence[str]:
    return [
        one.policy,
        f"{one.speedup:.2f}×",
        f"{one.ms_per_token:.1f}",
        percent(one.acceptance_rate),
        *(f"{change.change:+.2f}\n{change.low:+.2f}" for change in one.changes),
        outcome,
    ]
