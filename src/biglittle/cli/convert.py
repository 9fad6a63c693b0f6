"""`biglittle convert`: a Hugging Face model as a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..errors import ParameterError
from .loading import notes, quiet_libraries
from .screen import Screen, percent, size

if TYPE_CHECKING:
    from ..engines.llama_cpp.convert import ConversionReport

__all__ = ["convert"]

EPILOG = """
**Examples**

`biglittle convert ./my-model my-model-q4_0.gguf --quantize q4_0`

`biglittle convert qwen2.5-coder-0.5b-instruct little.gguf -q q8_0`
"""


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A folder, a hub id, or a name from `biglittle models`; of the families Llama, "
            "Mistral, Qwen 2, Qwen 3 or Gemma 3 (text).",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT.gguf", help="The file to write.", show_default=False)
    ],
    quantize: Annotated[
        str,
        typer.Option(
            "--quantize",
            "-q",
            metavar="TYPE",
            help="f32, bf16, f16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0 …; llama.cpp's names.",
        ),
    ] = "bf16",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Compare logits with those of MODEL."),
    ] = True,
) -> None:
    """Write a model as a GGUF file for the llama.cpp engine.

    llama.cpp must tokenize and compute as the original does; otherwise no file is left.
    """
    if out.exists() and not force:  # said before torch is imported
        raise ParameterError(f"{out} exists; give another name, or --force to replace it")
    screen = Screen()
    with screen.status("starting"):
        quiet_libraries()
        from ..engines.llama_cpp.convert import convert as run
    with notes(screen), _progress(screen) as say:
        report = run(source, out, quantize, force=force, check=check, progress=say)
    screen.note(_summary(report))
    if report.difference is not None:
        screen.note(f"spaces are placed otherwise here and there: {report.difference}", "yellow")
    print(report.path)


@contextmanager
def _progress(screen: Screen) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal, a line for every step elsewhere; nothing before the first step, because
    fetching a model shows its own."""
    live, said = screen.err.is_terminal, set[str]()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=screen.err, transient=True, disable=not live)
    task = bar.add_task("", total=None)

    def say(what: str, done: int, total: int) -> None:
        bar.start()
        bar.update(task, description=what, completed=done, total=total or None)
        if not live and what not in said:
            said.add(what)
            screen.note(what)

    try:
        yield say
    finally:
        bar.stop()


def _summary(report: ConversionReport) -> str:
    parts = [
        f"{report.quantize}, {size(report.bytes)}",
        f"architecture {report.architecture}, tokenizer {report.tokenizer}",
    ]
    if (found := report.closeness) is not None:
        parts.append(
            f"at {found.positions} positions of a text, against the original: "
            f"{percent(found.agreement)} the same most likely token, "
            f"KL divergence {found.divergence:.2g} nats, logits off by {found.error:.2g} of their "
            "spread"
        )
    return " · ".join(parts)
