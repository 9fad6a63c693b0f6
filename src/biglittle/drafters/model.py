"""A little model as the drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..acceptance.base import sample
from ..decoding.sampling import apply_pointwise
from ..engines.base import Prompt, Runner, Saved
from ..lookahead.base import DraftStep
from ..tensors import argmax, probability
from .base import Decide, Draft, RowDraft

if TYPE_CHECKING:
    from ..decoding.rows import Row

__all__ = ["ModelDrafter"]

CHUNK = 512  # tokens of a row that are caught up with in one forward
APART = 32  # a row that is further behind is read by itself: others would be padded to its width


class ModelDrafter:
    """Drafts with a model of its own, one token of all rows a forward.

    Args:
        runner: The little model's.
        vocab: Ids that both models know; none beyond is drafted.
    """

    reads_target = False

    def __init__(self, runner: Runner, vocab: int) -> None:
        self.runner = runner
        self.vocab = vocab
        self.context = runner.limits.context
        self.max_rows = runner.limits.rows

    @property
    def seconds(self) -> float:
        """See `Drafter.seconds`."""
        return self.runner.stopwatch.seconds

    def admit(
        self,
        row: Row,
        saved: Saved | None = None,
        *,
        twin: tuple[int, int] | None = None,
        most: int | None = None,
    ) -> None:
        """See `Drafter.admit`. Reads all but the pending token."""
        tokens = row.tokens
        if not self._readable(tokens):
            tokens, twin = [0], None  # dropped out from the start: it only keeps its number
        if twin is not None:
            other, shared = twin
            self.runner.fork(other, min(shared, self.runner.lengths[other], len(tokens) - 1))
            return
        prompt = Prompt(tuple(tokens[:-1] or tokens), own_inputs(row.request.prompt.encoder))
        if prompt.bare and len(tokens) == 1:
            most = 0  # the first draft step feeds it
        self.runner.admit(prompt, saved, most=most)
        self.runner.truncate([*self.runner.lengths[:-1], len(tokens) - 1])

    def truncate(self, lengths: Sequence[int]) -> None:
        """See `Drafter.truncate`."""
        self.runner.truncate(lengths)

    def release(self, row: int) -> None:
        """See `Drafter.release`."""
        self.runner.release(row)

    def save(self, row: int, tokens: Sequence[int]) -> Saved | None:
        """See `Drafter.save`."""
        return self.runner.save(row, tokens)

    def propose(
        self,
        rows: Sequence[Row],
        budgets: Sequence[int],
        decide: Decide,
        *,
        most: int | None = None,
    ) -> Draft:
        """See `Drafter.propose`."""
        lengths = self.runner.lengths[: len(rows)]
        budgets = [
            self._clamp(row, length, budget)
            for row, length, budget in zip(rows, lengths, budgets, strict=True)
        ]
        if most is not None or len(rows) > 1:
            self._catch_up(rows, budgets, most)
        drafts = [RowDraft([], [], open=budget > 0) for budget in budgets]
        keep_q = any(row.pipeline.sampling and row.acceptance.needs_q for row in rows)
        q: list[Tensor] = []
        before: list[Tensor] = []
        feed = self._unread(rows, drafts)
        for index in range(max(budgets, default=0)):
            logits = self._read(feed, drafts)
            step, probabilities = self._choose(logits, rows, drafts, tuple(before))
            decisions = decide(step)
            before.append(step.confidence)
            if keep_q and probabilities is not None:
                q.append(probabilities)
            # The one synchronisation of a drafted token.
            told = torch.stack([step.tokens.double(), decisions.double(), step.confidence.double()])
            for i, (token, decision, confidence) in enumerate(told.T.tolist()):
                if drafts[i].open:
                    last = index + 1 >= budgets[i] or int(token) in rows[i].request.eos_ids
                    drafts[i].push(int(token), int(decision), confidence, last=last)
            if not any(draft.open for draft in drafts):
                break
            feed = [[draft.ids[-1]] if draft.open else [] for draft in drafts]
        return self._finish(drafts, q)

    def _readable(self, tokens: Sequence[int]) -> bool:
        """Whether they fit in the draft's context and in its vocabulary."""
        fits = self.context is None or len(tokens) <= self.context
        return fits and max(tokens) < self.runner.vocab

    def _clamp(self, row: Row, length: int, budget: int) -> int:
        """A row that fills the draft's context, or holds a token that the draft does not know, is
        drafted for no longer."""
        if budget == 0 or max(row.tokens[length:]) >= self.runner.vocab:
            return 0
        if self.context is None:
            return budget
        return max(0, min(budget, self.context - len(row.tokens) + 1))

    def _catch_up(self, rows: Sequence[Row], budgets: list[int], most: int | None) -> None:
        """Read what is far behind, `most` tokens in all; what is behind still gets no budget."""
        for index, row in enumerate(rows):
            unread = row.tokens[self.runner.lengths[index] : -1]
            if budgets[index] == 0 or len(unread) <= APART:
                continue
            now = unread if row.bound else unread[:most]
            for at in range(0, len(now), CHUNK):
                self.runner.read(index, now[at : at + CHUNK])
            most = None if most is None else max(0, most - len(now))
            if len(now) < len(unread):
                budgets[index] = 0

    def _unread(self, rows: Sequence[Row], drafts: Sequence[RowDraft]) -> list[list[int]]:
        """What the model has not read yet: the pending token, and what the target wrote alone."""
        lengths = self.runner.lengths
        return [row.tokens[lengths[i] :] if drafts[i].open else [] for i, row in enumerate(rows)]

    def _read(self, feed: list[list[int]], drafts: Sequence[RowDraft]) -> Tensor:
        """Append tokens to the rows; the logits after each row's last one, [rows, vocab]."""
        for draft in drafts:
            draft.passes += draft.open
        while max(map(len, feed)) > CHUNK:
            # A row is never left with nothing to read: its logits come with its last token.
            now = [tokens[: min(CHUNK, len(tokens) - 1)] for tokens in feed]
            self._forward(now)
            feed = [tokens[len(part) :] for tokens, part in zip(feed, now, strict=True)]
        return self._forward(feed)[:, 0, : self.vocab]

    def _forward(self, feed: list[list[int]]) -> Tensor:
        width = max(map(len, feed))
        tokens = torch.tensor(
            [tokens + [0] * (width - len(tokens)) for tokens in feed], device=self.runner.device
        )
        return self.runner.forward(tokens, [len(tokens) for tokens in feed], last=True)

    def _choose(
        self,
        logits: Tensor,
        rows: Sequence[Row],
        drafts: Sequence[RowDraft],
        before: tuple[Tensor, ...],
    ) -> tuple[DraftStep, Tensor | None]:
        """The next token of every row, and the distributions [rows, vocab] if any row samples."""
        logits = self._process(logits, rows, drafts)
        tokens = argmax(logits)
        drafting = sum(draft.open for draft in drafts)
        if not any(row.pipeline.sampling for row in rows):
            top = probability(logits, tokens)
            step = DraftStep(len(before), tokens, top, top, logits, before, drafting=drafting)
            return step, None
        probabilities = logits.float().softmax(-1)
        sampling = [
            row.pipeline.sampling and draft.open for row, draft in zip(rows, drafts, strict=True)
        ]
        draws = [
            row.uniforms(1) if draw else torch.zeros(1).double()
            for row, draw in zip(rows, sampling, strict=True)
        ]
        drawn = sample(probabilities, torch.cat(draws).to(logits.device))
        # Logits of a row that no longer drafts mean nothing: nothing may be drawn from them.
        possible = drawn < probabilities.shape[-1]
        possible &= torch.tensor(sampling, device=logits.device)
        tokens = torch.where(possible, drawn, tokens)
        confidence = probabilities.gather(-1, tokens[:, None]).squeeze(-1)
        top = probabilities.amax(-1)
        step = DraftStep(len(before), tokens, confidence, top, logits, before, drafting=drafting)
        return step, probabilities

    def _process(self, logits: Tensor, rows: Sequence[Row], drafts: Sequence[RowDraft]) -> Tensor:
        """The rows' own processors, but for the user's, which see accepted prefixes only."""
        pipelines = [row.pipeline for row in rows]
        if not any(p.prefix or p.pointwise for p in pipelines):
            return logits
        logits = logits.to(pipelines[0].device or logits.device)  # processors hold tensors
        first = pipelines[0].pointwise
        if all(not p.prefix and p.pointwise is first for p in pipelines):
            return apply_pointwise(first, logits)
        return torch.stack(
            [
                row.pipeline.at(row.tokens + draft.ids, logits[i], custom=False)
                for i, (row, draft) in enumerate(zip(rows, drafts, strict=True))
            ]
        )

    def _finish(self, drafts: list[RowDraft], q: list[Tensor]) -> Draft:
        draft = Draft(drafts)
        if q and draft.width:
            draft.q = torch.stack(q[: draft.width], dim=1)
        return draft


def own_inputs(encoder: Mapping[str, Tensor] | None) -> Mapping[str, Tensor] | None:
    """What the draft's own encoder reads: the inputs without the target's encoder's answer."""
    if encoder is None:
        return None
    return {name: value for name, value in encoder.items() if name != "encoder_outputs"}
