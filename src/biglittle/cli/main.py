"""The program `biglittle`: its commands, and how it ends."""

from __future__ import annotations

import errno
import sys
import traceback
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import BiglittleError, RowError
from . import (
    align,
    batch,
    bench,
    chat,
    convert,
    demo,
    diagnose,
    doctor,
    generate,
    models,
    serve,
    traces,
    tune,
)
from .options import in_options, with_groups
from .screen import complain

__all__ = ["app", "main"]

EPILOG = """
**Examples**

`biglittle demo`

`biglittle generate "Write a function that reverses a string in Python"`

`biglittle generate -t ./big -d ./little -p bild:fallback=0.6,rollback=3 --file prompt.txt`

`biglittle chat`

Exit codes: 0 all went well, 1 something failed, 2 bad input, 130 ended by Ctrl-C.
"""


PATH_ERRORS = {
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""What is wrong with a path that was given."""


class Commands(TyperGroup):
    """The root command: whatever goes wrong becomes one line and an exit code."""

    debug = False
    """Whether an error shows its traceback too."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run, and exit."""
        try:
            sys.exit(super().main(*args, **{**options, "standalone_mode": False}))
        except typer.TyperException as error:  # what typer itself refuses
            complain(_usage(error))
            sys.exit(error.exit_code)
        except Exception as error:
            if self.debug:
                traceback.print_exc()
            complain(_in_words(error))
            sys.exit(2 if _refused(error) else 1)


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    return error.format_message().rstrip(".") + hint


def _refused(error: Exception) -> bool:
    """Whether it is what the user asked for that cannot be done."""
    if isinstance(error, OSError) and error.errno in PATH_ERRORS:
        return True
    return isinstance(error, BiglittleError) and not isinstance(error, RowError)


def _in_words(error: Exception) -> str:
    if isinstance(error, BiglittleError):
        return in_options(str(error))
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return f"{type(error).__name__}: {error} (--debug shows where)"


app = typer.Typer(
    cls=Commands,
    name="biglittle",
    epilog=EPILOG,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"biglittle {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="BIGLITTLE_DEBUG", help="Show where an error comes from."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and leave."
        ),
    ] = False,
) -> None:
    """Text generation with two models: a little one drafts, a big one decides."""
    assert isinstance(context.command, Commands)
    context.command.debug = debug
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command(epilog=generate.EPILOG)(with_groups(generate.generate))
app.command(epilog=chat.EPILOG)(with_groups(chat.chat))
app.command(epilog=demo.EPILOG)(with_groups(demo.demo))
app.command(epilog=diagnose.EPILOG)(with_groups(diagnose.diagnose))
app.command(epilog=bench.EPILOG)(with_groups(bench.bench))
app.command(epilog=align.EPILOG)(with_groups(align.align))
app.command(epilog=tune.EPILOG)(with_groups(tune.tune))
app.command(epilog=serve.EPILOG)(with_groups(serve.serve))
app.command(epilog=batch.EPILOG)(with_groups(batch.batch))
app.command(epilog=convert.EPILOG)(convert.convert)
app.command()(doctor.doctor)
app.add_typer(models.app, name="models")
app.add_typer(traces.app, name="traces")


def main() -> None:
    """The entry point of the script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a text may hold what an old encoding does not
            stream.reconfigure(errors="replace")
    app()
