"""The model card of an aligned draft: where it comes from, and what was measured."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator

import torch
import transformers

from .. import __version__, catalogue
from .plan import Plan
from .report import AlignReport
from .training import Settings

__all__ = ["model_card"]


def model_card(plan: Plan, report: AlignReport, command: str) -> str:
    """A model card as the hub has them: Markdown under a few lines of YAML."""
    base = plan.draft or plan.target
    parts = [
        _head(base),
        f"# {_title(plan)}\n\n{_origin(plan)}",
        _use(plan, report),
        _measured(report),
        _made(plan, report, command),
        _licence(base),
    ]
    return "\n\n".join(parts) + "\n"


def _head(base: str) -> str:
    entry = catalogue.find(base)
    lines = ["---", "tags: [speculative-decoding, biglittle]"]
    if entry is not None:
        known = entry.licence == "Apache-2.0"  # the hub knows it by its name, and has no others
        licence = (
            "license: apache-2.0" if known else f"license: other\nlicense_name: {entry.licence}"
        )
        lines += [f"base_model: {entry.hub_id}", licence]
    return "\n".join([*lines, "---"])


def _title(plan: Plan) -> str:
    if plan.joint:
        return f"{plan.target}, trained jointly with an exit after {plan.early_exit} layers"
    return f"A draft for {plan.target}"


def _origin(plan: Plan) -> str:
    kinds = {
        "draft": f"{plan.draft}, fine-tuned on what {plan.target} answers",
        "init": f"Layers of {plan.target} itself ({plan.init}), fine-tuned on what it answers",
        "early_exit": f"An exit of {plan.target} after {plan.early_exit} layers, trained on what "
        "it answers",
    }
    text = kinds[plan.kind]
    if plan.lora:
        text += f", as an adapter of rank {plan.lora}"
    if plan.joint:
        text += ". Every weight was trained, on the mean of the losses of the exit and of the end"
    return text + ". Made by `biglittle align`, so that it proposes what the target would write."


def _use(plan: Plan, report: AlignReport) -> str:
    from ..pair import DEFAULTS

    given = {name: value for name, value in plan.options.items() if value != DEFAULTS.get(name)}
    options = "".join(f", {name}={value!r}" for name, value in given.items() if value)
    return f"""## Use

```python
import biglittle

pair = biglittle.load({report.target!r}, {report.draft!r}{options})
```

The target checks every token, so with a lossless policy the text is its own."""


def _measured(report: AlignReport) -> str:
    training, before, after = report.training, report.before, report.after
    rows = [
        ("agreement, all held-out answers", _percent(training.before), _percent(training.after)),
        ("accepted of 5 drafted tokens", _percent(before.acceptance), _percent(after.acceptance)),
        (
            "tokens a pass of the target",
            f"{before.tokens_per_pass:.2f}",
            f"{after.tokens_per_pass:.2f}",
        ),
        ("predicted speed-up", f"{before.speedup:.2f}×", f"{after.speedup:.2f}×"),
        ("with the policy", f"`{before.policy}`", f"`{after.policy}`"),
    ]
    rows += [
        (f"alone: {name}", f"{before.quality[name]:.2f}", f"{value:.2f}")
        for name, value in after.quality.items()
    ]
    table = "\n".join(f"| {name} | {first} | {second} |" for name, first, second in rows)
    return f"""## Measured

On held-out answers: {training.held_out}, not trained on.

| | before | after |
| --- | --- | --- |
{table}

Agreement is the share of the target's tokens that the draft would have proposed. The speed-up is
predicted for one text at a time, after its first token, on {platform.machine()} with
{torch.get_num_threads()} threads."""


def _made(plan: Plan, report: AlignReport, command: str) -> str:
    asked = ", ".join(task.name for task in plan.tasks) or "prompts that the target wrote itself"
    lines = [
        f"data: {asked}; {report.training.samples} answers of at most {plan.max_new_tokens} "
        f"tokens, hash `{report.data}`",
        f"training: {report.training.steps} steps; {', '.join(_settings(plan.settings))}",
        f"versions: biglittle {__version__}, transformers {transformers.__version__}, torch "
        f"{torch.__version__}",
    ]
    if command:
        lines.append(f"command: `{command}`")
    return "## Made\n\n" + "\n".join(f"- {line}" for line in lines)


def _settings(settings: Settings) -> Iterator[str]:
    """Settings that say something: all but those that are off."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value not in (None, False, 0.0) or field.name == "seed":
            yield f"{field.name.replace('_', ' ')} {value}"


def _licence(base: str) -> str:
    entry = catalogue.find(base)
    known = f", {entry.licence}," if entry is not None else ""
    return (
        f"## Licence\n\nThe licence of {base}{known} holds for these weights, too; and what the "
        "target's licence says of models that learn from its output."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
