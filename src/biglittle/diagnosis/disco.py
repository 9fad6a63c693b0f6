"""What DISCO would give: a classifier trained on some of the prompts, replayed on the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ..errors import ParameterError
from ..lookahead import Disco
from ..policy import Policy
from ..traces import Replay, Traces, fit_disco, replay
from .predict import THRESHOLDS, Candidate, windows_up_to

__all__ = ["disco_candidates"]

FOLDS = 2
PROMPTS = 6  # at least, so that a classifier sees three
TOKENS = 200  # at least, of all prompts


def disco_candidates(traces: Traces, path: Path) -> list[Candidate]:
    """Every setting of DISCO; a prompt's rounds are those of a classifier that has not seen it.

    Args:
        traces: Of a draft with a distribution.
        path: Where a classifier goes that was trained on all prompts: the policies name it.

    Raises:
        ParameterError: Too little to learn from, or a path that cannot be used; why, in a line.
    """
    count, tokens = len(traces), sum(len(trace.tokens) for trace in traces)
    if count < PROMPTS or tokens < TOKENS:
        raise ParameterError(
            f"DISCO learns from at least {PROMPTS} prompts and {TOKENS} tokens, and these are "
            f"{count} and {tokens}; give more prompts"
        )
    fit_disco(traces, path)
    rules = [
        Disco(str(path), threshold, tokens)
        for threshold in THRESHOLDS
        for tokens in windows_up_to(traces.header.cap)
    ]
    draft = traces.header.models["draft"]
    return [
        Candidate("disco", draft, str(Policy(rule)), rounds, models=True)
        for rule, rounds in zip(rules, _held_out(traces, rules), strict=True)
    ]


def _held_out(traces: Traces, rules: Sequence[Disco]) -> list[Replay]:
    """The rules' rounds, by classifiers that were trained on the other prompts."""
    folds = [np.arange(fold, len(traces), FOLDS) for fold in range(FOLDS)]
    parts: list[list[Replay]] = []
    with TemporaryDirectory() as folder:
        for fold, own in enumerate(folds):
            path = Path(folder) / f"{fold}.safetensors"
            fit_disco(_part(traces, [i for i in range(len(traces)) if i not in own]), path)
            held = _part(traces, own)
            moved = [dataclasses.replace(rule, path=str(path)) for rule in rules]
            parts.append([replay(held, Policy(rule)) for rule in moved])
    return [
        Replay.join(list(zip(folds, rounds, strict=True))) for rounds in zip(*parts, strict=True)
    ]


def _part(traces: Traces, prompts: Iterable[int]) -> Traces:
    return Traces(traces.header, tuple(traces.traces[prompt] for prompt in prompts))
