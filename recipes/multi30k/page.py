"""The page of the reproduction, docs/reproduction.md, from the saved runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import markdown, speedup

from biglittle.bench.report import plots
from biglittle.bench.systems import PLAIN
from biglittle.policy import parse_policy

from ..alignment import before_and_after, read_alignment
from .sweep import (
    BUDGETS,
    DRAFTS,
    EXIT,
    MODELS,
    SAMPLED,
    SWEEP_SENTENCES,
    SWEPT,
    TEST_SENTENCES,
    TESTED,
    WINDOW_ROLLBACK,
    WINDOWED,
    WINDOWS,
    bleu,
    fixed,
    picked,
    rows,
    swept,
    without_rollback,
)

__all__ = ["write_page"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
HEAD = """# The paper, reproduced at this size

Big Little Decoder (Kim et al. 2023, [arXiv 2302.07863](https://arxiv.org/abs/2302.07863)) on
German–English captions (Multi30k, test 2016), with T5-like models trained from nothing by
[recipes/multi30k](https://github.com/biglittle/biglittle/tree/main/recipes/multi30k), which lists
the commands; `python -m recipes.multi30k page` writes this page. The paper's figures are of
IWSLT 2017 German–English on a T4 GPU, with mT5-large and mT5-small unless another data set is
named. Batch 1, greedy unless it says otherwise; thresholds were chosen on the validation split.
BLEU is sacrebleu's; speed is that of whole translations, encoders included.
"""
PAPER: Mapping[str, Mapping[str, str]] = {
    "alone": {PLAIN: "40.32"},
    "unaligned": {"no loss": "40.33, 1.43× (2, 0.6)", "one point": "39.44, 1.58× (3, 0.5)"},
    "aligned": {"no loss": "40.24, 1.62× (3, 0.9)", "one point": "39.13, 1.78× (4, 0.6)"},
}
"""BLEU and speed-up, with (rollback, fallback) as a third party's reproduction lists them."""


def write_page(
    run: Path, findings: Path | None = None, out: Path = DOCS / "reproduction.md"
) -> None:
    """Write the page and its pictures; at its end, what somebody found who looked at it."""
    pictures = out.parent / "images"
    pictures.mkdir(exist_ok=True)
    bench = {folder.name: rows(folder) for folder in sorted((run / "bench").iterdir())}
    bench |= {f"{SWEPT}-{draft}": swept(run, draft) for draft in DRAFTS}
    lines = [HEAD, *machine(run)]
    for section in SECTIONS:
        lines += [*section(run, bench), ""]
    lines += [*curves(bench, pictures), *goals(run, bench)]
    if findings is not None:
        lines += ["", findings.read_text(encoding="utf8")]
    out.write_text("\n".join(lines).rstrip() + "\n", encoding="utf8")


Rows = Sequence[dict[str, Any]]
Benches = Mapping[str, Rows]


def table(
    title: str, text: str, header: Sequence[str], lines: Iterable[Sequence[str]]
) -> list[str]:
    """A section."""
    return [f"## {title}\n", f"{text}\n", *markdown(header, list(lines))]


def row(found: Rows, policy: str) -> dict[str, Any]:
    """One policy's; a bench prints options only where they are not the defaults."""
    name = str(parse_policy(policy))
    return next(part for part in found if part["system"] == name)


def machine(run: Path) -> list[str]:
    """Where it was measured."""
    path = run / "bench" / f"{TESTED}-aligned" / "summary.json"
    header = json.loads(path.read_text(encoding="utf8"))["header"]
    known = header["hardware"] | {"precision": header["settings"]["precision"]}
    return [", ".join(f"{key}: {value}" for key, value in known.items()) + ".\n"]


def models(run: Path, bench: Benches) -> list[str]:
    """The models, and what of them was trained."""
    lines = []
    for name in MODELS:
        config = json.loads((run / name / "config.json").read_text(encoding="utf8"))
        known = known_alone(run, name)
        lines.append(
            [
                name,
                f"{config['num_layers']} + {config['num_decoder_layers']}",
                str(config["d_model"]),
                f"{known['parameters'] / 1e6:.1f} M",
                f"{known['bleu']:.2f}",
                f"{known['ms_per_step']:.2f}",
            ]
        )
    return table(
        "The models",
        "BLEU of each alone on the test split, and the time of a step of its decoder.",
        ["model", "layers", "width", "parameters", "BLEU", "ms a step"],
        lines,
    )


def known_alone(run: Path, name: str) -> dict[str, Any]:
    """What was measured of a model alone."""
    path = run / "alone" / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf8")))


def alignments(run: Path, bench: Benches) -> list[str]:
    """What aligning and the joint training changed, by `biglittle align`'s own account."""
    lines = ["## Alignment\n", "On answers of the large model that were held out.\n"]
    titles = {"aligned": "The small model, aligned", "joint": "The exit, trained jointly"}
    for name, title in titles.items():
        lines += [f"**{title}**\n", *before_and_after(read_alignment(run / name)), ""]
    return lines[:-1]


def thresholds(run: Path, bench: Benches) -> list[str]:
    """No loss, and one point down."""
    alone = row(bench[f"{TESTED}-aligned"], PLAIN)
    lines = [["large alone", f"{bleu(alone):.2f}", "1×", "", "", PAPER["alone"][PLAIN]]]
    for draft in DRAFTS:
        for name, policy in picked(run, draft).items():
            part = row(bench[f"{TESTED}-{draft}"], policy)
            lines.append(
                [
                    f"{draft} BiLD, {name}",
                    f"{bleu(part):.2f}",
                    speedup(part),
                    f"{100 * part['fallback']:.1f} / {100 * part['rollback']:.1f}",
                    policy.removeprefix("bild:"),
                    PAPER[draft][name],
                ]
            )
    return table(
        "Large alone, BiLD, aligned BiLD",
        "With 95 % intervals over sentences. Fallback and rollback in per cent of the tokens that "
        "the little model wrote; the paper has 21.1 / 1.6 for BiLD on IWSLT.",
        ["", "BLEU", "speed-up", "fallback / rollback %", "thresholds", "paper"],
        lines,
    )


def windows(run: Path, bench: Benches) -> list[str]:
    """Fixed windows under exact matching."""
    found = bench[WINDOWED]
    lines = [["large alone", *compare(found, PLAIN)]]
    lines += [[str(window), *compare(found, f"static:tokens={window}")] for window in WINDOWS]
    lines.append(["dynamic", *compare(found, "dynamic")])
    lines += [[f"BiLD, {name}", *compare(found, p)] for name, p in picked(run, "aligned").items()]
    return table(
        "Against exact matching with a fixed window",
        f"The aligned pair, on the first {TEST_SENTENCES} test sentences. "
        "Rejection sampling at temperature 0 is exact matching: lossless. The "
        "paper sets BiLD (40.54 at 1.23×, 39.87 at 1.49×) beside rejection sampling "
        "(39.93 at 1.28×; fallback / rollback 23.2 / 9.8 %).",
        ["", "BLEU", "speed-up", "rollback %"],
        lines,
    )


def compare(found: Rows, policy: str) -> list[str]:
    """BLEU, speed-up and rollbacks of a policy."""
    part = row(found, policy)
    if part["rollback"] is None:  # nothing was drafted
        return [f"{bleu(part):.2f}", "1×", ""]
    return [f"{bleu(part):.2f}", speedup(part), f"{100 * part['rollback']:.1f}"]


def ablations(run: Path, bench: Benches) -> list[str]:
    """Without rollback, and with fixed windows."""
    found, picks = bench[WINDOWED], picked(run, "aligned")
    named = {f"BiLD, {name}": policy for name, policy in picks.items()}
    named |= {"without rollback": without_rollback(picks)}
    named |= {f"window {window}": fixed(window) for window in WINDOWS}
    return table(
        "Ablations",
        f"The same sentences: BiLD without rollback, and with a fixed window in place of fallback "
        f"(rollback {WINDOW_ROLLBACK}). In the paper both are worse along the whole curve.",
        ["", "BLEU", "speed-up", "rollback %"],
        [[name, *compare(found, policy)] for name, policy in named.items()],
    )


def sampling(run: Path, bench: Benches) -> list[str]:
    """Nucleus sampling."""
    found = bench[SAMPLED]
    lines = [
        [part["system"], f"{bleu(part):.2f}", "1×" if part["system"] == PLAIN else speedup(part)]
        for part in found
    ]
    return table(
        "Nucleus sampling, p = 0.8",
        "The aligned pair on the same sentences, temperature 1; `static` is rejection sampling, "
        "which keeps the large model's distribution. The paper (aligned): 39.24 alone; 39.72 at "
        "1.51×, 39.26 at 1.63×, 38.27 at 1.80×.",
        ["", "BLEU", "speed-up"],
        lines,
    )


def early_exit(run: Path, bench: Benches) -> list[str]:
    """The first layers as the little model, and CALM."""
    found = bench[EXIT]
    kept = [row(found, PLAIN), *front(part for part in found if "bild" in part["system"])]
    kept += [part for part in found if part["system"].startswith("calm")]
    return table(
        "Early exit against CALM",
        "The jointly trained model on the same sentences, with its first layers as the little "
        "model: the settings that no other beats in both. The paper: up to 1.60× within one BLEU, "
        "and up to 2–2.5 BLEU above CALM at equal speed.",
        ["", "BLEU", "speed-up"],
        [
            [
                part["system"],
                f"{bleu(part):.2f}",
                "1×" if part["system"] == PLAIN else speedup(part),
            ]
            for part in kept
        ],
    )


def front(found: Iterable[dict[str, Any]]) -> Rows:
    """The rows that no other beats in speed and quality, the fastest last."""
    best: list[dict[str, Any]] = []
    for part in sorted(found, key=lambda part: -part["speedup"]):
        if not best or bleu(part) > bleu(best[-1]):
            best.append(part)
    return best[::-1]


def operations(run: Path, bench: Benches) -> list[str]:
    """FLOPs, memory operations and their ratio."""
    lines = []
    for draft in DRAFTS:
        for name, policy in picked(run, draft).items():
            part = row(bench[f"{TESTED}-{draft}"], policy)
            ratios = [part[f"{kind}_ratio"] for kind in ("flops", "bytes", "intensity")]
            lines.append([f"{draft} BiLD, {name}", *(f"{ratio:.2f}×" for ratio in ratios)])
    return table(
        "Operations",
        "Over the large model alone, per generated token. The paper, on CNN/DM at 1.85×: "
        "FLOPs 1.11×, memory operations 0.22×, arithmetic intensity 4.96×.",
        ["", "FLOPs", "memory operations", "arithmetic intensity"],
        lines,
    )


SECTIONS = (models, alignments, thresholds, windows, ablations, sampling, early_exit, operations)


def curves(bench: Benches, pictures: Path) -> list[str]:
    """Quality over speed."""
    fronts = {name: front(lossy(bench[f"{SWEPT}-{name}"])) for name in DRAFTS}
    lines = {f"{name} BiLD": points(found) for name, found in fronts.items()}
    alone = bleu(row(bench[f"{SWEPT}-aligned"], PLAIN))
    exits = bench[EXIT]
    calm = [part for part in exits if part["system"].startswith("calm")]
    ours = front(part for part in exits if "bild" in part["system"])
    two = {"early-exit BiLD": points(ours), "CALM": points(calm)}
    drawn = {
        "bild": plots.quality_against_speed("bild", "BLEU", lines, alone),
        "exit": plots.quality_against_speed("exit", "BLEU", two, bleu(row(exits, PLAIN))),
    }
    found = [
        "## Curves\n",
        "The fronts of all settings, those of two models on the validation split (speed on "
        f"{SWEEP_SENTENCES} sentences of it); the dashed line is the target alone.\n",
    ]
    for name, picture in drawn.items():
        path = pictures / f"reproduction-{name}.svg"
        path.write_text(picture, encoding="utf8")
        found += [f"![BLEU over speed-up: {name}](images/{path.name})", ""]
    return found


def lossy(found: Rows) -> Rows:
    """The rows of lossy policies."""
    return [part for part in found if not part["lossless"]]


def goals(run: Path, bench: Benches) -> list[str]:
    """What the recipe is meant to show, and what it shows."""
    alone, small = (known_alone(run, name) for name in ("large", "small"))
    better, dearer = alone["bleu"] - small["bleu"], alone["ms_per_step"] / small["ms_per_step"]
    found = [
        goal("the large model's BLEU above the small one's", 4, better),
        goal("its decoder's step, in steps of the small one", 4, dearer),
    ]
    for name, wanted in (("no loss", 1.5), ("one point", 2.0)):
        speeds = {draft: within(run, bench, draft, name) for draft in DRAFTS}
        found.append(goal(f"speed-up, {name}, aligned", wanted, speeds["aligned"]))
        ratio = speeds["aligned"] / speeds["unaligned"]
        found.append(goal(f"the same over unaligned, {name}", 1, ratio))
    rejection = [part["speedup"] for part in bench[WINDOWED] if part["lossless"]]
    ratio = within(run, bench, "aligned", "no loss", WINDOWED) / max(rejection)
    found.append(goal("BiLD, no loss, over the fastest lossless setting", 1, ratio))
    text = (
        "On the test split, where a setting that loses more than its budget (a tenth of a point "
        "for no loss) counts as the large model alone."
    )
    return table("Goals", text, ["", "goal", "found", "reached"], found)


def goal(name: str, wanted: float, found: float) -> list[str]:
    """A line of the goals."""
    return [name, f"{wanted:g}", f"{found:.2f}", "yes" if found >= wanted else "no"]


def within(run: Path, bench: Benches, draft: str, budget: str, where: str = "") -> float:
    """The speed-up of a pick, if it keeps its budget there, too; else 1."""
    found = bench[where or f"{TESTED}-{draft}"]
    policy = picked(run, draft).get(budget)
    if policy is None:
        return 1.0
    part = row(found, policy)
    change = bleu(part) - bleu(row(found, PLAIN))
    return float(part["speedup"]) if change >= BUDGETS[budget] else 1.0


def points(found: Rows) -> list[tuple[float, float]]:
    """Speed-up and BLEU."""
    return [(part["speedup"], bleu(part)) for part in found]
