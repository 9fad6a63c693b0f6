"""The runs of `biglittle bench` that the recipe's tables are made of.

Thresholds are looked for on the validation split and reported on the test split. Each run is a
folder, and one that was stopped goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import biglittle
from biglittle.bench.metrics import score
from biglittle.bench.readers import read_tasks
from biglittle.bench.systems import PLAIN
from biglittle.bench.tasks import Example
from biglittle.costs import measure_costs
from biglittle.errors import ParameterError
from biglittle.files import write_whole
from biglittle.policy import parse_policy

__all__ = ["BUDGETS", "DRAFTS", "EXIT", "MODELS"]
__all__ += ["SAMPLED", "SWEEP_SENTENCES", "SWEPT", "TESTED", "TEST_SENTENCES", "WINDOWED"]
__all__ += ["Bench", "benches", "bleu", "chosen", "fixed", "picked", "rows", "swept"]
__all__ += ["measure", "measure_alone", "measure_quality"]
__all__ += ["WINDOWS", "WINDOW_ROLLBACK", "without_rollback"]

# Lower than the paper's: these models were trained on smoothed labels, and are less sure.
FALLBACK = (0.3, 0.5)
ROLLBACK = (0.5, 1, 1.5, 2, 3)
WINDOWS = range(3, 11)
MODELS = ("large", "small", "aligned", "joint")
DRAFTS = {"unaligned": "small", "aligned": "aligned"}
EXIT = "early exit"
EXIT_LAYERS = 2
CALM = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
SWEPT, TESTED, WINDOWED, SAMPLED = "swept", "tested", "windows", "sampled"
SWEEP_SENTENCES = 120  # for speed alone
TEST_SENTENCES = 150  # where many settings are compared; the two budgets' are run on all
ROWS = 128  # sentences that are translated beside each other where only the text matters
BUDGETS = {"no loss": -0.1, "one point": -1.0}
"""How much BLEU a setting may change. The paper's settings without loss lose up to a tenth."""
NO_ROLLBACK = "inf"
WINDOW_ROLLBACK = 2


@dataclass(frozen=True, slots=True)
class Bench:
    """One run."""

    name: str
    """A folder of the run's."""
    target: str
    draft: str
    split: str
    policies: tuple[str, ...]
    options: tuple[str, ...] = ()

    def command(self, data: Path, run: Path) -> list[str]:
        """The command line, but for the program itself."""
        draft = self.draft if ":" in self.draft else str(run / self.draft)
        words = ["bench", "--target", str(run / self.target), "--draft", draft]
        words += ["--source", str(file(data, self.split, "de"))]
        words += ["--reference", str(file(data, self.split, "en"))]
        words += [word for policy in self.policies for word in ("--policy", policy)]
        words += ["--max-new-tokens", "64", "--raw", *self.options]
        return [*words, "--out", str(run / "bench" / self.name)]


def file(data: Path, split: str, language: str) -> Path:
    """A side of a split, which may be compressed; the test split has its year in its name."""
    found = sorted(data.glob(f"{split}*.{language}*"))
    return found[0] if found else data / f"{split}.{language}"


def grid() -> Iterator[str]:
    """BiLD's thresholds."""
    for fallback in FALLBACK:
        for rollback in ROLLBACK:
            yield bild(fallback, rollback)


def bild(fallback: float, rollback: float | str) -> str:
    """BiLD as published."""
    return f"bild:fallback={fallback:g},rollback={rollback}"


def fixed(window: int) -> str:
    """BiLD's acceptance with a fixed window."""
    return f"static:tokens={window}+bild:rollback={WINDOW_ROLLBACK}"


def benches(run: Path) -> Iterator[Bench]:
    """All runs, in an order in which each finds what it needs."""
    few = ("--limit", str(SWEEP_SENTENCES))
    for name, draft in DRAFTS.items():
        yield Bench(f"{SWEPT}-{name}", "large", draft, "val", tuple(grid()), few)
    for name, draft in DRAFTS.items():
        yield Bench(f"{TESTED}-{name}", "large", draft, "test", tuple(picked(run, name).values()))
    some = ("--limit", str(TEST_SENTENCES))
    yield Bench(WINDOWED, "large", "aligned", "test", tuple(windowed(run)), some)
    nucleus = ("--temperature", "1", "--top-p", "0.8", *some)
    yield Bench(SAMPLED, "large", "aligned", "test", tuple(sampled(run)), nucleus)
    draft = f"early-exit:layers={EXIT_LAYERS}"
    rule = f",exits={EXIT_LAYERS}"  # where the model was trained to exit
    calm = tuple(word for threshold in CALM for word in ("--calm", f"{threshold:g}{rule}"))
    yield Bench(EXIT, "joint", draft, "test", tuple(grid()), (*some, *calm))


def picked(run: Path, draft: str) -> dict[str, str]:
    """The settings that were chosen on the validation split."""
    return chosen(swept(run, draft))


def swept(run: Path, draft: str) -> list[dict[str, Any]]:
    """The sweep's rows, with the quality of the whole validation split."""
    quality = json.loads(quality_file(run, draft).read_text(encoding="utf8"))
    found = rows(run / "bench" / f"{SWEPT}-{draft}")
    return [row | {"bleu": quality[row["system"]]} for row in found]


def quality_file(run: Path, draft: str) -> Path:
    """BLEU of every setting on the whole validation split."""
    return run / "quality" / f"{draft}.json"


def without_rollback(picks: Mapping[str, str]) -> str:
    """The strictest of these settings, without rollback."""
    fallback = next(iter(picks.values())).partition("fallback=")[2].partition(",")[0]
    return bild(float(fallback), NO_ROLLBACK)


def windowed(run: Path) -> Iterator[str]:
    """Fixed windows under both kinds of acceptance, and what they are set beside."""
    picks = picked(run, "aligned")
    yield from picks.values()
    yield without_rollback(picks)
    yield "dynamic"
    for window in WINDOWS:
        yield f"static:tokens={window}"  # greedy matching: what rejection sampling is at T = 0
        yield fixed(window)


def sampled(run: Path) -> Iterator[str]:
    """What is sampled from a nucleus."""
    yield from picked(run, "aligned").values()
    yield from (f"static:tokens={window}" for window in WINDOWS)


def chosen(found: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The fastest BiLD settings within the two budgets, by a sweep's rows."""
    alone = bleu(next(row for row in found if row["system"] == PLAIN))
    picks = {}
    for name, budget in BUDGETS.items():
        inside = [row for row in found if not row["lossless"] and bleu(row) - alone >= budget]
        if inside:
            picks[name] = max(inside, key=lambda row: row["speedup"])["system"]
    if not picks:
        raise ParameterError("no BiLD setting of the sweep is within one point of the large model")
    return picks


def bleu(row: dict[str, Any]) -> float:
    """Of a row of a bench's summary."""
    return float(row["bleu"])


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a bench's summary."""
    return list(json.loads((folder / "summary.json").read_text(encoding="utf8"))["rows"])


def measure_alone(name: str, data: Path, run: Path) -> None:
    """BLEU of a model alone on the test split, its size and the time of its decoder's step."""
    out = run / "alone" / f"{name}.json"
    if out.is_file():
        return
    model = biglittle.load(str(run / name))
    known = {
        "bleu": translated(model, "test", data, PLAIN),
        "parameters": sum(part.numel() for part in model.target.parameters()),
        "ms_per_step": 1000 * measure_costs(model, context=32).step,
    }
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf8")


def measure_quality(draft: str, data: Path, run: Path) -> None:
    """BLEU of every setting on the whole validation split; texts are what they would be alone."""
    out = quality_file(run, draft)
    out.parent.mkdir(exist_ok=True)
    known: dict[str, float] = {}
    if out.is_file():
        known = json.loads(out.read_text(encoding="utf8"))
    pair = biglittle.load(str(run / "large"), draft=str(run / DRAFTS[draft]))
    for policy in (PLAIN, *grid()):
        name = str(parse_policy(policy))
        if name not in known:
            known[name] = translated(pair, "val", data, policy)
            print(f"{draft}, {name}: {known[name]:.2f} BLEU", flush=True)
            write_whole(out, json.dumps(known, indent=1) + "\n")


def translated(pair: biglittle.Pair, split: str, data: Path, policy: str) -> float:
    """BLEU on a split."""
    files = [file(data, split, language) for language in ("de", "en")]
    (task,) = read_tasks(files[0], reference=files[1], chat=False, metrics=["bleu"])
    outputs: dict[str, str] = {}
    for examples in batched(task.examples, ROWS):
        prompts = [example.turns[0] for example in examples]
        found = pair.generate(prompts, policy=policy, max_new_tokens=64)
        outputs |= {e.id: result.text for e, result in zip(examples, found, strict=True)}
    return score("bleu", task, outputs).value


def batched(examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    """So many at a time."""
    return (examples[first : first + size] for first in range(0, len(examples), size))


def measure(bench: Bench, data: Path, run: Path) -> None:
    """Run one, and say by which command."""
    words = bench.command(data, run)
    print("biglittle", *words, flush=True)
    subprocess.run([sys.executable, "-m", "biglittle", *words], check=True)
