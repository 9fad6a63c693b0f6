"""`biglittle demo`: the same prompts with the target alone, losslessly, and with BiLD."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..errors import ParameterError
from .generate import check_policy, has_template
from .loading import fetch, load_options, load_pair, notes, quiet_libraries
from .options import ModelOptions
from .prompts import Asked, read_prompts
from .screen import Screen, percent, plural, summary

if TYPE_CHECKING:
    from ..pair import Pair
    from ..results import Result, Stats

__all__ = ["demo"]

EPILOG = """
**Examples**

`biglittle demo`

`biglittle demo -p dynamic -p bild:fallback=0.5,rollback=2 --prompt "Explain recursion"`

`biglittle demo -t ./big -d ./little --dtype float32`

`biglittle demo -t ./big -d ./little --second-draft ./aligned --prompt "Explain recursion"`
"""

PLAIN = "none"
TITLES = (
    "tokens\nper s",
    "speed-up",
    "accepted",
    "target\npasses",
    "draft\npasses",
    "same\ntexts",
)
OPTIONS: dict[str, Any] = {"temperature": 0.0}
POLICIES = ["cost-aware", "bild:fallback=0.6,rollback=3"]
PROMPTS = [
    "Write a Python function that checks whether a number is prime.",
    "Write a Python class for a stack with push, pop and peek.",
    "Explain in three sentences what a hash table is.",
]


def demo(
    *,
    models: ModelOptions,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="POLICY",
            help=f"What to compare with the target alone; repeatable. Default: "
            f"{' and '.join(POLICIES)}.",
            show_default=False,
            rich_help_panel="Models",
        ),
    ] = None,
    second_draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Another draft to compare with the first, such as one that biglittle align made.",
            rich_help_panel="Models",
        ),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="In place of the built-in prompts; repeatable.",
            show_default=False,
            rich_help_panel="Input",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "-m", help="Most tokens of an answer."),
    ] = 96,
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours, in a terminal either.")
    ] = False,
) -> None:
    """See what the little model is worth: texts, and a table of what they cost.

    Every prompt is answered greedily by the target alone and under each policy, in turn, so that
    a machine that is busy now and then treats all alike.
    """
    from ..params import make_params

    screen = Screen(color=not no_color)
    with screen.status("starting"):
        names = _policies(policies or POLICIES, models)
        options = {**OPTIONS, "max_new_tokens": max_new_tokens}
        make_params(None, options)
        texts = [one.content for one in read_prompts(prompts, [], [])] if prompts else PROMPTS
        quiet_libraries()
    if second_draft is not None:
        fetch(models.target, second_draft, load_options(models), screen)  # before any is loaded
    pair = load_pair(models, None, screen)
    runs = {name: (pair, name) for name in names}
    if second_draft is not None:
        second, label = _second_pair(pair, second_draft, models, screen), Path(second_draft).name
        runs |= {f"{name}, {label}": (second, name) for name in names if name != PLAIN}
    asked = [Asked(text, "").as_prompt(has_template(pair)) for text in texts]
    for drafted, name in runs.values():
        drafted.requests(asked, policy=name, **options)  # refuses what cannot run before any runs
    bench = Bench(runs, options, screen)
    bench.warm_up(asked[0])
    screen.legend(pair.policy)
    for prompt, text in zip(asked, texts, strict=True):
        bench.answer(prompt)
        bench.show_texts(prompt, str(text))
    closing = Text(f"\n{bench.verdict()}\n", "bold"), Text(bench.configuration(models), "dim")
    screen.out.print(Group("", bench.table(), *closing))


def _policies(wanted: Sequence[str], models: ModelOptions) -> list[str]:
    """The policies to run, the target alone first."""
    for name in wanted:
        check_policy(name, models)
    if models.drafter is None:
        raise ParameterError("there is nothing to compare without a draft: give one with --draft")
    names = list(dict.fromkeys([PLAIN, *wanted]))
    if names == [PLAIN]:
        raise ParameterError("there is nothing to compare: give another policy than 'none'")
    return names


def _second_pair(pair: Pair, draft: str, models: ModelOptions, screen: Screen) -> Pair:
    """The same target with another draft, loaded as the first one was."""
    from ..matching import parse_draft
    from ..pair import load

    given = load_options(models)
    options = {name: given[name] for name in given if name.startswith("draft_")}
    for name in ("dtype", "device"):  # the target's, where they are not the draft's own
        shared = given[name] if given[name] != "auto" else None
        options[f"draft_{name}"] = options[f"draft_{name}"] or shared
    options["trust_remote_code"] = models.trust_remote_code
    options["llama"] = models.llama if draft.lower().endswith(".gguf") else None
    if parse_draft(draft).model is None:  # nothing is loaded for it
        options = {}
    with screen.status(f"loading {draft}"), notes(screen):
        return load(pair.target, draft, tokenizer=pair.tokenizer, **options)


class Bench:
    """The same prompts in several runs.

    Args:
        runs: Pair and policy by the name that is shown, the target alone first.
        options: For `Pair.generate`.
        screen: Where things are shown.
    """

    def __init__(
        self, runs: Mapping[str, tuple[Pair, str]], options: dict[str, Any], screen: Screen
    ) -> None:
        self._runs = runs
        self._pair, _ = runs[PLAIN]
        self._options = options
        self._screen = screen
        self.results: dict[str, list[Result]] = {name: [] for name in runs}

    def warm_up(self, prompt: Any) -> None:
        """A first call sets up threads and kernels; it is not to be measured."""
        with self._screen.status("warming up"):
            for pair, policy in self._runs.values():
                pair.generate(prompt, policy=policy, **{**self._options, "max_new_tokens": 4})

    def answer(self, prompt: Any) -> None:
        """One prompt under every policy, beginning with another one each time."""
        names = list(self.results)
        first = len(self.results[PLAIN]) % len(names)
        total = self._options["max_new_tokens"]
        with self._progress() as bar:
            for name in names[first:] + names[:first]:
                task = bar.add_task(name, total=total)
                pair, policy = self._runs[name]
                for chunk in pair.stream(prompt, policy=policy, **self._options):
                    bar.advance(task, len(chunk.token_ids))
                    if chunk.result is not None:
                        self.results[name].append(chunk.result)
                if not self._screen.err.is_terminal:  # where there is no bar
                    stats = self.results[name][-1].stats
                    self._screen.note(f"{name}: {summary(stats, stats.total_seconds)}")

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        return Progress(
            *columns,
            TextColumn("tokens"),
            console=self._screen.err,
            transient=True,
            disable=not self._screen.err.is_terminal,
        )

    # What is shown.

    def show_texts(self, prompt: Any, title: str) -> None:
        """The texts of the last prompt: the target's, and those that differ.

        Colours show who wrote the target's text under the first policy that gave the same.
        """
        screen = self._screen
        screen.out.print(Text(f"\n▌ {title}", "bold"), soft_wrap=True)
        last = {name: results[-1] for name, results in self.results.items()}
        plain = last.pop(PLAIN)
        same = [other for other in last.values() if other.token_ids == plain.token_ids]
        opening = self._pair.requests(prompt)[0].prompt.tokens
        screen.writer(self._pair, opening)(same[0] if same else plain)  # colours of the first
        screen.write("\n")
        for name, other in last.items():
            alike = other in same
            verdict = "the same text" if alike else self._difference(prompt, plain, other)
            style = "green" if alike else "yellow"
            screen.out.print(Text(f"→ {name}: {verdict}", style), soft_wrap=True)
            if not alike:
                screen.write(f"{other.text}\n")

    def _difference(self, prompt: Any, plain: Result, other: Result) -> str:
        """Where two texts part; for a lossless policy also how close the call was."""
        pairs = zip(plain.token_ids, other.token_ids, strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), len(other.token_ids))
        where = f"another text from token {shared + 1} of {len(plain.token_ids)} on"
        return f"{where}: {self._reason(prompt, plain, other)}" if other.lossless else where

    def _reason(self, prompt: Any, plain: Result, other: Result) -> str:
        """Why a lossless policy wrote another text."""
        from ..audit import compare

        request = self._pair.requests(prompt, **OPTIONS)[0]
        difference = compare(self._pair, request, plain.token_ids, other.token_ids).difference
        if difference is None or not difference.near_tie:
            return "rounding does not explain it; please report this"
        return (
            f"a near-tie of two tokens, {difference.margin:.3f} apart in logits, which a pass over "
            "several tokens rounds the other way (--dtype float32 does not)"
        )

    def table(self) -> Table:
        """What each policy cost."""
        options: Any = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
        table = Table(padding=(0, 0, 0, 1), **options)  # fits in 80 columns
        table.add_column("policy", no_wrap=True)
        for title in TITLES:
            table.add_column(title, justify="right")
        for name, results in self.results.items():
            stats = self._total(name)
            table.add_row(
                "the target alone" if name == PLAIN else name,
                f"{stats.tokens_per_second:.1f}",
                f"{self._speedup(name):.2f}",
                percent(stats.acceptance_rate) if stats.drafted else "–",
                str(stats.target_passes),
                str(stats.draft_passes),
                "–" if name == PLAIN else f"{self._same(name)} of {len(results)}",
            )
        return table

    def _total(self, name: str) -> Stats:
        from ..results import Stats

        return Stats.total(result.stats for result in self.results[name])

    def _speedup(self, name: str) -> float:
        """Ratio of tokens a second, so that texts of different lengths compare."""
        plain = self._total(PLAIN).tokens_per_second
        return self._total(name).tokens_per_second / plain if plain else 0.0

    def _same(self, name: str) -> int:
        """How many texts are the target's own."""
        both = zip(self.results[name], self.results[PLAIN], strict=True)
        return sum(one.token_ids == other.token_ids for one, other in both)

    def configuration(self, models: ModelOptions) -> str:
        """What the numbers were measured with."""
        import torch
        import transformers

        count = len(self.results[PLAIN])
        return (
            f"{models.target} with {self._drafts(models)}, {self._pair.summary}, "
            f"{plural(torch.get_num_threads(), 'thread')}; "
            f"{plural(count, 'prompt')}, at most {self._options['max_new_tokens']} tokens each, "
            f"greedy, policies in turn, prompt included; biglittle {__version__}, "
            f"torch {torch.__version__}, transformers {transformers.__version__}, "
            f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
        )

    def _drafts(self, models: ModelOptions) -> str:
        pairs = dict.fromkeys(pair for pair, _ in self._runs.values())
        others = [pair.draft_name for pair in pairs if pair is not self._pair]
        return " and ".join([str(models.drafter), *others])

    def verdict(self) -> str:
        """What it means, in a sentence."""
        parts = [
            f"{name} wrote the same text for {self._same(name)} of "
            f"{plural(len(results), 'prompt')} at {self._speedup(name):.2f} times the speed"
            for name, results in self.results.items()
            if name != PLAIN
        ]
        return f"Compared with the target alone, {'; '.join(parts)}."
