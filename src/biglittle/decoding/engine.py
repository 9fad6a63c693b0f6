"""The decode loop: a drafter proposes, the target scores, an acceptance rule says what stays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..acceptance.base import Acceptance, Block, judge
from ..drafters.base import Draft, Drafter, RowDraft
from ..engines.base import Runner
from ..errors import RowError
from ..lookahead.base import DraftStep
from ..results import FinishReason, Origin, Round, TokenLogprob
from .rows import Request, Row, by_key
from .sampling import process_block

__all__ = ["Engine"]


@dataclass(slots=True)
class Ruling:
    """What the target says of one row's draft."""

    accepted: int
    next_token: int | None
    """None where the row ends with an accepted token."""
    scores: Tensor | None = None
    """Processed scores of the positions judged, [≥ emitted tokens, vocab]."""
    error: BaseException | None = None


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
        if all(
            self._unverified(row, part) and not row.request.keeps_logits
            for row, part in zip(rows, draft.rows, strict=True)
        ):
            rulings = [Ruling(count, None) for count in counts]
            self._commit(draft, rulings, None)
            return
        logits = self.target.forward(self._block(draft), [1 + count for count in counts])
        logits = logits[..., : self.vocab]  # [rows, width + 1, vocab]
        rulings = self._judge(draft, logits)
        self._commit(draft, rulings, logits)
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

    def _unverified(self, row: Row, part: RowDraft) -> bool:
        """Whether the draft ends the row and the policy lets that pass unseen."""
        if row.acceptance.verify_end or not part.ids:
            return False
        return part.ids[-1] in row.request.eos_ids or len(part.ids) == row.remaining

    # Judging.

    def _judge(self, draft: Draft, logits: Tensor) -> list[Ruling]:
        """A ruling for every row, groups of like rows at a time."""
        rulings: dict[int, Ruling] = {}
        rows = self.rows
        together = [i for i, row in enumerate(rows) if not row.pipeline.custom]
        for i, row in enumerate(rows):
            ids = draft.rows[i].ids
            if self._unverified(row, draft.rows[i]):
                scores = process_block([row], [ids], logits[i : i + 1])[0]
                rulings[i] = Ruling(len(ids), None, scores)
            elif row.pipeline.custom:
                rulings[i] = guarded(partial(self._judge_singly, i, draft, logits))
        together = [i for i in together if i not in rulings]
        groups = by_key([(rows[i].acceptance, rows[i].pipeline.sampling) for i in together])
        for (rule, sampling), members in groups:
            indices = [together[m] for m in members]
            rulings |= self._judge_group(rule, sampling, indices, draft, logits)
        return [rulings[i] for i in range(len(rows))]

    def _judge_group(
        self, rule: Acceptance, sampling: bool, indices: list[int], draft: Draft, logits: Tensor
    ) -> dict[int, Ruling]:
        every = len(indices) == len(self.rows)
        raw = logits if every else logits[indices]
        rows = [self.rows[i] for i in indices]
        parts = [draft.rows[i] for i in indices]
        scores = process_block(rows, [part.ids for part in parts], raw)
        width, device = draft.width, logits.device
        tokens = torch.tensor(
            [part.ids + [0] * (width - len(part.ids)) for part in parts], device=device
        ).view(len(rows), width)
        block = Block(
            tokens=tokens.long(),
            counts=torch.tensor([len(part.ids) for part in parts], device=device),
            logits=scores,
            raw=raw,
            q=self._q(draft, indices, tokens) if sampling and rule.needs_q and width else None,
            uniforms=self._uniforms(rows, parts, width).to(device) if sampling else None,
        )
        verdict = judge(rule, block)
        told = torch.stack([verdict.accepted, verdict.next_tokens]).tolist()  # the round's sync
        return {
            index: self._ruling(accepted, token, scores[k])
            for k, (index, accepted, token) in enumerate(zip(indices, *told, strict=True))
        }

    def _ruling(self, accepted: int, token: int, scores: Tensor) -> Ruling:
        """A ruling whose next token may be none: see `sample`."""
        if token < self.vocab:
            return Ruling(accepted, token, scores)
        problem = "no token can be drawn: the processors ruled out every one, or left no numbers"
        return Ruling(0, None, error=RowError(problem))

    def _q(self, draft: Draft, indices: list[int], tokens: Tensor) -> Tensor:
        """What drafted tokens [rows, width] were drawn from, [rows, width, vocab]: one-hot for
        drafts without a distribution."""
        if draft.q is None:
            shape = (*tokens.shape, self.vocab)
            return torch.zeros(shape, device=tokens.device).scatter_(-1, tokens[..., None], 1.0)
        q = draft.q if len(indices) == len(self.rows) else draft.q[indices]
        missing = self.vocab - q.shape[-1]
        return torch.nn.functional.pad(q.to(tokens.device), (0, missing))

    @staticmethod
    def _uniforms(rows: Sequence[Row], parts: Sequence[RowDraft], width: int) -> Tensor:
        """Numbers of each row's own generator, as many as its draft needs, whatever the width of
        the rows beside it: [rows, width + 1], the last for the next token."""
        uniforms = torch.zeros(len(rows), width + 1, dtype=torch.float64)
        for k, (row, part) in enumerate(zip(rows, parts, strict=True)):
            own = row.uniforms(len(part.ids) + 1)
            uniforms[k, : len(part.ids)], uniforms[k, -1] = own[:-1], own[-1]
        return uniforms

    def _judge_singly(self, index: int, draft: Draft, logits: Tensor) -> Ruling:
        """Position by position, for processors that must see accepted prefixes only."""
        row, part = self.rows[index], draft.rows[index]
        width, device, sampling = len(part.ids), logits.device, row.pipeline.sampling
        raw = logits[index, : width + 1]
        scores = raw.float().clone()
        tokens = torch.tensor([part.ids], dtype=torch.long, device=device)
        q = None
        if sampling and row.acceptance.needs_q and width:
            q = self._q(draft, [index], tokens)[:, :width]
        uniforms = self._uniforms([row], [part], width).to(device) if sampling else None
        for position in range(width + 1):
            prefix = row.tokens + part.ids[:position]
            scores[position] = row.pipeline.at(prefix, raw[position], custom=True)
            seen = min(position + 1, width)  # drafted tokens judged so far
            block = Block(
                tokens=tokens[:, :seen],
                counts=torch.tensor([seen], device=device),
                logits=scores[None],
                raw=raw[None],
                q=None if q is None else q[:, :seen],
                uniforms=uniforms,
            )
            verdict = judge(row.acceptance, block)
            if position == width or int(verdict.accepted) < seen:
                return self._ruling(position, int(verdict.next_tokens), scores)
            if part.ids[position] in row.request.eos_ids:
                return Ruling(position + 1, None, scores)
        raise AssertionError("the position after the draft always ends the loop")

    # Committing.

    def _commit(self, draft: Draft, rulings: list[Ruling], logits: Tensor | None) -> None:
        for index, (row, part, ruling) in enumerate(
            zip(self.rows, draft.rows, rulings, strict=True)
        ):
            self._count(row, part, ruling, verified=logits is not None)
            if ruling.error is not None:
                row.fail(ruling.error)
                continue
            emitted = self._emit(row, part, ruling, None if logits is None else logits[index])
            drafted = len(part.ids)
            row.stats.accepted += min(ruling.accepted, emitted)
            row.hold = ruling.accepted < drafted and row.acceptance.after_rollback == "target"
            if row.lookahead is not None:
                state = row.lookahead_state
                row.lookahead_state = row.lookahead.observe(state, drafted, ruling.accepted)

    @staticmethod
    def _count(row: Row, part: RowDraft, ruling: Ruling, *, verified: bool) -> None:
        stats = row.stats
        stats.rounds += 1
        stats.target_passes += verified
        stats.draft_passes += part.passes
        stats.predicted += part.predicted
        stats.drafted += len(part.ids)
        stats.fallbacks += part.dropped
        stats.rollbacks += ruling.error is None and ruling.accepted < len(part.ids)
        if row.request.trace:
            row.trace.append(
                Round(len(part.ids), ruling.accepted, tuple(part.confidence), part.dropped)
            )

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
                row.stats.reused_tokens = saved.shared(prompt.tokens) if saved else 0
                row.stats.target_passes += 1
                known[id(prompt)] = len(self.rows), logits
            self.rows.append(row)
        for index, row in enumerate(rows, start=len(self.rows) - len(rows)):
            if row.lookahead is None or row.acceptance.first == "target":
                self._first_token(index, known[id(row.request.prompt)][1])
        self.target.truncate([len(row.tokens) - 1 for row in self.rows])

    def _first_token(self, index: int, logits: Tensor) -> None:
        """Judge one row with nothing drafted; logits [1, vocab]."""
        row = self.rows[index]
        nothing = Draft([RowDraft([], [], open=False) for _ in self.rows])
        logits = logits[None, :, : self.vocab]
        blank = logits.expand(len(self.rows), -1, -1)
        if row.pipeline.custom:
            ruling = guarded(partial(self._judge_singly, index, nothing, blank))
        else:
            sampling = row.pipeline.sampling
            ruling = self._judge_group(row.acceptance, sampling, [index], nothing, blank)[index]
        if ruling.error is not None:
            row.fail(ruling.error)
        else:
            self._emit(row, nothing.rows[index], ruling, logits[0])

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


def guarded(rule: Callable[[], Ruling]) -> Ruling:
    """A ruling, or the error of the request's own code."""
    try:
        return rule()
    except Exception as cause:  # the user's code may raise anything; it ends this row alone
        return Ruling(0, None, error=cause)


def logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probabilities of one position, from raw logits [vocab]."""
    logprobs = logits.float().log_softmax(-1)
    best = logprobs.topk(min(top, logprobs.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return TokenLogprob(token, float(logprobs[token]), tuple(pairs))
