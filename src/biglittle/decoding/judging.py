"""What the target says of a round's drafts: acceptance rules, applied to groups of like rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..acceptance.base import Acceptance, Block, judge
from ..drafters.base import Draft, RowDraft
from ..errors import RowError
from .rows import Row, by_key
from .sampling import process_block

__all__ = ["Ruling", "goes_unverified", "judge_rows"]


@dataclass(slots=True)
class Ruling:
    """What the target says of one row's draft."""

    accepted: int
    next_token: int | None
    """None where the row ends with an accepted token."""
    scores: Tensor | None = None
    """Processed scores of the positions judged, [≥ emitted tokens, vocab]."""
    error: BaseException | None = None
    """What ends the row after the accepted tokens: the request's own code raised it."""


def judge_rows(rows: Sequence[Row], draft: Draft, logits: Tensor) -> list[Ruling]:
    """A ruling for every row.

    Args:
        rows: The rows.
        draft: What was drafted for them.
        logits: The target's raw logits, [rows, width + 1, vocab].
    """
    rulings: dict[int, Ruling] = {}
    for index, (row, part) in enumerate(zip(rows, draft.rows, strict=True)):
        if ends_unverified(row, part):
            scores = process_block([row], [part.ids], logits[index : index + 1])[0]
            rulings[index] = Ruling(len(part.ids), None, scores)
        elif row.pipeline.custom:
            q = None if draft.q is None else draft.q[index : index + 1]
            rulings[index] = _judge_singly(row, part, q, logits[index])
    rest = [index for index in range(len(rows)) if index not in rulings]
    groups = by_key([(rows[i].acceptance, rows[i].pipeline.sampling) for i in rest])
    for (rule, sampling), members in groups:
        indices = [rest[member] for member in members]
        every = len(indices) == len(rows)
        found = _judge_group(
            rule,
            [rows[i] for i in indices],
            [draft.rows[i] for i in indices],
            draft.q if every or draft.q is None else draft.q[indices],
            logits if every else logits[indices],
            sampling=sampling,
        )
        rulings |= zip(indices, found, strict=True)
    return [rulings[index] for index in range(len(rows))]


def ends_unverified(row: Row, part: RowDraft) -> bool:
    """Whether the draft ends the row and the policy lets that pass unseen: not where the draft
    knows nothing of the row's processors, which may forbid it."""
    pipeline = row.pipeline
    processed = not pipeline.custom and (part.passes > 0 or pipeline.plain)
    if row.acceptance.verify_end or not part.ids or not processed:
        return False
    return part.ids[-1] in row.request.eos_ids or len(part.ids) == row.remaining


def goes_unverified(row: Row, part: RowDraft) -> bool:
    """Whether, moreover, nobody asked for the target's numbers there."""
    return ends_unverified(row, part) and not row.request.keeps_logits


def _judge_group(
    rule: Acceptance,
    rows: Sequence[Row],
    parts: Sequence[RowDraft],
    q: Tensor | None,
    raw: Tensor,
    *,
    sampling: bool,
) -> list[Ruling]:
    """Rows of one rule, all greedy or all sampling; raw logits [rows, width + 1, vocab]."""
    width, vocab, device = raw.shape[1] - 1, raw.shape[2], raw.device
    scores = process_block(rows, [part.ids for part in parts], raw)
    padded = [part.ids + [0] * (width - len(part.ids)) for part in parts]
    tokens = torch.tensor(padded, dtype=torch.long, device=device).view(len(rows), width)
    block = Block(
        tokens=tokens,
        counts=torch.tensor([len(part.ids) for part in parts], device=device),
        logits=scores,
        raw=raw,
        q=_drawn_from(q, tokens, vocab) if sampling and rule.needs_q and width else None,
        uniforms=_uniforms(rows, parts, width).to(device) if sampling else None,
    )
    verdict = judge(rule, block)
    told = torch.stack([verdict.accepted, verdict.next_tokens]).tolist()  # the round's sync
    return [
        _ruling(accepted, token, scores[index])
        for index, (accepted, token) in enumerate(zip(*told, strict=True))
    ]


def _ruling(accepted: int, token: int, scores: Tensor) -> Ruling:
    """A ruling whose next token may be none: see `sample`."""
    if token < scores.shape[-1]:
        return Ruling(accepted, token, scores)
    problem = "no token can be drawn: the processors ruled out every one, or left no numbers"
    return Ruling(0, None, error=RowError(problem))  # nor is what was accepted to be trusted


def _drawn_from(q: Tensor | None, tokens: Tensor, vocab: int) -> Tensor:
    """What drafted tokens [rows, width] were drawn from, [rows, width, vocab]: one-hot for drafts
    without a distribution."""
    if q is None:
        shape = (*tokens.shape, vocab)
        return torch.zeros(shape, device=tokens.device).scatter_(-1, tokens[..., None], 1.0)
    q = q[:, : tokens.shape[1]].to(tokens.device)
    return torch.nn.functional.pad(q, (0, vocab - q.shape[-1]))


def _uniforms(rows: Sequence[Row], parts: Sequence[RowDraft], width: int) -> Tensor:
    """Numbers of each row's own generator, as many as its draft needs, whatever the width of the
    rows beside it: [rows, width + 1], the last for the next token."""
    uniforms = torch.zeros(len(rows), width + 1, dtype=torch.float64)
    for index, (row, part) in enumerate(zip(rows, parts, strict=True)):
        own = row.uniforms(len(part.ids) + 1)
        uniforms[index, : len(part.ids)], uniforms[index, -1] = own[:-1], own[-1]
    return uniforms


def _judge_singly(row: Row, part: RowDraft, q: Tensor | None, logits: Tensor) -> Ruling:
    """Position by position, for processors that must see accepted prefixes only.

    q is [1, ≥ width, vocab] or None; logits [≥ width + 1, vocab].
    """
    width, device, sampling = len(part.ids), logits.device, row.pipeline.sampling
    raw = logits[: width + 1]
    scores = raw.float().clone()
    tokens = torch.tensor([part.ids], dtype=torch.long, device=device)
    needs_q = sampling and row.acceptance.needs_q and width > 0
    drawn_from = _drawn_from(q, tokens, raw.shape[-1]) if needs_q else None
    uniforms = _uniforms([row], [part], width).to(device) if sampling else None
    for position in range(width + 1):
        prefix = row.tokens + part.ids[:position]
        try:
            scores[position] = row.pipeline.at(prefix, raw[position], custom=True)
        except Exception as cause:  # the user's code may raise anything; it ends this row alone
            return Ruling(position, None, scores, error=cause)
        seen = min(position + 1, width)  # drafted tokens judged so far
        block = Block(
            tokens=tokens[:, :seen],
            counts=torch.tensor([seen], device=device),
            logits=scores[None],
            raw=raw[None],
            q=None if drawn_from is None else drawn_from[:, :seen],
            uniforms=uniforms,
        )
        verdict = judge(row.acceptance, block)
        if position == width or int(verdict.accepted) < seen:
            return _ruling(position, int(verdict.next_tokens), scores)
        if part.ids[position] in row.request.eos_ids:
            return Ruling(position + 1, None, scores)
    raise AssertionError("the position after the draft always ends the loop")
