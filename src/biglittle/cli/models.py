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
    count = len(entry.packages)
    unpacked = f"unpacked from {entry.quantization}"
    made = unpacked if catalogue.is_unpacked(entry) else f"the hub's own, or {unpacked}"
    screen.out.print(Text(entry.name, "bold"), soft_wrap=True)
    for line in (
        Text(f"{entry.parameters / 1e9:.2f} billion parameters, {entry.licence}: ")
        + Text(entry.description),
        Text(f"for transformers: bfloat16, {made}, {size(entry.folder_bytes)}, ")
        + _state(catalogue.is_cached(entry)),
        Text(f"for llama.cpp: GGUF, {entry.quantization}, {size(entry.bytes)}, ")
        + _state(catalogue.is_cached(entry, gguf=True)),
        Text(f"from the hub: {entry.hub_id}; from PyPI: ")
        + Text(f"{entry.packages[0]}{f' and {count - 1} more' if count > 1 else ''}"),
    ):
        screen.out.print(Text("    ") + line, soft_wrap=True)


def _state(cached: bool) -> Text:
    return Text("cached", "green") if cached else Text("not fetched", "dim")


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
    gguf = catalogue.is_cached(entry, gguf=True)
    return {
        "name": entry.name,
        "hub_id": entry.hub_id,
        "description": entry.description,
        "licence": entry.licence,
        "parameters": entry.parameters,
        "packages": list(entry.packages),
        "download_bytes": entry.bytes,
        "quantization": entry.quantization,
        "folder_bytes": bytes_below(folder) if cached else entry.folder_bytes,
        "cached": cached,
        "folder": str(folder) if cached else None,
        "unpacked": catalogue.is_unpacked(entry) if cached else None,
        "gguf": str(catalogue.gguf_file(entry)) if gguf else None,
    }
