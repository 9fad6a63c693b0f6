"""What prompt lookup would have proposed along a recorded text: no model is needed to know."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..decoding import Request, Row
from ..drafters import PromptLookupDrafter
from ..lookahead import Constant, DraftStep
from ..traces import Proposals, Trace, Traces

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["lookup_traces"]


def lookup_traces(traces: Traces, requests: Sequence[Request], pair: Pair, ngram: int) -> Traces:
    """The traces that prompt lookup would have left on the same texts.

    Args:
        traces: Of any drafter.
        requests: The prompts' requests, in the same order.
        pair: Its vocabulary bounds what may be copied.
        ngram: The longest n-gram to look for.
    """
    drafter = PromptLookupDrafter(ngram, vocab=pair.vocab)
    header = dataclasses.replace(
        traces.header,
        models={**traces.header.models, "draft": f"prompt-lookup:ngram={ngram}"},
        chained=False,
    )
    found = [
        _trace(trace, request, drafter, header.cap, header.top)
        for trace, request in zip(traces, requests, strict=True)
    ]
    return Traces(header, tuple(found))


def _trace(
    trace: Trace, request: Request, drafter: PromptLookupDrafter, cap: int, top: int
) -> Trace:
    row = Row(dataclasses.replace(request, seed=0), None)
    branches = {}
    for position, token in enumerate(trace.tokens[:-1], start=1):
        row.tokens.append(token)
        ids = drafter.propose([row], [cap], _go_on).rows[0].ids
        branches[position] = _sure(ids, top)
    return dataclasses.replace(
        trace,
        readable=len(trace.tokens),
        context=drafter.context,
        chain=_sure([], top),
        branches=branches,
    )


def _sure(ids: Sequence[int], top: int) -> Proposals:
    """Copied tokens: they have no probability and count as certain."""
    best = np.zeros((len(ids), top), np.float32)
    best[:, 0] = 1.0
    ones, zeros = np.ones(len(ids), np.float32), np.zeros(len(ids), np.float32)
    return Proposals(np.array(ids, np.int32), ones, best, zeros)


def _go_on(step: DraftStep) -> Tensor:
    return Constant().decide(step, ())
