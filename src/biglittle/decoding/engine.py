"""The decode loop: a drafter proposes, the target scores, an acceptance rule says what stays."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from ..drafters.base import Draft, Drafter, RowDraft
from ..engines.base import Runner, Saved, common
from ..errors import ContextError
from ..lookahead.base import DraftStep
from ..results import FinishReason, Origin, Round, TokenLogprob
from .capacity import Capacity
from .judging import Ruling, goes_unverified, judge_rows
from .prefixes import Beginning, Prefixes
from .rows import Request, Row, by_key

__all__ = ["Engine"]

ALL = sys.maxsize  # tokens


class Engine:
    """Rows that decode together: `admit` requests, `step` until done, `cancel` at any time.

    Args:
        target: Runner of the big model.
        drafter: Proposes tokens; None for plain decoding.
        tokenizer: Turns tokens into text; None for token ids only.
        vocab: Ids that may be emitted; what the head has beyond is padding.
        capacity: How much it takes on at a time.

    The target's rows are, in this order: those that the drafter knows, the other running ones, and
    at most one whose prompt is being read.
    """

    def __init__(
        self,
        target: Runner,
        drafter: Drafter | None,
        tokenizer: Any = None,
        *,
        vocab: int,
        capacity: Capacity | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.vocab = vocab
        self.capacity = capacity or Capacity()
        self.rows: list[Row] = []
        """Those that run."""
        self._waiting: deque[Row] = deque()
        self._reading: Row | None = None  # a row of which the target has read a part
        self._drafted_for = 0  # rows that the drafter has admitted: the first so many
        self._prefixes = Prefixes(self.capacity.prefix_tokens)

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        return bool(self._held or self._waiting)

    @property
    def waiting(self) -> int:
        """Requests that have not been begun."""
        return len(self._waiting)

    @property
    def reserved(self) -> int:
        """Tokens of the target's keys and values that the begun rows may come to."""
        return self._room([row.most_tokens for row in self._held])

    @property
    def kept_tokens(self) -> int:
        """Tokens of ended rows whose state is kept."""
        return self._prefixes.tokens

    def admit(self, request: Request) -> Row:
        """Queue a request; its row starts with a `step` that has room for it.

        Raises:
            ContextError: It needs more than `Capacity.kv_tokens` by itself.
        """
        row = Row(request, self.tokenizer)
        limit = self.capacity.kv_tokens
        if limit is not None and row.most_tokens > limit:
            raise ContextError(
                f"a prompt of {row.prompt_length} tokens and {request.max_new_tokens} new ones do "
                f"not fit in kv_tokens={limit}; shorten the prompt, or lower max_new_tokens"
            )
        self._waiting.append(row)
        return row

    def cancel(self, row: Row) -> None:
        """End a row now; what it wrote stays."""
        if row.finished:
            return
        row.finish(FinishReason.CANCELLED)
        if row in self._waiting:
            self._waiting.remove(row)
        if row is self._reading:
            self._reading = None
            self.target.release(len(self.rows))
        self._release_finished()

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Start waiting rows, or run one round of the active ones; the rows that took part. Where
        prompts are read in chunks, a chunk and a round."""
        before = self._clock()
        rows = self._start()
        if self.capacity.chunk is not None or not rows:
            self._release_finished()  # what ended with its first token
            rows = list(dict.fromkeys([*rows, *self.rows]))
            if self.rows:
                self._round()
        self._charge(rows, before)
        self._release_finished()
        return rows

    # One round.

    def _round(self) -> None:
        """Draft, verify, judge, commit: all rows at once."""
        draft = self._propose()
        rows = self.rows
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

    def _budgets(self) -> dict[Row, int]:
        """The most tokens to draft for every row. Where rows are padded, those that draft are asked
        again if they are not all."""
        budgets = {row: self._budget(row) for row in self.rows}
        drafting = sum(map(bool, budgets.values()))
        if self.target.limits.pooled or drafting == len(self.rows):
            return budgets
        return {row: most and self._budget(row, drafting) for row, most in budgets.items()}

    def _budget(self, row: Row, drafting: int | None = None) -> int:
        """Most tokens to draft: the lookahead's budget, within what the row may still write.

        The target adds a token of its own, so drafting the last one allowed would be for nothing;
        unless it goes unverified.
        """
        if row.lookahead is None or row.hold or self.drafter is None:
            return 0
        room = row.remaining - (1 if row.acceptance.verify_end else 0)
        rows = 1 if row.bound else len(self.rows)
        wanted = row.lookahead.budget(row.lookahead_state, rows, drafting)
        return max(0, min(wanted, room))

    def _propose(self) -> Draft:
        """What the drafter proposes; nothing for rows that it does not know."""
        wanted = self._budgets()
        self._admit_to_drafter([row for row in self.rows if wanted[row]])
        known = self.rows[: self._drafted_for]
        budgets = [wanted[row] for row in known]
        draft = Draft([])
        if self.drafter is not None and any(budgets):
            draft = self.drafter.propose(known, budgets, self._decide, most=self.capacity.chunk)
        others = len(self.rows) - len(draft.rows)
        draft.rows += [RowDraft([], [], open=False) for _ in range(others)]
        if others and draft.q is not None:
            draft.q = torch.nn.functional.pad(draft.q, (0, 0, 0, 0, 0, others))
        return draft

    def _decide(self, step: DraftStep) -> Tensor:
        """The lookaheads of the drafter's rows on the token that was just drafted, [rows] int8."""
        rows, count = self.rows[: len(step.tokens)], len(self.rows)
        drafting = None if self.target.limits.pooled else step.drafting
        alone = dataclasses.replace(step, rows=1, drafting=None)
        beside = dataclasses.replace(step, rows=count, drafting=drafting) if count > 1 else alone
        groups = by_key([(row.lookahead, row.bound) for row in rows])
        decisions = torch.zeros_like(step.tokens, dtype=torch.int8)
        for (rule, bound), indices in groups:
            if rule is None:
                continue
            states = [row.lookahead_state if row.lookahead == rule else None for row in rows]
            found: Tensor = rule.decide(alone if bound else beside, states)
            if len(groups) == 1:
                return found
            decisions[indices] = found[indices]
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

    def _count(self, row: Row, part: RowDraft, ruling: Ruling, *, verified: bool) -> Round:
        stats = row.stats
        stats.rounds += 1
        stats.target_passes += verified
        stats.draft_passes += part.passes
        stats.predicted += part.predicted
        stats.drafted += len(part.ids)
        stats.fallbacks += part.dropped
        stats.rollbacks += ruling.error is None and ruling.accepted < len(part.ids)
        rows = 1 if row.bound else len(self.rows)
        seen = Round(len(part.ids), ruling.accepted, tuple(part.confidence), part.dropped, rows)
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

    @property
    def _held(self) -> list[Row]:
        """The target's rows."""
        return self.rows if self._reading is None else [*self.rows, self._reading]

    def _room(self, lengths: Sequence[int]) -> int:
        """Tokens that rows of these lengths take."""
        if self.target.limits.pooled:
            return sum(lengths)
        return len(lengths) * max(lengths, default=0)

    def _next(self) -> Row | None:
        """The row that is being read, or the oldest one that waits if there is room for it."""
        if self._reading is not None or not self._waiting:
            return self._reading
        row, held = self._waiting[0], self._held
        drafter = self.drafter.max_rows if self.drafter else None
        limits = (self.capacity.rows, self.target.limits.rows, drafter)
        full = any(limit is not None and len(held) >= limit for limit in limits)
        tokens = self._room([held_row.most_tokens for held_row in [*held, row]])
        return None if full or tokens > (self.capacity.kv_tokens or ALL) else row

    def _start(self) -> list[Row]:
        """Read prompts, the oldest first, as many tokens as a step may; the rows that were read of.

        The logits after a prompt give its first token for nothing, as a round with nothing drafted,
        unless the policy wants the draft to write it.
        """
        left = self.capacity.chunk or ALL
        rows: list[Row] = []
        logits: dict[Row, Tensor] = {}  # after whole prompts, each [1, vocab] where it is wanted
        while (row := self._next()) is not None:
            twin = next((r for r in logits if r.request.prompt is row.request.prompt), None)
            if twin is None and not left:
                break
            if row is not self._reading:
                self._waiting.popleft()
            rows.append(row)
            if twin is not None:  # samples of one prompt read it once
                row.stats.reused_tokens = self.target.fork(self.rows.index(twin))
                logits[row] = logits[twin]
            else:
                left -= self._read(row, left, logits)
            self._reading = None if row in logits else row
            if row in logits:
                self.rows.append(row)
        first = [row for row in logits if not row.draft_begins]
        if first:
            self._first_tokens(first, [logits[row] for row in first])
        if logits:
            self.target.truncate([len(row.tokens) - 1 for row in self.rows])
        return rows

    def _read(self, row: Row, most: int, whole: dict[Row, Tensor]) -> int:
        """Read a prompt, or on in it; how many tokens. The logits after its end go to `whole`."""
        index, tokens = len(self.rows), row.request.prompt.tokens
        saved = None if row is self._reading else self._begin(row)
        if self._first_round_reads(row):
            whole[row] = self.target.admit(row.request.prompt, most=0)
            return 0
        if index < len(self.target.lengths):
            begun = self.target.lengths[index]
            logits = self.target.read(index, tokens[begun:][:most])
        else:
            logits = self.target.admit(row.request.prompt, saved, most=most)
            row.stats.reused_tokens = begun = self.target.reused
        row.stats.target_passes += 1
        if self.target.lengths[index] == len(tokens):
            whole[row] = logits.clone()  # borrowed until the next pass
        return min(most, len(tokens) - begun)

    def _first_round_reads(self, row: Row) -> bool:
        """Whether a prompt needs no pass of its own: the first round feeds its only token anyway.

        Not beside others, which would make the target catch up at once, nor where the draft looks
        at what the target has read."""
        alone = not self.rows and not self._waiting
        followed = self.drafter is not None and self.drafter.reads_target
        return row.draft_begins and row.request.prompt.bare and alone and not followed

    def _begin(self, row: Row) -> Saved | None:
        """Start from what need not be read again: a running row's beginning, which is copied, or a
        state, which is returned."""
        found = self._beginning(row, 0, self.rows)
        if found.twin is not None:
            row.stats.reused_tokens = self.target.fork(found.twin, found.shared)
        if self.drafter is not None and self.capacity.prefix_tokens and not row.bound:
            row.expect(self._beginning(row, 1, self.rows[: self._drafted_for]).shared)
        return found.saved

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

    def _admit_to_drafter(self, rows: Sequence[Row]) -> None:
        """Let the drafter know rows that it is to draft for."""
        chunked = self.capacity.chunk is not None
        for row in rows:
            index = self.rows.index(row)
            if self.drafter is None or index < self._drafted_for:
                continue
            found = self._beginning(row, 1, self.rows[: self._drafted_for])
            twin = None if found.twin is None else (found.twin, found.shared)
            self._swap(index, self._drafted_for)
            most = 1 if chunked and not row.bound else None
            self.drafter.admit(row, found.saved, twin=twin, most=most)
            self._drafted_for += 1

    def _beginning(self, row: Row, side: int, rows: Sequence[Row]) -> Beginning:
        """Where most of a new row's tokens are known already to the target (side 0) or the draft
        (1): in a state, or in one of some rows. Without `Capacity.prefix_tokens`, rows share
        prompts only."""
        found = Beginning()
        encoder = row.request.prompt.encoder
        for index, other in enumerate(rows):
            same = other.request.prompt is row.request.prompt
            alike = encoder is None and self.capacity.prefix_tokens > 0
            if same or alike:
                # Not the last one, whose logits are needed, nor what the other has not read yet.
                shared = min(common(row.tokens[:-1], other.tokens), len(other.tokens) - 1)
                found = max(found, Beginning(shared, twin=index), key=attrgetter("shared"))
        given = row.request.saved[side] if row.request.saved else None
        kept = self._prefixes.find(side, row.tokens)
        for saved in (given, kept):
            if saved is not None:
                shared = saved.shared(row.tokens)
                found = max(found, Beginning(shared, saved=saved), key=attrgetter("shared"))
        return found

    def _swap(self, a: int, b: int) -> None:
        """Let two running rows exchange their numbers."""
        if a != b:
            self.target.swap(a, b)
            self.rows[a], self.rows[b] = self.rows[b], self.rows[a]

    def _release_finished(self) -> None:
        """Give finished rows' numbers away, from the last row down."""
        for index in reversed([i for i, row in enumerate(self.rows) if row.finished]):
            self._save(index)
            self._release(index)

    def _release(self, index: int) -> None:
        """Give a number away; the last row of each kind takes that of the kind before."""
        if self.drafter is not None and index < self._drafted_for:
            self.drafter.release(index)
            self._drafted_for -= 1
            if self._drafted_for < len(self.rows) - 1:
                self._swap(index, self._drafted_for)
                index = self._drafted_for
        if self._reading is not None:
            self._swap(index, len(self.rows) - 1)
            index = len(self.rows) - 1
        self.target.release(index)
        last = self.rows.pop()
        if index < len(self.rows):
            self.rows[index] = last

    def _save(self, index: int) -> None:
        row = self.rows[index]
        wanted = row.request.keep_state or self.capacity.prefix_tokens
        if not wanted or row.finish_reason is FinishReason.ERROR:
            return
        drafted = self.drafter is not None and index < self._drafted_for
        target = self.target.save(index, row.tokens)
        draft = self.drafter.save(index, row.tokens) if self.drafter and drafted else None
        if row.request.keep_state:
            row.saved = target, draft
        if target is not None:
            self._prefixes.add(target, draft)

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
