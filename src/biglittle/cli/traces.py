"""`biglittle traces`: record what two models do, and replay lookahead rules from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import ParameterError
from .generate import has_template
from .loading import load_pair, quiet_libraries
from .options import ChatOption, ModelOptions, with_groups
from .prompts import read_prompts
from .screen import Screen, percent

if TYPE_CHECKING:
    from ..traces import DiscoReport, Replay

__all__ = ["app"]

EPILOG = """
**Examples**

`biglittle traces record -t ./big -d ./little --jsonl prompts.jsonl --out traces.jsonl`

`biglittle traces replay traces.jsonl -p static:tokens=3 -p dynamic -p cost-aware`

`biglittle traces disco traces.jsonl disco.safetensors`, and then `-p disco:path=disco.safetensors`
"""

app = typer.Typer(
    epilog=EPILOG,
    no_args_is_help=True,
    help="Record what the target writes and the draft proposes; replay lookahead rules from it.",
)


def record(
    *,
    models: ModelOptions,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", show_default=False)
    ] = None,
    jsonl: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help='A prompt a line: {"prompt": …} or {"messages": …}; repeatable.',
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The trace file; one that is there already is gone on with.")
    ] = Path("traces.jsonl"),
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-m", min=1, help="Most tokens of an answer.")
    ] = 128,
    cap: Annotated[int, typer.Option(min=1, help="Most tokens of a window.")] = 20,
    chat: ChatOption = None,
) -> None:
    """Record traces: what the target writes, and what the draft would have proposed.

    Costs about a plain generation and short runs of the draft. A killed run goes on where it was.
    """
    screen = Screen()
    with screen.status("starting"):
        if models.drafter is None:
            raise ParameterError("a trace needs a draft: give one with --draft")
        asked = read_prompts(prompts or [], [], jsonl or [])
        quiet_libraries()
        from ..traces import record as run
    pair = load_pair(models, None, screen)
    templated = has_template(pair) if chat is None else chat
    columns = (
        TextColumn("recording"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen.err, transient=True) as bar:
        task = bar.add_task("", total=len(asked))
        traces = run(
            pair,
            [one.as_prompt(templated) for one in asked],
            out,
            cap=cap,
            max_new_tokens=max_new_tokens,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    tokens = sum(len(trace.tokens) for trace in traces)
    screen.note(f"{len(traces)} prompts, {tokens} tokens, in {out}")


def replay(
    traces: Annotated[Path, typer.Argument(metavar="TRACES", show_default=False)],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "-p", help="A lossless policy; repeatable.", show_default=False),
    ] = None,
) -> None:
    """What policies would have done on recorded prompts: passes and acceptance, without a model.

    The oracle drafts exactly what will be accepted; no rule can need fewer passes of the target.
    """
    screen = Screen()
    with screen.status("replaying"):
        from ..traces import oracle, read_traces
        from ..traces import replay as run

        found = read_traces(traces)
        if not len(found):
            raise ParameterError(f"{traces} holds no prompt yet: `biglittle traces record` goes on")
        policy = policy or usual(found.header.cap)
        rows = {name: run(found, name) for name in policy} | {"oracle": oracle(found)}
    table = Table(box=SIMPLE_HEAD)
    table.add_column("policy", overflow="fold")
    for title in ("tokens\na pass", "target\npasses", "draft\npasses", "accepted", "window"):
        table.add_column(title, justify="right")
    for name, row in rows.items():
        table.add_row(name, *_cells(row))
    screen.out.print(table)


def usual(cap: int) -> list[str]:
    """Policies to compare, with windows of at most `cap` tokens."""
    return [
        "none",
        f"static:tokens={min(5, cap)}",
        f"heuristic:tokens={cap}",
        f"dynamic:tokens={cap}",
        f"cost-aware:tokens={min(16, cap)}",
    ]


def _cells(row: Replay) -> list[str]:
    drafting = row.drafted[row.drafted > 0]
    return [
        f"{row.new_tokens / row.target_passes:.2f}",
        f"{row.target_passes:,}",
        f"{row.draft_passes:,}",
        percent(row.acceptance_rate),
        f"{drafting.mean():.1f}" if drafting.size else "",
    ]


def disco(
    traces: Annotated[Path, typer.Argument(metavar="TRACES", show_default=False)],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The classifier's file.", show_default=False)
    ],
) -> None:
    """Train DISCO's classifier from traces, and say how it does on every fifth prompt, held out."""
    screen = Screen()
    with screen.status("training"):
        from ..traces import read_traces, train_disco

        report = train_disco(read_traces(traces), out)
    _show(report, screen)
    screen.note(f"use it with --policy disco:path={out}")


def _show(report: DiscoReport, screen: Screen) -> None:
    screen.out.print(
        f"{report.tokens:,} tokens of {report.prompts} held-out prompts, "
        f"{percent(report.accepted)} of them accepted: right about {percent(report.accuracy)}, "
        f"the draft's own confidence about {percent(report.confidence_accuracy)}; "
        f"calibration error {percent(report.error)}"
    )
    table = Table(box=SIMPLE_HEAD)
    for title in ("tokens", "predicted", "accepted"):
        table.add_column(title, justify="right")
    for part in report.calibration:
        table.add_row(f"{part.tokens:,}", percent(part.predicted), percent(part.accepted))
    screen.out.print(table)


app.command()(with_groups(record))
app.command()(replay)
app.command()(disco)
