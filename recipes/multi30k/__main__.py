"""Train the tokenizer and the two models of the recipe, and measure what is made of them.

    python -m recipes.multi30k tokenizer --data DATA --run RUN
    python -m recipes.multi30k train large --data DATA --run RUN
    python -m recipes.multi30k train small --data DATA --run RUN
    python -m recipes.multi30k measure --data DATA --run RUN   # once the others are made, too
    python -m recipes.multi30k page --run RUN

Alignment and the early exit are `biglittle align`'s: see README.md, which lists every command.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from biglittle.align import Sample, Settings, fine_tune
from biglittle.bench.readers.files import read_lines
from biglittle.errors import BiglittleError, ParameterError

from .models import make_model, make_tokenizer
from .page import write_page
from .sweep import DRAFTS, MODELS, benches, measure, measure_alone, measure_quality

SEED = 0
HELD_OUT = 500
SETTINGS = {
    name: Settings(
        optimizer="adafactor-scaled", learning_rate=rate, schedule="cosine", warmup=400,
        epochs=epochs, batch=64, smoothing=0.1, patience=0, seed=SEED,
    )
    for name, rate, epochs in (("large", 2e-2, 11), ("small", 6e-2, 14))
}  # fmt: skip

app = typer.Typer(help=__doc__, rich_markup_mode=None, pretty_exceptions_enable=False)
Data = Annotated[Path, typer.Option(help="A folder with train.de, train.en, val.de … (or .gz).")]
Run = Annotated[Path, typer.Option(help="Where everything that is made is kept.")]


class Name(StrEnum):
    """The two models."""

    LARGE = "large"
    SMALL = "small"


@app.command()
def tokenizer(data: Data, run: Run = Path("run")) -> None:
    """Train the shared vocabulary on both sides of the training data."""
    lines = [*read(data, "train", "de"), *read(data, "train", "en")]
    made = make_tokenizer(lines)
    made.save_pretrained(run / "tokenizer")
    print(f"{len(made)} tokens in {run / 'tokenizer'}")


@app.command()
def train(
    name: Name,
    data: Data,
    run: Run = Path("run"),
    epochs: Annotated[float | None, typer.Option(help="In place of the recipe's.")] = None,
) -> None:
    """Train a model on the references; the same command goes on after a kill."""
    folder = run / "tokenizer"
    if not folder.is_dir():
        raise ParameterError(f"{folder} is not there: make the tokenizer first")
    own = AutoTokenizer.from_pretrained(folder)
    model = make_model(name, len(own), SEED)
    settings = SETTINGS[name]
    if epochs is not None:
        settings = dataclasses.replace(settings, epochs=epochs)
    samples, held_out = pairs(own, data, "train"), pairs(own, data, "val")[:HELD_OUT]
    with bar(f"training {name.value}") as show:
        report = fine_tune(
            model, samples, held_out, settings, run / "training" / name, progress=show
        )
    model.save_pretrained(run / name)
    own.save_pretrained(run / name)
    print(f"{run / name}: {report.steps} steps, {report.after:.1%} of the held-out tokens right")


@app.command("measure")
def measure_all(data: Data, run: Run = Path("run")) -> None:
    """Every run of `biglittle bench` that the tables need; the same command goes on after a
    kill."""
    for name in MODELS:
        measure_alone(name, data, run)
    for draft in DRAFTS:
        measure_quality(draft, data, run)
    for found in benches(run):
        measure(found, data, run)


@app.command()
def page(
    run: Run = Path("run"),
    findings: Annotated[
        Path | None, typer.Option(help="A last section, by hand.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Write docs/reproduction.md and its pictures from the runs."""
    write_page(run, findings)


def pairs(own: PreTrainedTokenizerBase, data: Path, split: str) -> list[Sample]:
    """A split's sentences and their translations."""
    sides = [own(read(data, split, language)).input_ids for language in ("de", "en")]
    return [
        Sample((0,), tuple(target), tuple(source)) for source, target in zip(*sides, strict=True)
    ]


def read(data: Path, split: str, language: str) -> list[str]:
    """The lines of a split in one language."""
    names = [f"{split}.{language}", f"{split}.{language}.gz"]
    found = [data / name for name in names if (data / name).is_file()]
    if not found:
        raise ParameterError(f"{data} has neither {names[0]} nor {names[1]}; see README.md")
    return read_lines(found[0])


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int, float | None], None]]:
    """Shows steps, the agreement and the time left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        watched = progress.add_task(title)

        def show(done: int, total: int, agreement: float | None) -> None:
            known = "" if agreement is None else f", {agreement:.1%} right"
            progress.update(watched, description=title + known, completed=done, total=total or None)

        yield show


if __name__ == "__main__":
    try:
        app()
    except BiglittleError as error:
        sys.exit(f"recipe: {error}")
