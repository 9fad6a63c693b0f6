"""Predicted speed beside timed runs: does `biglittle diagnose` tell the truth?

    python -m benchmarks.predictions                       # the embedded pair; minutes
    python -m benchmarks.predictions --pair smollm2 --prompts 5
    python -m benchmarks.predictions --report              # the table of what was measured so far

A pair's passes are timed and its traces recorded as `biglittle diagnose` does it. Then every policy
is run on the same prompts, the target alone among them: one round of each in turn, so that a slow
moment of the machine meets all alike. Passes are timed again after every prompt. What is compared
is the speed-up over the target alone after the first token, of the prompts for which the policy
wrote the target's text: in bfloat16 a near-tie may flip, and another text takes other rounds.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

import biglittle
from benchmarks.results import append, check_names, configuration, read
from biglittle.cli.loading import quiet_libraries
from biglittle.costs import Costs
from biglittle.decoding import Engine, Request, Row
from biglittle.diagnosis import Profile, builtin_prompts
from biglittle.diagnosis.lookup import lookup_traces
from biglittle.diagnosis.profile import measure_profile
from biglittle.traces import Traces, record, replay

PAIRS: dict[str, tuple[str, str]] = {
    "qwen": ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"),
    "smollm2": ("smollm2-135m-instruct", "early-exit:layers=20"),
}
PLAIN = "none"
POLICIES = (
    "static:tokens=2",
    "static:tokens=4",
    "static:tokens=8",
    "heuristic:tokens=20",
    "dynamic",
    "dynamic:threshold=0.7,tokens=8",
    "self-adjusting",
    "cost-aware",
    "fallback:threshold=0.9,tokens=6",
)
NGRAM = 3
LOOKUP = f"prompt-lookup:ngram={NGRAM} "
COPYING = "static:tokens=5"
SYSTEMS = (PLAIN, *POLICIES, LOOKUP + COPYING)
GOAL = 0.10

Floats = npt.NDArray[np.float64]


class Bench:
    """A pair, the same target with prompt lookup, and the prompts."""

    def __init__(self, name: str, count: int, new_tokens: int) -> None:
        target, draft = PAIRS[name]
        self.pair = biglittle.load(target, draft)
        self.copying = biglittle.Pair(
            self.pair.target, f"prompt-lookup:ngram={NGRAM}", self.pair.tokenizer
        )
        texts = [one.text for one in builtin_prompts()[:count]]
        self.prompts = [[{"role": "user", "content": text}] for text in texts]
        self.options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": new_tokens}

    def requests(self) -> list[Request]:
        """The prompts' requests."""
        return self.pair.requests(self.prompts, policy=PLAIN, **self.options)

    def run(self, prompt: Any, **changes: Any) -> dict[str, dict[str, Any]]:
        """What every policy wrote, and its seconds after the first token; rounds take turns."""
        started = {system: self._start(system, prompt, changes) for system in SYSTEMS}
        seconds = dict.fromkeys(SYSTEMS, 0.0)
        while any(engine.busy for engine, _ in started.values()):
            for system, (engine, _) in started.items():
                if engine.busy:
                    before = time.perf_counter()
                    engine.step()
                    seconds[system] += time.perf_counter() - before
        return {
            system: {"seconds": seconds[system], "tokens": row.new_tokens}
            for system, (_, row) in started.items()
        }

    def _start(self, system: str, prompt: Any, changes: dict[str, Any]) -> tuple[Engine, Row]:
        """An engine that has read the prompt and written the first token, and its row."""
        pair = self.copying if system.startswith(LOOKUP) else self.pair
        policy = system.removeprefix(LOOKUP)
        engine = pair.engine()
        row = engine.admit(pair.requests(prompt, policy=policy, **{**self.options, **changes})[0])
        engine.step()
        return engine, row

    def costs(self) -> list[dict[str, Any]]:
        """One more timing of the passes, as `biglittle diagnose` does it."""
        found = measure_profile(self.pair, prompt=self.prompts[0])
        return [costs.as_dict() for costs in found.costs]


def measure(bench: Bench, pair: str, out: Path, console: Console) -> None:
    """Run what is not in the file yet."""
    done = {row["prompt"] for row in read(out) if row["pair"] == pair}
    bench.run([{"role": "user", "content": "Warm up the machine."}], max_new_tokens=4)
    for index, prompt in enumerate(bench.prompts):
        if index in done:
            continue
        runs = bench.run(prompt)
        append(out, {"pair": pair, "prompt": index, "runs": runs, "costs": bench.costs()})
        console.print(f"[dim]{pair} {index}: {runs[PLAIN]['seconds']:.1f} s by the target alone[/]")


def median_profile(measured: Sequence[Sequence[dict[str, Any]]]) -> Profile:
    """The medians of several timings, context by context."""
    return Profile(tuple(_median(list(same)) for same in zip(*measured, strict=True)))


def _median(same: list[dict[str, Any]]) -> Costs:
    def middle(name: str) -> float:
        return statistics.median(float(costs[name]) for costs in same)

    seconds = np.median([costs["seconds"] for costs in same], axis=0)
    return Costs(
        middle("draft"),
        tuple(same[0]["widths"]),
        tuple(np.maximum.accumulate(seconds).tolist()),
        middle("catch_up"),
        middle("reading"),
        same[0]["context"],
    )


def predictions(bench: Bench, traces: Traces, profile: Profile) -> dict[str, Floats]:
    """Predicted seconds of every system, [prompts]."""
    copied = lookup_traces(traces, bench.requests(), bench.pair, NGRAM)
    free = profile.with_costs(draft=0.0, catch_up=0.0, reading=0.0)
    return {
        system: free.seconds(copied, replay(copied, system.removeprefix(LOOKUP)))
        if system.startswith(LOOKUP)
        else profile.seconds(traces, replay(traces, system))
        for system in SYSTEMS
    }


def report(bench: Bench, pair: str, traces: Traces, out: Path, console: Console) -> None:
    """Predictions and runs side by side."""
    rows = {row["prompt"]: row for row in read(out) if row["pair"] == pair}
    predicted = predictions(bench, traces, median_profile([row["costs"] for row in rows.values()]))
    table = Table(title=f"{pair}: speed-up over the target alone after the first token")
    for column in ("policy", "prompts", "predicted", "timed", "error"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    errors = []
    for system in SYSTEMS[1:]:
        own = [
            index
            for index, trace in enumerate(traces)
            if index in rows and rows[index]["runs"][system]["tokens"] == list(trace.tokens)
        ]
        if not own:
            table.add_row(system, "0", "", "", "")
            continue
        timed = {
            name: sum(rows[index]["runs"][name]["seconds"] for index in own)
            for name in (PLAIN, system)
        }
        expected = float(predicted[PLAIN][own].sum() / predicted[system][own].sum())
        real = timed[PLAIN] / timed[system]
        errors.append(expected / real - 1)
        cells = (str(len(own)), f"{expected:.2f}×", f"{real:.2f}×", f"{errors[-1]:+.1%}")
        table.add_row(system, *cells)
    console.print(table)
    within = sum(abs(error) <= GOAL for error in errors)
    console.print(f"within {GOAL:.0%}: {within} of {len(errors)} policies")


def main(
    pair: Annotated[str, typer.Option(help=f"One of {', '.join(PAIRS)}.")] = "qwen",
    count: Annotated[int, typer.Option("--prompts", help="Of the built-in ones.")] = 5,
    new_tokens: Annotated[int, typer.Option(help="New tokens a prompt, at most.")] = 48,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench-predictions.jsonl"),
    only_report: Annotated[bool, typer.Option("--report", help="Time nothing.")] = False,
) -> None:
    """Predicted speed beside timed runs."""
    console = Console(width=120)
    check_names(pair=([pair], PAIRS))
    quiet_libraries()
    console.print(json.dumps(configuration() | {"new_tokens": new_tokens, "prompts": count}))
    bench = Bench(pair, count, new_tokens)
    recording = out.with_name(f"{out.stem}-{pair}-traces.jsonl")
    traces = record(bench.pair, bench.prompts, recording, max_new_tokens=new_tokens)
    if not only_report:
        measure(bench, pair, out, console)
    report(bench, pair, traces, out, console)


if __name__ == "__main__":
    typer.run(main)
