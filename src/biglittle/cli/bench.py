"""`biglittle bench`: policies side by side on your machine and your prompts, with a report."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..errors import ParameterError
from .loading import load_pair, quiet_libraries
from .options import ModelOptions, ProfileOption, TaskOptions, parse_time, with_profile
from .screen import Screen, first_interrupt, plural

if TYPE_CHECKING:
    from ..bench.calm import CalmRule
    from ..bench.compare import SideBySide
    from ..bench.records import Header
    from ..bench.report import Lookaheads
    from ..bench.runner import Bench
    from ..bench.summary import Row, Summary
    from ..bench.systems import System
    from ..bench.tasks import Task
    from ..pair import Pair
    from ..policy import Policy

__all__ = ["bench"]

EPILOG = """
**Examples**

`biglittle bench` – the default pair, the built-in prompts, the lossless policies

`biglittle bench -t ./big -d ./little --task prompts.txt --limit 20`

`biglittle bench --task HumanEval.jsonl --run-code -p dynamic -p bild:fallback=0.6,rollback=3`

`biglittle bench --source test.de --reference test.en --template "Translate to English: {source}"`

`biglittle bench --task question.jsonl --peers --out spec-bench`

`biglittle bench --compare before/summary.json after/summary.json`

**What it does.** Every example runs through plain decoding and through every policy, one after
another in turning order, so that a slow moment of the machine meets all alike. Results are kept as
they come: a run that was stopped goes on when the same command is given again. In the folder of
`--out` are then `report.html` (open it in a browser), `summary.json`, `summary.csv` and
`results.jsonl` with every answer.
"""

LOSSLESS = ("cost-aware", "dynamic", "static:tokens=5", "heuristic")
PACKAGES = ("scipy", "jinja2", "matplotlib")
_TASKS: Any = {"rich_help_panel": "Tasks"}
_RUN: Any = {"rich_help_panel": "Run"}
_OUTPUT: Any = {"rich_help_panel": "Output"}


def bench(
    *,
    models: ModelOptions,
    profile: ProfileOption = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="POLICY",
            help="A policy to set beside plain decoding; repeatable. Default: "
            f"{', '.join(LOSSLESS)}.",
            show_default=False,
            rich_help_panel="Run",
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Run transformers' own generation beside it, on the same models: plain, assisted "
            "(constant, heuristic, dynamic) and prompt lookup.",
            **_RUN,
        ),
    ] = False,
    calm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THRESHOLD",
            help="Run CALM beside it: every token of a T5-like target leaves at the first layer "
            "whose confidence is above this (0 … 1). Options follow: "
            "0.9,decay=4,measure=similarity,exits=1/2. Repeatable; lossy.",
            show_default=False,
            **_RUN,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-m", min=1, help="Of every answer.", **_RUN)
    ] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 is greedy; above 0 samples.", **_RUN)
    ] = 0.0,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling, with a temperature.", show_default=False, **_RUN),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For sampling.", **_RUN)] = 0,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Measure at most so long, e.g. 30m or 1h30m. The report is then of the examples "
            "that are done, and the same command goes on.",
            show_default=False,
            **_RUN,
        ),
    ] = None,
    tasks: TaskOptions,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="In place of the format's own: bleu, chrf, rougeL, exact_match, pass@1; "
            "repeatable. JSON lines with references have none of their own.",
            show_default=False,
            **_TASKS,
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Where results and the report go. With results of the same run, it goes on there.",
            **_OUTPUT,
        ),
    ] = Path("bench"),
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A B",
            help="Measure nothing: set two runs' summary.json side by side.",
            show_default=False,
            **_OUTPUT,
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on standard error but errors.", **_OUTPUT),
    ] = False,
) -> None:
    """Measure policies side by side, and write a report.

    Speed-ups come with 95 % confidence intervals, quality with the task's metrics, and a lossless
    policy's output is checked against the target's own, token by token.
    """
    screen = Screen(quiet=quiet)
    need_packages()
    seconds = parse_time(time)
    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    if top_p is not None:
        sampling["top_p"] = check_top_p(top_p, temperature)
    if compare is not None:
        show_comparison(*compare, screen)
        return
    tasks.check()
    with screen.status("starting"):
        from ..params import make_params

        quiet_libraries()
        make_params(None, sampling)
        models = with_profile(models, profile)
        policies = chosen_policies(with_tuned(policy, profile), models)
        rules = chosen_rules(calm or (), temperature)
        asked = tasks.read(metric)
        check_names(asked)
    pair = load_pair(models, None, screen, profile=profile)
    systems = make_systems(pair, policies, rules, models, screen, peers=peers)
    run = make_run(pair, systems, asked, models, out, **sampling)
    note_beforehand(run, tasks.run_code, screen)
    measure(run, screen, seconds)
    summary = conclude(run, models, tasks.run_code, screen)
    if not summary.rows:
        screen.note("no example is answered by every system yet: nothing to report", "yellow")
        return
    show(summary, screen)
    write(summary, out)
    draw(summary, lookaheads(run, summary, out, screen), out, screen)


def check_top_p(top_p: float, temperature: float) -> float:
    """Refuse a nucleus out of which nothing is drawn."""
    if not temperature:
        raise ParameterError(f"--top-p {top_p:g} is for sampling; give a --temperature above 0")
    return top_p


def need_packages() -> None:
    """Refuse before any work what the report could not be made of."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ParameterError(f"bench needs {name}: pip install 'biglittle[bench]'")


def chosen_policies(given: Sequence[str] | None, models: ModelOptions) -> list[Policy]:
    """Plain decoding, then what was asked for, each once."""
    from ..matching import parse_draft
    from ..policy import parse_policy

    drafts = parse_draft(models.drafter).drafts
    names = list(LOSSLESS if drafts else ()) if given is None else list(given)
    policies = [parse_policy(name) for name in ["none", *names]]
    if not drafts and len(policies) > 1:
        raise ParameterError(
            f"policy {str(policies[1])!r} needs a draft: give one with --draft, for example "
            "--draft prompt-lookup"
        )
    return list({str(policy): policy for policy in policies}.values())


def chosen_rules(given: Sequence[str], temperature: float) -> list[CalmRule]:
    """CALM's, each once."""
    from ..bench.calm import parse_calm

    if given and temperature:
        raise ParameterError("--calm is for greedy decoding; leave --temperature out")
    return list({str(rule): rule for rule in map(parse_calm, given)}.values())


def with_tuned(policies: Sequence[str] | None, profile: str | None) -> list[str] | None:
    """What was asked for, and a profile's policy."""
    if profile is None:
        return None if policies is None else list(policies)
    from ..tune import Profile

    return [*(policies or ()), Profile.load(profile).policy]


def check_names(tasks: Sequence[Task]) -> None:
    """Refuse two tasks of one name: their results could not be told apart."""
    names = [task.name for task in tasks]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ParameterError(f"two tasks are called {twice[0]!r}; rename a file")


def make_systems(
    pair: Pair,
    policies: Sequence[Policy],
    rules: Sequence[CalmRule],
    models: ModelOptions,
    screen: Screen,
    *,
    peers: bool,
) -> list[System]:
    """Everything that runs, plain decoding first."""
    from ..bench.calm import Calm
    from ..bench.systems import Ours, Peer, as_loaded, peer_names, why_no_peers

    systems: list[System] = [Ours(pair, policy) for policy in policies]
    systems += [Calm(pair, rule) for rule in rules]
    if not peers:
        return systems
    if (reason := why_no_peers(pair)) is not None:
        screen.note(reason, "yellow")
        return systems
    theirs = pair
    if not as_loaded(pair):
        # Once more, as transformers does.
        own = dataclasses.replace(
            models, engine="transformers", draft_engine=None, draft_quantize=None, draft_vocab=None
        )
        theirs = load_pair(own, None, screen, pack=False)
    return [*systems, *(Peer(theirs, name) for name in peer_names(theirs))]


def make_run(
    pair: Pair,
    systems: Sequence[System],
    tasks: Sequence[Task],
    models: ModelOptions,
    out: Path,
    **sampling: Any,
) -> Bench:
    """The run, on top of what is in the folder already."""
    from ..bench.records import Log
    from ..bench.runner import Bench
    from ..params import make_params

    header = make_header(pair, systems, tasks, models, sampling)
    log = Log(out / "results.jsonl", header)
    return Bench(pair, systems, tasks, make_params(None, sampling), log)


def make_header(
    pair: Pair,
    systems: Sequence[System],
    tasks: Sequence[Task],
    models: ModelOptions,
    sampling: dict[str, Any],
) -> Header:
    """What the numbers depend on."""
    from ..bench.environment import hardware, versions
    from ..bench.records import Header
    from ..bench.runner import data_hash

    given = {
        field.name: getattr(models, field.name)
        for field in dataclasses.fields(models)
        if getattr(models, field.name) != field.default
    }
    return Header(
        settings={
            **given,
            "target": models.target,
            "draft": models.drafter,
            "precision": pair.summary,
            "systems": {system.name: system.lossless for system in systems},
            "weights": pair.fingerprints,
            "files": _hashes(systems, models),
            **sampling,
        },
        data={task.name: data_hash(task) for task in tasks},
        versions=versions(),
        hardware=hardware(),
        command=shlex.join(["biglittle", *sys.argv[1:]]),
    )


def _hashes(systems: Sequence[System], models: ModelOptions) -> dict[str, str]:
    """Of files that a setting names and that may change under the same name."""
    from ..bench.systems import Ours
    from ..lookahead import Disco

    rules = [system.policy.lookahead for system in systems if isinstance(system, Ours)]
    named = [rule.path for rule in rules if isinstance(rule, Disco)]
    if isinstance(models.vocab, str):
        named.append(models.vocab)
    return {name: hashlib.sha256(Path(name).read_bytes()).hexdigest()[:16] for name in named}


def note_beforehand(run: Bench, run_code: bool, screen: Screen) -> None:
    """What a user should know before waiting."""
    for name in (system.name for system in run.systems if not system.lossless):
        screen.note(f"{name} is lossy: the text may differ from the target's own", "yellow")
    if run.repeated:
        screen.note(f"{plural(run.repeated, 'example')} left out: asked before", "yellow")
    if not run_code and any("pass@1" in task.metrics for task in run.tasks):
        screen.note("pass@1 is left out: --run-code runs the programs with their tests", "yellow")
    done = len(run.steps) - len(run.left)
    if done:
        screen.note(f"going on: {done} of {len(run.steps)} generations are there already")


def measure(run: Bench, screen: Screen, seconds: float | None) -> None:
    """Run what is left, or as much as there is time for. The first Ctrl-C ends it after the
    generation that runs."""
    left = len(run.left)
    begun = monotonic()
    with first_interrupt() as interrupted, _progress(screen) as bar:
        watched = bar.add_task("warming up", total=left)
        for record in run.run():
            bar.update(watched, description=f"{record.task}: {record.system}", advance=1)
            if interrupted.is_set() or (seconds is not None and monotonic() - begun > seconds):
                break
    if run.left:
        why = "stopped" if interrupted.is_set() else "time is up"
        screen.note(
            f"{why}; {plural(len(run.left), 'generation')} left: the same command goes on", "yellow"
        )
    if interrupted.is_set():
        raise typer.Exit(130)


def _progress(screen: Screen) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    live = screen.err.is_terminal and not screen.err.quiet
    return Progress(*columns, console=screen.err, transient=True, disable=not live)


def conclude(run: Bench, models: ModelOptions, run_code: bool, screen: Screen) -> Summary:
    """Look at what differs, and sum up."""
    from ..bench.operations import shapes_of
    from ..bench.summary import summarize
    from ..matching import parse_draft

    with screen.status("looking at differences") as say:
        for step in run.unexplained:
            run.explain(step)
        say("summing up")
        shapes = shapes_of(run.pair, parse_draft(models.drafter).layers)
        return summarize(run.log.recorded, run.tasks, shapes=shapes, run_code=run_code)


def lookaheads(run: Bench, summary: Summary, out: Path, screen: Screen) -> Lookaheads | None:
    """Of one example, the oracle's among them where decoding is greedy."""
    from ..bench.oracle import with_oracle
    from ..bench.report import measured_lookaheads

    measured = measured_lookaheads(summary)
    if measured is None or run.params.temperature:
        return measured
    with screen.status("asking an oracle about one example"):
        return with_oracle(run, measured, out / "oracle.jsonl")


def write(summary: Summary, out: Path) -> None:
    """The numbers, as files."""
    from ..bench.export import write_csv, write_json

    write_json(summary, out / "summary.json")
    write_csv(summary, out / "summary.csv")


def draw(summary: Summary, found: Lookaheads | None, out: Path, screen: Screen) -> None:
    """The report."""
    from ..bench.report import write_report

    with screen.status("drawing"):
        write_report(summary, out / "report.html", lookaheads=found)
    screen.note(f"the report: {out / 'report.html'}")


# What is shown.


def show(summary: Summary, screen: Screen) -> None:
    """A table a task and one over all, then the result in words."""
    from ..bench.summary import ALL
    from ..bench.systems import PEER
    from ..bench.words import verdict

    for task in dict.fromkeys(row.task for row in summary.rows):
        rows = [row for row in summary.rows if row.task == task]
        name = "all tasks" if task == ALL else task
        screen.out.print(_table(f"{name}, {plural(rows[0].examples, 'example')}", rows))
    if summary.rows:
        screen.out.print(Text(verdict(summary), "bold"), soft_wrap=True)
    faults = [found for found in summary.differences if not found.near_tie]
    if any(not found.system.startswith(PEER) for found in faults):
        screen.note(
            "a lossless policy wrote what the target would not, and rounding does not explain it: "
            "the report says where; please report it",
            "bold red",
        )
    elif faults:
        screen.note(
            "transformers' own speculation wrote another text than the target alone, and rounding "
            "does not explain it: the report says where",
            "yellow",
        )


def _table(title: str, rows: Sequence[Row]) -> Table:
    from ..bench import words
    from ..bench.systems import PLAIN

    metrics = dict.fromkeys(quality.metric for row in rows for quality in row.quality)
    layers = ["layers"] * any(row.layers for row in rows)
    columns = ("speed-up", "95 %", "ms/token", "accepted", "passes", *layers, *metrics, "output")
    table = _empty_table(title, columns)
    for row in rows:
        values = {quality.metric: quality.value for quality in row.quality}
        table.add_row(
            words.title(row.system),
            words.ratio(row.speedup.value),
            "" if row.system == PLAIN else words.interval(row.speedup),
            f"{row.ms_per_token:.1f}",
            words.share(row.stats.acceptance_rate) if row.stats.drafted else "",
            f"{row.stats.target_passes}/{row.stats.draft_passes}",
            *(["" if row.layers is None else f"{row.layers:.2f}"] * len(layers)),
            *(f"{values[metric]:.2f}" for metric in metrics),
            words.exactness(row.exactness) if row.lossless else "lossy",
        )
    return table


def show_comparison(first: Path, second: Path, screen: Screen) -> None:
    """Two runs, side by side."""
    from ..bench.compare import compare_runs

    found = compare_runs(first, second)
    for warning in found.warnings:
        screen.note(warning, "yellow")
    screen.out.print(_comparison(found.rows))


def _comparison(rows: Sequence[SideBySide]) -> Table:
    from ..bench import words

    columns = ("task", "prompts", "ms/token", "as fast", "95 %", "speed-up")
    table = _empty_table("the second run beside the first", columns)
    for row in rows:
        table.add_row(
            words.title(row.system),
            row.task,
            str(row.examples),
            f"{row.ms_per_token[0]:.1f} → {row.ms_per_token[1]:.1f}",
            words.ratio(row.ratio.value),
            words.interval(row.ratio),
            " → ".join(map(words.ratio, row.speedups)),
        )
    return table


def _empty_table(title: str, columns: Iterable[str]) -> Table:
    """A table of systems that fits a terminal: long names fold, numbers do not."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("system", overflow="fold", min_width=12)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=column != "output")
    return table
