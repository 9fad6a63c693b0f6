"""`biglittle batch`: a file of requests in OpenAI's batch format, answered to the last one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import alone
from .generate import check_policy
from .loading import load_pair, quiet_libraries
from .options import ModelOptions, ProfileOption, with_profile
from .screen import Screen, first_interrupt, plural
from .serve import (
    LimitOptions,
    LossyOption,
    NameOption,
    PolicyOption,
    check_installed,
    make_service,
)

if TYPE_CHECKING:
    from ..server import Service
    from ..server.batch import Answers, BatchLine

__all__ = ["batch"]

EPILOG = """
**Examples**

`biglittle batch requests.jsonl answers.jsonl -t ./big -d ./little`

A line of requests.jsonl: `{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
"body": {"model": "big", "messages": [{"role": "user", "content": "Hello"}]}}`

Answers come in the order in which they are complete. A run that was stopped goes on when the same
command is given again.
"""

FOREVER = 7 * 24 * 3600.0  # seconds: nobody waits at the other end


def batch(
    *,
    requests: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="The requests.")],
    answers: Annotated[
        Path,
        typer.Argument(
            metavar="OUT.jsonl", help="The answers; a file that is there is gone on with."
        ),
    ],
    models: ModelOptions,
    profile: ProfileOption = None,
    policy: PolicyOption = None,
    allow_lossy: LossyOption = False,
    name: NameOption = None,
    limits: LimitOptions,
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    No request is answered twice and none is lost, whenever the run is stopped.
    """
    screen = Screen()
    with screen.status("starting"):
        check_installed("batch")
        from ..server.batch import Answers, read_batch

        lines = read_batch(requests)
        check_policy(policy, models)
        models = with_profile(models, profile)
        quiet_libraries()
    with alone(answers):
        out = Answers(answers, lines)
        if len(out.done) == len(lines):
            screen.note(f"all of {plural(len(lines), 'request')} are answered already")
            return
        pair = load_pair(models, policy, screen, profile=profile)
        bounds = limits.limits(seconds=FOREVER)
        service = make_service(pair, models, name, bounds, allow_lossy=allow_lossy)
        screen.warn_if_lossy(pair.policy)
        refused, left = answer(service, lines, out, screen)
    if refused:
        screen.note(
            f"{plural(refused, 'request')} could not be answered; see status_code", "yellow"
        )
    if left:
        screen.note(f"{plural(left, 'request')} left; the same command goes on")
        raise typer.Exit(130)


def answer(
    service: Service, lines: list[BatchLine], answers: Answers, screen: Screen
) -> tuple[int, int]:
    """Answer what is left; how many were refused, and how many are left still."""
    from ..server.batch import run_batch

    refused = 0
    columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with first_interrupt() as interrupted, Progress(*columns, console=screen.err) as progress:
        task = progress.add_task("", total=len(lines), completed=len(answers.done))

        def answered(status: int) -> None:
            nonlocal refused
            refused += status != 200
            progress.advance(task)

        service.start()
        try:
            asyncio.run(
                run_batch(
                    service,
                    lines,
                    answers,
                    together=2 * service.settings.limits.rows,
                    answered=answered,
                    stopped=interrupted.is_set,
                )
            )
        finally:
            service.stop()
    return refused, len(lines) - len(answers.done)
