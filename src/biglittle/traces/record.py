"""Recording: a generation of the target, a pass of the draft over it, and short runs beside it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Tensor

from ..decoding import Request, Row
from ..decoding.sampling import process_block
from ..drafters import EarlyExitDrafter, ModelDrafter
from ..engines.base import Runner
from ..errors import ParameterError
from ..lookahead import Constant, DraftStep
from ..lookahead.base import uncertainty
from ..params import make_params
from ..prompts import PromptLike
from ..tensors import argmax, probability
from .base import Header, Proposals, Trace, Traces, describe, digest
from .file import Writer

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["record"]

CAP = 20  # as transformers' dynamic speculation has it
TOP = 10
ROWS = 8  # branches that are run beside each other
BLOCK = 64  # positions whose logits are held at a time


def record(
    pair: Pair,
    prompts: Sequence[PromptLike],
    path: str | Path,
    *,
    cap: int = CAP,
    top: int = TOP,
    outputs: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **changes: Any,
) -> Traces:
    """Record what lookahead rules can be replayed from, for prompts one by one.

    Every trace is written when it is there, so a run that was killed goes on where it was.

    Args:
        pair: A pair with a draft.
        prompts: As for `Pair.generate`.
        path: The trace file, new or to be gone on with.
        cap: The most tokens of a window.
        top: How many of the draft's largest probabilities are kept.
        outputs: What the target writes greedily, a list of tokens a prompt, where that is known
            already; it is not run then.
        progress: Called with prompts done and prompts in all.
        **changes: Generation parameters; decoding is greedy.

    Returns:
        The traces of the prompts, in their order.

    Raises:
        ParameterError: Parameters of sampling, stop strings, or processors of your own; a file
            with something else in it; a pair without a draft.
    """
    requests, header = _prepare(pair, prompts, cap, top, changes)
    writer = Writer(Path(path), header)
    traces = []
    for number, request in enumerate(requests):
        if progress is not None:
            progress(number, len(requests))
        key = _key(request)
        if key not in writer.done:
            known = None if outputs is None else outputs[number]
            writer.add(_Recorder(pair, request, header).trace(key, known))
        traces.append(writer.done[key])
    if progress is not None:
        progress(len(requests), len(requests))
    return Traces(header, tuple(traces))


def _prepare(
    pair: Pair, prompts: Sequence[PromptLike], cap: int, top: int, changes: dict[str, Any]
) -> tuple[list[Request], Header]:
    for name, value in (("cap", cap), ("top", top)):
        if type(value) is not int or value < 1:
            raise ParameterError(f"{name}={value!r} must be a whole number of at least 1")
    params = make_params(None, {"temperature": 0.0, **changes})
    if params.temperature or params.logits_processors or params.stopping_criteria or params.stop:
        raise ParameterError(
            "a trace is of greedy decoding: no temperature, no stop strings, no processors or "
            "criteria of your own"
        )
    drafter = pair.engine().drafter
    if drafter is None:
        raise ParameterError("a trace needs a draft; load the pair with draft=...")
    requests = [pair.requests(prompt, policy="none", params=params)[0] for prompt in prompts]
    settings = {name: value for name, value in sorted(changes.items()) if name != "temperature"}
    header = Header(
        models=describe(pair),
        chained=isinstance(drafter, ModelDrafter),
        cap=cap,
        top=top,
        settings=json.dumps(settings, default=str),
    )
    return requests, header


def _key(request: Request) -> str:
    encoder = request.prompt.encoder or {}
    inputs = {name: value.tolist() for name, value in sorted(encoder.items())}
    return digest([request.prompt.tokens, inputs, request.max_new_tokens])


class _Recorder:
    """The recording of one prompt."""

    def __init__(self, pair: Pair, request: Request, header: Header) -> None:
        self.pair = pair
        self.request = dataclasses.replace(request, seed=0)  # greedy: it draws nothing
        self.cap = header.cap
        self.top = header.top
        engine = pair.engine()
        assert engine.drafter is not None
        self.target, self.drafter = engine.target, engine.drafter
        self.tokens: tuple[int, ...] = ()

    def trace(self, key: str, output: Sequence[int] | None) -> Trace:
        """Run the models; the target only if its output is not known."""
        known = self.pair.run([self.request])[0].token_ids if output is None else output
        self.tokens = tuple(known)
        readable = self._readable()
        with torch.inference_mode():
            if isinstance(self.drafter, ModelDrafter):
                chain, branches = self._chain(self.drafter, readable)
            else:
                chain, branches = Proposals.join([], self.top), self._windows(readable)
        return Trace(
            prompt=self.request.prompt.tokens,
            key=key,
            tokens=self.tokens,
            limit=self.request.max_new_tokens,
            readable=readable,
            context=self.drafter.context,
            chain=chain,
            branches=branches,
        )

    def _readable(self) -> int:
        if not isinstance(self.drafter, ModelDrafter):
            return len(self.tokens)
        known = self.drafter.runner.vocab
        if max(self.request.prompt.tokens) >= known:
            return 0
        unknown = (at for at, token in enumerate(self.tokens) if token >= known)
        return next(unknown, len(self.tokens))

    def _row(self, position: int) -> Row:
        """A row that has written the target's tokens before a position."""
        row = Row(self.request, None)
        row.tokens += self.tokens[:position]
        return row

    # Drafts whose proposals depend on where the window starts.

    def _windows(self, readable: int) -> dict[int, Proposals]:
        starts = range(1, min(len(self.tokens), readable + 1))
        return {start: self._propose([self._row(start)], [self.cap])[0] for start in starts}

    # Drafts with a model.

    def _chain(
        self, drafter: ModelDrafter, readable: int
    ) -> tuple[Proposals, dict[int, Proposals]]:
        """The draft's choices along the target's tokens, and where they lead when they differ."""
        count = min(len(self.tokens) - 1, readable)
        if drafter.context is not None:
            count = min(count, drafter.context - len(self.request.prompt.tokens))
        if count < 1:
            return Proposals.join([], self.top), {}
        owner = self._read_prompt(drafter, count)
        chain = [self._pass(drafter, at, min(at + BLOCK, count)) for at in range(0, count, BLOCK)]
        found = Proposals.join(chain, self.top)
        differing = [at + 1 for at in range(count) if found.tokens[at] != self.tokens[at + 1]]
        branches: dict[int, Proposals] = {}
        for first in range(0, len(differing), ROWS):
            branches |= self._branches(owner, differing[first : first + ROWS])
        # The branches' own first tokens are kept: they were computed as in a real window.
        for position, branch in branches.items():
            for array, value in zip(_arrays(found), _arrays(branch), strict=True):
                array[position - 1] = value[0]
        return found, {
            position: branch[1:]
            for position, branch in branches.items()
            if branch.tokens[0] != self.tokens[position]
        }

    def _read_prompt(self, drafter: ModelDrafter, count: int) -> Runner:
        """Let row 0 of the draft read the prompt; the runner that holds the draft's rows."""
        if not isinstance(drafter, EarlyExitDrafter):
            drafter.admit(self._row(1))
            return drafter.runner
        # The exit's rows are the target's. It is the target that knows the later layers.
        self.target.admit(self.request.prompt)
        drafter.runner.lengths = list(self.target.lengths)
        self.target.forward(self._feed(0, count), [count], last=True)
        return self.target

    def _feed(self, first: int, end: int) -> Tensor:
        return torch.tensor([self.tokens[first:end]], device=self.target.device)

    def _pass(self, drafter: ModelDrafter, first: int, end: int) -> Proposals:
        """What the draft would choose after each of the tokens first … end − 1."""
        runner = drafter.runner
        logits = runner.forward(self._feed(first, end).to(runner.device), [end - first])
        row, rest = self._row(first + 1), self.tokens[first + 1 : end]
        scores = process_block([row], [rest], logits[..., : drafter.vocab])[0]
        chosen = argmax(scores)
        return _proposals(chosen, probability(scores, chosen), *uncertainty(scores, self.top))

    def _branches(self, owner: Runner, positions: Sequence[int]) -> dict[int, Proposals]:
        """Windows that start at positions, in rows of their own beside row 0."""
        length = len(self.request.prompt.tokens)
        for _ in positions:
            owner.fork(0)
        owner.truncate([owner.lengths[0], *[length + position - 1 for position in positions]])
        rows = [self._row(1), *[self._row(position) for position in positions]]
        found = self._propose(rows, [0] + [self.cap] * len(positions))
        for row in range(len(positions), 0, -1):
            owner.release(row)
        return dict(zip(positions, found[1:], strict=True))

    def _propose(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Proposals]:
        """What the drafter proposes when nothing stops it."""
        steps: list[Proposals] = []

        def go_on(step: DraftStep) -> Tensor:
            steps.append(_proposals(step.tokens, step.confidence, *step.uncertainty(self.top)))
            return Constant().decide(step, ())

        draft = self.drafter.propose(rows, budgets, go_on)
        return [
            Proposals.join([step[row : row + 1] for step in steps[: len(part.ids)]], self.top)
            for row, part in enumerate(draft.rows)
        ]


def _proposals(tokens: Tensor, confidence: Tensor, top: Tensor, entropy: Tensor) -> Proposals:
    return Proposals(
        tokens.to("cpu", torch.int32).numpy(),
        confidence.float().cpu().numpy(),
        top.cpu().numpy(),
        entropy.cpu().numpy(),
    )


def _arrays(part: Proposals) -> tuple[npt.NDArray[Any], ...]:
    return part.tokens, part.confidence, part.top, part.entropy
