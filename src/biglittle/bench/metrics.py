"""The quality of outputs: BLEU, chrF, ROUGE-L, exact match and pass@1."""

from __future__ import annotations

import os
import re
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import zip_longest
from statistics import fmean
from typing import Any

from ..errors import ParameterError, nearest
from . import code
from .tasks import Example, Task

__all__ = ["METRICS", "Score", "check", "exact_match", "final_number", "score"]


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a task's outputs, 0 … 100."""

    name: str
    value: float
    """In the metric's usual unit: BLEU, chrF and ROUGE-L points, or per cent of the examples."""
    per_example: tuple[float, ...]
    """In the order of the task, for resampling; BLEU and chrF of single sentences, whose mean is
    not the corpus's."""
    signature: str
    """How it was computed."""


def check(task: Task) -> None:
    """Raise `ParameterError` for a metric that the task cannot be judged by.

    That is one that is unknown, whose package is not installed, or that needs references or tests
    which an example does not have.
    """
    for name in task.metrics:
        if name not in METRICS:
            known = ", ".join(METRICS)
            raise ParameterError(f"metric {name!r} is none of {known}{nearest(name, METRICS)}")
        package = PACKAGES.get(name)
        if package is not None and find_spec(package.replace("-", "_")) is None:
            raise ParameterError(
                f"metric {name!r} needs the package {package}: pip install 'biglittle[bench]'"
            )
        wanted = "tests" if name == "pass@1" else "references"
        for example in task.examples:
            if not getattr(example, wanted):
                raise ParameterError(
                    f"metric {name!r} needs {wanted}, but example {example.id!r} of task "
                    f"{task.name!r} has none"
                )


def score(metric: str, task: Task, outputs: Mapping[str, str], *, run_code: bool = False) -> Score:
    """Judge a task's outputs by one metric.

    Args:
        metric: "bleu" and "chrf" (sacrebleu, with its defaults); "rougeL" (rouge-score, F1 with
            stemming, the best of several references); "exact_match" (see `exact_match`);
            "pass@1" (the share of answers that pass their tests, one answer each).
        task: What was asked.
        outputs: The text of the first answer by the example's id. Examples without one are left
            out.
        run_code: Whether code that a model wrote may be run on this machine, as pass@1 does; see
            `biglittle.bench.code` for what holds it in check.

    Raises:
        ParameterError: A metric that the task cannot be judged by, no output at all, or pass@1
            without `run_code`.
    """
    check(replace(task, metrics=(metric,)))
    if metric == "pass@1" and not run_code:
        raise ParameterError(
            "pass@1 runs code that a model wrote on this machine; ask for it with run_code=True "
            "(--run-code)"
        )
    examples = [example for example in task.examples if example.id in outputs]
    if not examples:
        raise ParameterError(f"task {task.name!r} has no outputs to judge")
    return METRICS[metric](task, examples, [outputs[example.id] for example in examples])


# Text.


def _bleu(task: Task, examples: Sequence[Example], answers: Sequence[str]) -> Score:
    from sacrebleu.metrics.bleu import BLEU

    return _corpus("bleu", BLEU(), BLEU(effective_order=True), examples, answers)


def _chrf(task: Task, examples: Sequence[Example], answers: Sequence[str]) -> Score:
    from sacrebleu.metrics.chrf import CHRF

    return _corpus("chrf", CHRF(), CHRF(), examples, answers)


def _corpus(
    name: str, corpus: Any, sentence: Any, examples: Sequence[Example], answers: Sequence[str]
) -> Score:
    """A metric of sacrebleu; its signature is known once it has seen the references."""
    references = [example.references for example in examples]
    streams = [list(stream) for stream in zip_longest(*references)]  # None where one has fewer
    value = corpus.corpus_score(list(answers), streams).score
    each = tuple(
        sentence.sentence_score(answer, list(texts)).score
        for answer, texts in zip(answers, references, strict=True)
    )
    return Score(name, value, each, str(corpus.get_signature()))


def _rouge_l(task: Task, examples: Sequence[Example], answers: Sequence[str]) -> Score:
    module = import_module("rouge_score.rouge_scorer")  # without types
    scorer = module.RougeScorer(["rougeL"], use_stemmer=True)
    each = tuple(
        100 * scorer.score_multi(example.references, answer)["rougeL"].fmeasure
        for example, answer in zip(examples, answers, strict=True)
    )
    signature = f"rougeL|f1|stemmer:porter|references:best|version:{version('rouge-score')}"
    return Score("rougeL", fmean(each), each, signature)


# Answers.

NUMBER = re.compile(r"(?<![\w.])-?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
ONE_NUMBER = re.compile(rf"\s*(?:{NUMBER.pattern})\s*[%.]?\s*")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(answer: str, reference: str) -> bool:
    """Whether an answer is right.

    What counts of a reference is what follows its last `####`, as in GSM8K, or all of it. If that
    is a number, the last number of the answer must be equal to it: commas between thousands,
    dollar and percent signs, trailing periods and zeros do not matter. If it is not, both texts
    must be the same but for case, punctuation, articles and white space, as in SQuAD.
    """
    wanted = reference.rpartition("####")[2].replace("−", "-")
    if ONE_NUMBER.fullmatch(wanted):
        return final_number(answer) == final_number(wanted)
    return _normalized(answer) == _normalized(wanted)


def final_number(text: str) -> Decimal | None:
    """The last number of a text; None if there is none."""
    found = NUMBER.findall(text.replace("−", "-"))
    return Decimal(found[-1].replace("$", "").replace(",", "")) if found else None


def _normalized(text: str) -> str:
    words = text.lower().translate(PUNCTUATION).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def _exact_match(task: Task, examples: Sequence[Example], answers: Sequence[str]) -> Score:
    each = tuple(
        100.0 * any(exact_match(answer, reference) for reference in example.references)
        for example, answer in zip(examples, answers, strict=True)
    )
    return Score("exact_match", fmean(each), each, "exact_match|numbers:last|text:squad")


# Code.

WORKERS = 8  # programs at a time: they may share a limit on processes


def _pass_at_1(task: Task, examples: Sequence[Example], answers: Sequence[str]) -> Score:
    limits = code.Limits()

    def passes(example: Example, answer: str) -> float:
        assert example.tests is not None
        made = code.program(answer, example.tests, chat=example.chat, stop=task.stop)
        return 100.0 * code.run(made, example.tests.tests, limits).passed

    with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        each = tuple(pool.map(passes, examples, answers))
    python = ".".join(map(str, sys.version_info[:3]))
    signature = f"pass@1|samples:1|seconds:{limits.seconds:g}|python:{python}"
    return Score("pass@1", fmean(each), each, signature)


METRICS: dict[str, Callable[[Task, Sequence[Example], Sequence[str]], Score]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "rougeL": _rouge_l,
    "exact_match": _exact_match,
    "pass@1": _pass_at_1,
}
"""Metrics by name."""

PACKAGES = {"bleu": "sacrebleu", "chrf": "sacrebleu", "rougeL": "rouge-score"}
