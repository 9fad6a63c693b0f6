"""Is a lossless output really the target's own? And if not: a near-tie, or a bug?

In float32 a pass over several tokens and passes over one agree to the last few bits, and greedy
outputs are identical. In bfloat16, or on a GPU, they round differently, so that of two tokens with
almost the same logit either may win. An audit finds the first difference and looks at both tokens'
logits there, after passes over one token and after passes over several: a margin within the
rounding between them is a near-tie.

    for found in biglittle.audit.audit(pair, "def fibonacci(n):", max_new_tokens=100):
        print(found)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .engines.base import Prompt
from .errors import ParameterError, PolicyError
from .params import make_params
from .policy import PolicyLike, parse_policy

if TYPE_CHECKING:
    from .decoding import Request
    from .pair import Pair

__all__ = ["Audit", "Difference", "audit", "compare"]

CONTEXT = 16  # tokens at the end that are read in passes of every width
WIDTHS = (2, 4, 8, 16)  # of the wide passes, as windows have them


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two greedy outputs differ."""

    position: int
    """Among the generated tokens, from 0."""
    plain: int
    """The token of the target alone."""
    other: int
    """The policy's token."""
    narrow: tuple[float, float]
    """Both tokens' logits from a pass over one token."""
    wide: tuple[float, float]
    """The same from passes over several, of the width that moves them most."""
    resolution: float = 2**-7
    """The model's relative rounding; see `Model.resolution`."""
    texts: tuple[str, str] | None = None
    """Both tokens as text; None without a tokenizer."""

    @property
    def margin(self) -> float:
        """How far apart the tokens are, in logits, in the narrow pass."""
        return abs(self.narrow[0] - self.narrow[1])

    @property
    def rounding(self) -> float:
        """How far the two passes are apart on these tokens, together."""
        return _apart(self.narrow, self.wide)

    @property
    def tolerance(self) -> float:
        """How much rounding can move the two logits against each other: twice what it did between
        the two passes, or the logits' last place, if that is more."""
        return max(2 * self.rounding, self.resolution * max(map(abs, self.narrow)))

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return math.isfinite(self.margin) and self.margin <= self.tolerance

    def __str__(self) -> str:
        where = f"after {self.position} token{'' if self.position == 1 else 's'}"
        bug = "no near-tie, please report it"
        if not math.isfinite(self.margin):
            return f"{where}: one output ends and the other goes on: {bug}"
        one, other = self.texts or (self.plain, self.other)
        reach = f"rounding can move them by {self.tolerance:.2g}"
        return (
            f"{where}: {one!r} against {other!r}, {self.margin:.2g} apart in logits, and {reach}: "
            f"{'a near-tie' if self.near_tie else bug}"
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """One prompt, decoded by the target alone and by a policy."""

    tokens: int
    """Tokens that are the same, from the start."""
    difference: Difference | None
    """None if the outputs are identical."""

    def __str__(self) -> str:
        return str(self.difference or f"{self.tokens} tokens, all the same")


def audit(
    pair: Pair, prompt: Any, *, policy: PolicyLike | None = None, **changes: Any
) -> list[Audit]:
    """Compare a lossless policy's greedy output with the target's own.

    Args:
        pair: The pair.
        prompt: One prompt or several, as for `Pair.generate`; each runs alone.
        policy: A lossless policy; default: the pair's own.
        **changes: Generation parameters; decoding is greedy.

    Raises:
        PolicyError: A lossy policy, whose output may differ by design.
        ParameterError: Parameters of sampling, or processors, whose scores are not the logits.
    """
    chosen = pair.policy if policy is None else parse_policy(policy)
    if not chosen.lossless:
        raise PolicyError(f"policy {str(chosen)!r} is lossy: its output may differ by design")
    params = make_params(None, {"temperature": 0.0, **changes})
    if params.temperature or params.logits_processors:
        raise ParameterError("an audit compares greedy outputs: no temperature, no processors")
    plain = pair.requests(prompt, policy="none", params=params)
    other = pair.requests(prompt, policy=chosen, params=params)
    return [
        compare(pair, one, pair.run([one])[0].token_ids, pair.run([two])[0].token_ids)
        for one, two in zip(plain, other, strict=True)
    ]


def compare(pair: Pair, request: Request, plain: Sequence[int], other: Sequence[int]) -> Audit:
    """Compare two greedy outputs that are there already.

    Args:
        pair: The pair that wrote them.
        request: What they answer. Its processors shape the scores that are looked at, as they
            shaped the choice.
        plain: Tokens of the target alone.
        other: Tokens of a lossless policy.
    """
    pairs = list(zip(plain, other, strict=False))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    if same == len(plain) == len(other):
        return Audit(same, None)
    if same == len(pairs):  # one output ends where the other goes on: cannot be rounding
        gone_on = plain if len(plain) > same else other
        nothing = (float("inf"), 0.0)
        return Audit(same, Difference(same, gone_on[same], gone_on[same], nothing, nothing))
    tokens, encoder = (*request.prompt.tokens, *plain[:same]), request.prompt.encoder
    a, b = plain[same], other[same]

    def scores(width: int) -> tuple[float, float]:
        logits = _logits(pair, Prompt(tokens, encoder), width)
        found = request.pipeline.at(tokens, logits, custom=False)
        return float(found[a]), float(found[b])

    narrow = scores(1)
    wide = max(map(scores, WIDTHS), key=lambda found: _apart(narrow, found))
    decode = None if pair.tokenizer is None else pair.tokenizer.decode
    return Audit(
        same,
        Difference(
            same,
            a,
            b,
            narrow,
            wide,
            pair.resolution,
            None if decode is None else (decode([a]), decode([b])),
        ),
    )


def _apart(one: tuple[float, float], other: tuple[float, float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def _logits(pair: Pair, prompt: Prompt, width: int) -> torch.Tensor:
    """The target's logits after a prompt, [vocab], its last tokens read in passes of `width`."""
    runner = pair.runner()
    first = max(1, len(prompt.tokens) - CONTEXT)
    logits = runner.admit(Prompt(prompt.tokens[:first], prompt.encoder))[0]
    for start in range(first, len(prompt.tokens), width):
        part = prompt.tokens[start : start + width]
        tokens = torch.tensor([part], device=runner.device)
        logits = runner.forward(tokens, [len(part)])[0, -1]
    return logits[: pair.vocab].to(torch.float32, copy=True)  # it is the runner's memory
