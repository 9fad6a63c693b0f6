"""`biglittle diagnose`: will speculation help here, why, and with which policy?"""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..errors import ParameterError
from .generate import has_template
from .loading import load_pair, quiet_libraries
from .options import DEFAULT_TARGET, ChatOption, ModelOptions, given
from .prompts import Asked, read_prompts
from .screen import Screen, parts, percent, plural

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis, Head, Prediction

__all__ = ["diagnose"]

EPILOG = """
**Examples**

`biglittle diagnose ./big ./little`

`biglittle diagnose ./big ./little --prompts my-prompts.jsonl --out my-diagnosis`

`biglittle diagnose ./big` (what copying from the prompt would give)
"""

LOOKUP = "prompt-lookup"
MISSING = "no pictures without matplotlib: pip install 'biglittle[bench]'"
_INPUT: Any = {"rich_help_panel": "Input"}
_OUTPUT: Any = {"rich_help_panel": "Output"}


def diagnose(
    *,
    big: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="The big model; the same as --target.", show_default=False
        ),
    ] = None,
    little: Annotated[
        str | None,
        typer.Argument(
            metavar="DRAFT",
            help="The little model; the same as --draft. Without one, prompt lookup alone is "
            "looked at.",
            show_default=False,
        ),
    ] = None,
    models: ModelOptions,
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help='Your own prompts, a line each: {"prompt": …} or {"messages": …}; or a text file '
            "with one prompt a line. Default: prompts of the project, of five tasks.",
            show_default=False,
            **_INPUT,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most prompts to use.", **_INPUT)] = 15,
    chat: ChatOption = None,
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "-m", min=2, help="Most tokens of an answer.", **_INPUT),
    ] = 64,
    out: Annotated[
        Path,
        typer.Option(
            help="A folder for diagnosis.json, pictures, and the traces, from which a second call "
            "with the same models goes on.",
            **_OUTPUT,
        ),
    ] = Path("diagnosis"),
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours, in a terminal either.", **_OUTPUT)
    ] = False,
) -> None:
    """Will speculation help here, why, and with which policy?

    Times the passes of both models, records what they write, and predicts from that the speed of
    the lossless policies, in hundreds of settings, without running them.
    """
    screen = Screen(color=not no_color)
    with screen.status("starting"):
        models = _with_arguments(models, big, little)
        asked, tasks = _asked(prompts, limit)
        _check_folder(out)
        quiet_libraries()
        from ..diagnosis import diagnose as run
    if not _can_draw():
        screen.note(MISSING, "yellow")
    pair = load_pair(models, None, screen)
    templated = has_template(pair) if chat is None else chat
    texts = [one.as_prompt(templated) for one in asked]
    with parts(screen) as say:
        found = run(
            pair,
            texts,
            out / "traces.jsonl",
            tasks=tasks,
            max_new_tokens=max_new_tokens,
            progress=say,
        )
    _save(found, out)
    _show(found, models, screen)
    for reason in found.left_out:
        screen.note(f"not predicted: {reason}", "yellow")
    screen.note(f"saved in {out}: {', '.join(_left(found))}")


def _with_arguments(models: ModelOptions, big: str | None, little: str | None) -> ModelOptions:
    """The options with the models that were given as arguments."""
    if big is not None:
        if models.target not in (DEFAULT_TARGET, big):
            raise ParameterError(f"the target is given twice: {big} and --target {models.target}")
        models = dataclasses.replace(models, target=big)
    if little is not None:
        if models.draft not in (None, little):
            raise ParameterError(f"the draft is given twice: {little} and --draft {models.draft}")
        models = dataclasses.replace(models, draft=little)
    from ..matching import parse_draft

    parse_draft(models.drafter)
    return dataclasses.replace(models, draft=models.drafter or LOOKUP)


def _asked(path: str | None, limit: int) -> tuple[list[Asked], list[str]]:
    """The prompts, and their tasks where those are known."""
    if path is None:
        from ..diagnosis import builtin_prompts

        chosen = builtin_prompts()[:limit]
        return [Asked(one.text, f"the built-in {one.task}") for one in chosen], [
            one.task for one in chosen
        ]
    if path.lower().endswith((".jsonl", ".json")):
        return read_prompts([], [], [path])[:limit], []
    lines = str(read_prompts([], [path], [])[0].content).splitlines()
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise ParameterError(f"there is no prompt in {path}")
    return [Asked(text, path) for text in texts][:limit], []


def _check_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise ParameterError(f"--out {out} is no folder to write to: {cause.strerror}") from cause


def _save(found: Diagnosis, out: Path) -> None:
    from ..diagnosis.plots import save_plots

    found.save(out / "diagnosis.json")
    if _can_draw():
        save_plots(found, out)


def _left(found: Diagnosis) -> Iterator[str]:
    """What lies in the folder now."""
    yield "diagnosis.json"
    yield "traces.jsonl"
    if any(one.family == "disco" for one in found.predictions):
        yield "disco.safetensors"
    if _can_draw():
        yield "pictures"


def _can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


# What is shown.


def _show(found: Diagnosis, models: ModelOptions, screen: Screen) -> None:
    """The conclusion first, then what it rests on."""
    advice = found.advice
    style = "bold green" if advice.speculate else "bold yellow"
    lines = [
        Text(advice.verdict, style),
        Text(f"{advice.reason[0].upper()}{advice.reason[1:]}."),
        Text(f"What holds it back most: {advice.limit}."),
        Text(""),
        Text.assemble(("Use: ", "bold"), _command(found, models)),
        Text(""),
    ]
    tables = [_policies(found), _passes(found), _acceptance(found)]
    if found.agreement.bins:
        tables.append(_calibration(found))
    if found.tasks:
        tables.append(_tasks(found))
    screen.out.print(Group(*lines), soft_wrap=True)
    for table in tables:
        screen.out.print(table)
    if found.head is not None:
        screen.out.print(Text(f"{_head(found.head)}\n"), soft_wrap=True)
    screen.out.print(Text(_configuration(found, models), "dim"), soft_wrap=True)


def _command(found: Diagnosis, models: ModelOptions) -> str:
    """What to type, or to pass to `load`."""
    advice = found.advice
    copies = advice.draft.startswith(LOOKUP)
    draft = advice.draft if copies or not advice.speculate else str(models.drafter)
    words = ["biglittle", "generate", "-t", models.target, "-d", draft, "-p", advice.policy]
    return shlex.join([*words, *given(models, drafting=advice.speculate and not copies)])


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        table.add_column(
            column, justify="right" if index else "left", no_wrap=index > 0, overflow="fold"
        )
    return table


def _policies(found: Diagnosis) -> Table:
    columns = ("speed-\nup", "of the\noracle", "accep-\nted", "tokens\na round", "ms a\ntoken")
    table = _table("Predicted speed, the best setting of each policy", "policy", *columns)
    for one in (found.oracle, *found.predictions):
        table.add_row(_name(one, found), *_numbers(one))
    return table


def _name(one: Prediction, found: Diagnosis) -> str:
    if one.family == "oracle":
        return "oracle (a bound, no policy)"
    return one.policy if one.draft == found.draft else f"{one.draft}, {one.policy}"


def _numbers(one: Prediction) -> list[str]:
    return [
        f"{one.speedup:.2f}×",
        percent(one.of_oracle),
        percent(one.acceptance_rate),
        f"{1 + one.accepted_per_round:.1f}",
        f"{one.ms_per_token:.1f}",
    ]


def _passes(found: Diagnosis) -> Table:
    """T(k) in ms and in steps, at every context."""
    columns = [
        name
        for costs in found.profile.costs
        for name in (f"ms after\n{costs.context} tokens", "in\nsteps")
    ]
    table = _table("Time of a pass", "", *columns)
    for width in (1, 2, 3, 4, 6, 8, 12, 16):
        seconds = [costs.verify(width) for costs in found.profile.costs]
        table.add_row(f"target, {plural(width, 'token')}", *_cells(found, seconds))
    if found.profile.costs[0].draft:
        seconds = [costs.draft for costs in found.profile.costs]
        table.add_row("draft, 1 token", *_cells(found, seconds))
    return table


def _cells(found: Diagnosis, seconds: Sequence[float]) -> Iterator[str]:
    """Seconds at every context, in milliseconds and in target steps."""
    for value, costs in zip(seconds, found.profile.costs, strict=True):
        yield f"{1000 * value:.1f}"
        yield f"{value / costs.step:.2f}"


def _acceptance(found: Diagnosis) -> Table:
    shares = found.agreement.by_position
    positions = [str(k) for k in range(1, len(shares) + 1)]
    table = _table("Acceptance by position in the window", "position", *positions)
    table.add_row("accepted, %", *map(_hundredths, shares))
    return table


def _calibration(found: Diagnosis) -> Table:
    bins = found.agreement.bins
    error = percent(found.agreement.calibration_error)
    columns = [_hundredths(part.confidence) for part in bins]
    table = _table(f"The draft's confidence (mean error {error})", "says, %", *columns)
    table.add_row("is right, %", *[_hundredths(part.agreement) for part in bins])
    table.add_row("tokens", *[str(part.count) for part in bins])
    return table


def _hundredths(share: float) -> str:
    return f"{100 * share:.0f}"


def _head(head: Head) -> str:
    """The head's share, and the option that cuts it where that pays."""
    share = f"The head is {percent(head.share)} of a draft step"
    if not head.cuts:
        return f"{share}."
    if (cut := head.best) is None:
        return f"{share}; cutting it with --draft-vocab would not pay here."
    return (
        f"{share}. Cut to the first {cut.tokens} tokens, which are {percent(cut.covered)} of what "
        f"the target wrote, it would give {cut.speedup:.2f}×, {cut.gain:.2f} times what the whole "
        f"one does: --draft-vocab {cut.tokens}."
    )


def _tasks(found: Diagnosis) -> Table:
    title = f"By task, with {_name(found.predictions[0], found)}"
    table = _table(title, "task", "prompts", "agreement", "speed-up")
    for part in found.tasks:
        numbers = (str(part.prompts), percent(part.agreement), f"{part.speedup:.2f}×")
        table.add_row(part.task, *numbers)
    return table


def _configuration(found: Diagnosis, models: ModelOptions) -> str:
    import platform

    import torch

    from .. import __version__

    return (
        f"{models.target} with {models.drafter}, {found.summary}, "
        f"{plural(torch.get_num_threads(), 'thread')}; {plural(found.prompts, 'prompt')}, "
        f"{plural(found.new_tokens, 'token')}, greedy, one text at a time, after the first token; "
        f"biglittle {__version__}, torch {torch.__version__}, {platform.machine()}"
    )
