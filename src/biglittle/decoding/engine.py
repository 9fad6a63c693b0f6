"""The decode loop: a drafter proposes, the target scores, an acceptance rule says what stays."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from ..drafters.base import Draft, Drafter, RowDraft
from ..engines.base import Runner
from ..lookahead.base import DraftStep
from ..results import FinishReason, Origin, Round, TokenLogprob
from .judging import Ruling, goes_unverified, judge_rows
from .rows import Request, Row, by_key

__all__ = ["Engine"]


class Engine:
    """Rows that decode together: `admit` requests, `step` until done, `cancel` at any time.

    Args:
        target: Runner of the big model.
        drafter: Proposes tokens; None for plain decoding.
        tokenizer: Turns tokens into text; None for token ids only.
        vocab: Ids that may be emitted; what the head has beyond is padding.
    """

    def __init__(
        self, target: Runner, drafter: Drafter | None, tokenizer: Any = None, *, vocab: int
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.vocab = vocab
        self.rows: list[Row] = []
        self._waiting: deque[Row] = deque()
        self._drafted_for = 0  # rows that the drafter has admitted: the first so many

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self.rows or self._waiting)

    def admit(self, request: Request) -> Row:
        """Queue a request; its row starts with the next `step`."""
        row = Row(request, self.tokenizer)
        self._waiting.append(row)
        return row

    def cancel(self, row: Row) -> None:
        """End a row now; what it wrote stays."""
        if row.finished:
            return
        row.finish(FinishReason.CANCELLED)
        if row in self._waiting:
            self._waiting.remove(row)
        self._release_finished()

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Start waiting rows, or run one round of the active ones; the rows that took part."""
        starting = self._admissible()
        rows = starting or list(self.rows)
        before = self._clock()
        if starting:
            self._start(starting)
        elif rows:
            self._round()
        self._charge(rows, before)
        self._release_finished()
        return rows

    # One round.

    def _round(self) -> None:
        """Draft, verify, judge, commit: all rows at once."""
        rows = self.rows
        draft = self._propose([self._budget(row) for row in rows])
        counts = [len(part.ids) for part in draft.rows]
        if all(map(goes_unverified, rows, draft.rows)):
            self._commit(draft, [Ruling(count, None) for count in counts], None)
            return
        logits = self.target.forward(self._block(draft), [1 + count for count in counts])
        logits = logits[..., : self.vocab]  # [rows, width + 1, vocab]
        self._commit(draft, judge_rows(rows, draft, logits), logits)
        lengths = [len(row.tokens) - 1 for row in rows]  # all but the pending token
        self.target.truncate(lengths)
        if self.drafter and self._drafted_for:
            self.drafter.truncate(lengths[: self._drafted_for])

    def _budget(self, row: Row) -> int:
        """Most tokens to draft: the lookahead's budget, within what the row may still write.

        The target adds a token of its own, so drafting the last one allowed would be for nothing;
        unless it goes unverified.
        """
        if row.lookahead is None or row.hold or self.drafter is None:
            return 0
        room = row.remaining - (1 if row.acceptance.verify_end else 0)
        return max(0, min(row.lookahead.budget(row.lookahead_state), room))

    def _propose(self, budgets: list[int]) -> Draft:
        if self.drafter is None or not any(budgets):
            return Draft([RowDraft([], [], open=False) for _ in budgets])
        self._admit_to_drafter()
        return self.drafter.propose(self.rows, budgets, self._decide)

    def _decide(self, step: DraftStep) -> Tensor:
        """Every row's lookahead on the token that was just drafted, [rows] int8."""
        groups = by_key([row.lookahead for row in self.rows])
        if len(groups) == 1:
            rule = groups[0][0]
            return rule.decide(step, [row.lookahead_state for row in self.rows])  # type: ignore[no-any-return]
        decisions = torch.zeros_like(step.tokens, dtype=torch.int8)
        for rule, indices in groups:
            if rule is not None:
                states = [
                    row.lookahead_state if row.lookahead == rule else None for row in self.rows
                ]
                decisions[indices] = rule.decide(step, states)[indices]
        return decisions

    def _block(self, draft: Draft) -> Tensor:
        """Pending token and draft of every row, [rows, width + 1]."""
        width = draft.width
        return torch.tensor(
            [
                [row.tokens[-1], *part.ids, *[0] * (width - len(part.ids))]
                for row, part in zip(self.rows, draft.rows, strict=True)
            ],
            device=self.target.device,
        )

    # Committing.

    def _commit(self, draft: Draft, rulings: list[Ruling], logits: Tensor | None) -> None:
        for index, (row, part, ruling) in enumerate(
            zip(self.rows, draft.rows, rulings, strict=True)
        ):
            seen = self._count(row, part, ruling, verified=logits is not None)
            emitted = self._emit(row, part, ruling, None if logits is None else logits[index])
            row.stats.accepted += min(ruling.accepted, emitted)
            row.hold = seen.accepted < seen.drafted and row.acceptance.after_rollback == "target"
            if row.lookahead is not None:
                row.lookahead_state = row.lookahead.observe(row.lookahead_state, seen)
            if ruling.error is not None and not row.finished:
                row.fail(ruling.error)

    @staticmethod
    def _count(row: Row, part: RowDraft, ruling: Ruling, *, verified: bool) -> Round:
        stats = row.stats
        stats.rounds += 1
        stats.target_passes += verified
        stats.draft_passes += part.passes
        stats.predicted += part.predicted
        stats.drafted += len(part.ids)
        stats.fallbacks += part.dropped
        stats.rollbacks += ruling.error is None and ruling.accepted < len(part.ids)
        seen = Round(len(part.ids), ruling.accepted, tuple(part.confidence), part.dropped)
        if row.request.trace:
            row.trace.append(seen)
        return seen

    def _emit(self, row: Row, part: RowDraft, ruling: Ruling, logits: Tensor | None) -> int:
        """Commit a row's tokens one by one until it ends; how many were committed."""
        tokens = part.ids[: ruling.accepted]
        origins = [Origin.ACCEPTED] * len(tokens)
        if ruling.next_token is not None:
            rejected = ruling.accepted < len(part.ids)
            tokens = [*tokens, ruling.next_token]
            origins.append(Origin.CORRECTED if rejected else Origin.TARGET)
        for position, (token, origin) in enumerate(zip(tokens, origins, strict=True)):
            if logits is not None:
                self._keep(row, token, logits[position], ruling, position)
            try:
                ended = row.push(token, origin)
            except Exception as cause:  # the request's own criteria or callbacks
                row.fail(cause)
                ended = True
            if ended:
                return position + 1
        return len(tokens)

    @staticmethod
    def _keep(row: Row, token: int, raw: Tensor, ruling: Ruling, position: int) -> None:
        """What the request wants to know of the position that a token came from."""
        request = row.request
        if request.keep_logits:
            row.logits.append(raw.float().clone())
        if request.keep_scores and ruling.scores is not None:
            row.scores.append(ruling.scores[position].float().clone())
        if request.logprobs is not None:
            row.logprobs.append(logprob(raw, token, request.logprobs))

    # Rows coming and going.

    def _admissible(self) -> list[Row]:
        limits = (self.target.limits.rows, self.drafter.max_rows if self.drafter else None)
        room = min((rows - len(self.rows) for rows in limits if rows), default=len(self._waiting))
        return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]

    def _start(self, rows: list[Row]) -> None:
        """Read the prompts. The logits after a prompt give its first token for nothing, as a round
        with nothing drafted, unless the policy wants the draft to write it."""
        known: dict[int, tuple[int, Tensor]] = {}  # samples of one prompt read it once
        for row in rows:
            prompt = row.request.prompt
            if id(prompt) in known:
                source, logits = known[id(prompt)]
                self.target.fork(source)
                row.stats.reused_tokens = len(prompt.tokens)
            else:
                saved = row.request.saved[0] if row.request.saved else None
                logits = self.target.admit(prompt, saved).clone()  # borrowed until the next one
                row.stats.reused_tokens = self.target.reused
                row.stats.target_passes += 1
                known[id(prompt)] = len(self.rows), logits
            self.rows.append(row)
        first = [row for row in rows if row.lookahead is None or row.acceptance.first == "target"]
        if first:
            self._first_tokens(first, [known[id(row.request.prompt)][1] for row in first])
        self.target.truncate([len(row.tokens) - 1 for row in self.rows])

    def _first_tokens(self, rows: list[Row], logits: list[Tensor]) -> None:
        """Judge rows with nothing drafted; their logits [1, vocab]."""
        nothing = Draft([RowDraft([], [], open=False) for _ in rows])
        stacked = torch.stack(logits)[..., : self.vocab]  # [rows, 1, vocab]
        rulings = judge_rows(rows, nothing, stacked)
        for row, part, ruling, raw in zip(rows, nothing.rows, rulings, stacked, strict=True):
            if ruling.error is not None:
                row.fail(ruling.error)
            else:
                self._emit(row, part, ruling, raw)

    def _admit_to_drafter(self) -> None:
        """Let the drafter catch up with the rows that it has not seen."""
        if self.drafter is None:
            return
        for row in self.rows[self._drafted_for :]:
            self.drafter.admit(row, row.request.saved[1] if row.request.saved else None)
        self._drafted_for = len(self.rows)

    def _release_finished(self) -> None:
        """Give finished rows' numbers away, from the last row down."""
        for index in reversed([i for i, row in enumerate(self.rows) if row.finished]):
            if self.drafter is not None and index < self._drafted_for:
                if self._drafted_for < len(self.rows):
                    self._admit_to_drafter()  # both sides move the same last row
                self._save(index)
                self.drafter.release(index)
                self._drafted_for -= 1
            else:
                self._save(index)
            self.target.release(index)
            last = self.rows.pop()
            if index < len(self.rows):
                self.rows[index] = last

    def _save(self, index: int) -> None:
        row = self.rows[index]
        if not row.request.keep_state or row.finish_reason is FinishReason.ERROR:
            return
        drafted = self.drafter is not None and index < self._drafted_for
        row.saved = (
            self.target.save(index, row.tokens),
            self.drafter.save(index, row.tokens) if self.drafter and drafted else None,
        )

    # Time.

    def _clock(self) -> tuple[float, float]:
        return self.target.stopwatch.seconds, self.drafter.seconds if self.drafter else 0.0

    def _charge(self, rows: list[Row], before: tuple[float, float]) -> None:
        target, draft = (now - then for now, then in zip(self._clock(), before, strict=True))
        for row in rows:
            row.stats.target_seconds += target
            row.stats.draft_seconds += draft


def logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probabilities of one position, from raw logits [vocab]."""
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.topk(min(top, logprobs.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return TokenLogprob(token, float(logprobs[token]), tuple(pairs))
