"""What a useless draft costs: never more than 3 % of plain decoding, by the clock?

    python -m benchmarks.useless                        # the embedded pair; about ten minutes
    python -m benchmarks.useless --target smollm2-135m-instruct --draft smollm2-135m-instruct
    python -m benchmarks.useless --report               # the table of what was measured so far

The draft is a real model whose weights were shuffled, tensor by tensor: its steps cost what they
always cost, and what it proposes means nothing. Every policy writes the same number of tokens for
every prompt, whatever ends the text, one round of each in turn, so that a slow moment of the
machine meets all alike; who goes first changes from round to round. Seconds are of the whole: the
reading of the prompt, by both models, and all rounds. Every prompt is saved when it is done, and a
second call goes on where the first one stopped.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import biglittle
from benchmarks.results import append, configuration, quartiles, read, take_turns
from biglittle.cli.loading import quiet_libraries
from biglittle.decoding import Engine, Row
from biglittle.diagnosis import builtin_prompts
from biglittle.engines.transformers.packing import can_pack, pack_linears

TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
PLAIN = "none"
POLICIES = ("cost-aware", "dynamic")
GOAL = 0.03


def load(target: str, draft: str) -> biglittle.Pair:
    """The pair, its draft spoilt."""
    little = biglittle.load(draft, dtype="bfloat16", pack=False).target
    shuffle(little)
    if can_pack():  # as drafts are
        pack_linears(little)
    big = biglittle.load(target, dtype="bfloat16")
    return biglittle.Pair(big.target, little, big.tokenizer)


@torch.no_grad()
def shuffle(model: torch.nn.Module, seed: int = 0) -> None:
    """Put the values of every matrix of a model in a random order."""
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() > 1:
            order = torch.randperm(weight.numel(), generator=generator)
            weight.copy_(weight.flatten()[order].view_as(weight))


def run(pair: biglittle.Pair, prompt: Any, new_tokens: int) -> dict[str, dict[str, Any]]:
    """Seconds and passes of every policy on one prompt; their rounds take turns."""
    started = {policy: start(pair, policy, prompt, new_tokens) for policy in (PLAIN, *POLICIES)}
    seconds = take_turns({policy: engine for policy, (engine, _) in started.items()})
    return {
        policy: {
            "seconds": sum(seconds[policy]),
            "target_passes": row.stats.target_passes,
            "draft_passes": row.stats.draft_passes,
            "accepted": row.stats.accepted,
        }
        for policy, (_, row) in started.items()
    }


def start(pair: biglittle.Pair, policy: str, prompt: Any, new_tokens: int) -> tuple[Engine, Row]:
    """An engine before its first step, and its row."""
    engine = pair.engine()
    options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": new_tokens}
    request = pair.requests(prompt, policy=policy, ignore_eos=True, **options)[0]
    return engine, engine.admit(request)


def report(rows: list[dict[str, Any]], console: Console) -> None:
    """How much longer than plain decoding every policy takes."""
    table = Table(title=f"Time over plain decoding's, {len(rows)} prompts")
    columns = ("policy", "median", "quartiles", "range", "draft steps", "accepted", "within 3 %")
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right")
    for policy in POLICIES:
        runs = [row["runs"][policy] for row in rows]
        plain = [row["runs"][PLAIN]["seconds"] for row in rows]
        excess = [one["seconds"] / base - 1 for one, base in zip(runs, plain, strict=True)]
        middle = statistics.median(excess)
        table.add_row(
            policy,
            f"{middle:+.1%}",
            quartiles(excess, "{:+.1%}"),
            f"{min(excess):+.1%} … {max(excess):+.1%}",
            f"{statistics.mean(one['draft_passes'] for one in runs):.0f}",
            f"{statistics.mean(one['accepted'] for one in runs):.0f}",
            "yes" if middle <= GOAL else "no",
        )
    console.print(table)
    seconds = statistics.median(row["runs"][PLAIN]["seconds"] for row in rows)
    console.print(f"plain decoding: {seconds:.2f} s a prompt, the median")


def main(
    target: Annotated[str, typer.Option(help="As for biglittle.load.")] = TARGET,
    draft: Annotated[str, typer.Option(help="Whose weights are shuffled.")] = DRAFT,
    count: Annotated[int, typer.Option("--prompts", help="Of the built-in ones.")] = 10,
    new_tokens: Annotated[int, typer.Option(help="A prompt.")] = 256,
    out: Annotated[Path, typer.Option(help="Results file.")] = Path("bench-useless.jsonl"),
    only_report: Annotated[bool, typer.Option("--report", help="Time nothing.")] = False,
) -> None:
    """What a useless draft costs."""
    console = Console(width=120)
    setting: dict[str, Any] = {"target": target, "draft": draft, "new_tokens": new_tokens}
    console.print(json.dumps(configuration() | setting | {"dtype": "bfloat16"}))
    if not only_report:
        measure(setting, count, out)
    rows = [row for row in read(out) if setting.items() <= row.items()]
    if not rows:
        raise SystemExit(f"{out} holds nothing of this pair with {new_tokens} tokens")
    report(rows, console)


def measure(setting: dict[str, Any], count: int, out: Path) -> None:
    """Run the prompts that are not in the file yet."""
    done = {row["prompt"] for row in read(out) if setting.items() <= row.items()}
    missing = [index for index in range(count) if index not in done]
    if not missing:
        return
    quiet_libraries()
    pair = load(setting["target"], setting["draft"])
    texts = [[{"role": "user", "content": one.text}] for one in builtin_prompts()]
    run(pair, texts[-1], 4)  # warms up
    for index in track(missing, "prompts"):
        runs = run(pair, texts[index], setting["new_tokens"])
        append(out, {**setting, "prompt": index, "runs": runs})


if __name__ == "__main__":
    typer.run(main)
