"""What a pair's passes cost on this machine: a draft step, and verifying so many tokens."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .decoding.rows import Request, Row
from .drafters import Draft, ModelDrafter, RowDraft
from .drafters.base import Decide
from .engines.base import Prompt, Runner, Saved
from .engines.timing import Stopwatch
from .engines.transformers import TransformersRunner
from .errors import ParameterError
from .lookahead import Confidence, DraftStep
from .policy import Policy

if TYPE_CHECKING:
    from .pair import Pair
    from .prompts import PromptLike

__all__ = ["WIDTHS", "Costs", "measure_costs"]

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
ROOM = 128  # tokens by which a row may grow while it is measured
STEPS = 8  # draft steps that are timed together
TEXT = """The harbour was quiet when the first boats came back. On the quay stood a woman with a
notebook, who wrote down the name of every boat, the hour, and how many crates were lifted out of
it. She had done so for eleven years, and her notebooks filled a shelf in the office behind the
market hall. Nobody had asked her to. When the town wanted to know, much later, how the catch had
changed, the shelf held the only numbers there were: boats, hours, crates, day by day, in a small
upright hand, with a remark here and there about the weather.
"""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the passes of one row, the loop's own work included.

    A round that drafts k tokens costs k draft steps and `verify(k + 1)`; and, where the draft has
    more than one token to catch up with, `catch_up` for each of the others.
    """

    draft: float
    """One draft step: a forward of one token and its choice. 0 where no model drafts."""
    widths: tuple[int, ...]
    """Tokens of the target's passes that were measured, ascending; the first is 1."""
    seconds: tuple[float, ...]
    """A round with a pass of each width, without its drafting; does not fall with the width."""
    catch_up: float = 0.0
    """What one more token to read adds to a draft step: after a round whose tokens were all
    accepted, there is one that the draft has not read."""
    reading: float = 0.0
    """The draft's reading of a prompt of `context` tokens."""
    context: int = 0
    """Tokens in the cache."""
    head: float = 0.0
    """The part of `draft` that is the draft's head; 0 where that is not known."""

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in itertools.pairwise(self.widths))
        if not self.widths or self.widths[0] != 1 or not ascending:
            raise ParameterError(f"costs: widths={self.widths!r} must ascend from 1")
        if len(self.seconds) != len(self.widths):
            raise ParameterError(
                f"costs: seconds={self.seconds!r} must be as many as the {len(self.widths)} widths"
            )
        falling = any(a > b for a, b in itertools.pairwise(self.seconds))
        least = min(self.draft, self.catch_up, self.reading, self.head)
        if falling or not self.seconds[0] > 0 or not least >= 0:
            raise ParameterError("costs: seconds must be positive and not fall with the width")

    @property
    def step(self) -> float:
        """One step of plain decoding, seconds."""
        return self.seconds[0]

    def verify(self, width: float) -> float:
        """A round whose pass has this many tokens, seconds: linear between the measured widths,
        and on beyond the last one."""
        if len(self.widths) == 1:
            return self.step
        index = next(
            (i for i, upper in enumerate(self.widths[1:-1]) if width <= upper),
            len(self.widths) - 2,
        )
        (left, right), (low, high) = self.widths[index : index + 2], self.seconds[index : index + 2]
        return low + (high - low) * (width - left) / (right - left)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Costs:
        """From what `as_dict` gave.

        Raises:
            ParameterError: Something else.
        """
        try:
            return cls(
                float(data["draft"]),
                tuple(map(int, data["widths"])),
                tuple(map(float, data["seconds"])),
                float(data["catch_up"]),
                float(data["reading"]),
                int(data["context"]),
                float(data.get("head", 0.0)),
            )
        except (KeyError, TypeError, ValueError) as cause:
            raise ParameterError(f"costs: not what was measured: {cause}") from cause


def measure_costs(
    pair: Pair,
    *,
    context: int = 256,
    widths: Sequence[int] = WIDTHS,
    repeats: int = 5,
    prompt: PromptLike | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Costs:
    """Time the rounds of a pair's own engine, one row, greedy.

    Widths take turns, so that a slow moment of the machine meets all alike; a width's time is the
    median of its turns, after one that is not counted.

    Args:
        pair: With any drafter, or none.
        context: Tokens in the (decoder's) cache, at least; fewer where a model has less room.
        widths: Tokens of the target's passes; ascending, the first is 1.
        repeats: Turns.
        prompt: What the rows' text is taken from; default: a text of the project. A model whose
            encoder reads something else than text needs one.
        progress: Called with the turns done and all of them.

    Raises:
        ParameterError: Widths that do not ascend from 1; a prompt that the pair cannot read.
    """
    if repeats < 1:
        raise ParameterError(f"repeats={repeats} must be at least 1")
    Costs(0.0, tuple(widths), (1.0,) * len(widths))  # refuses widths before any work starts
    meter = _Meter(pair, prompt, context)
    widths = [width for width in widths if width < meter.room]
    turns: list[list[float]] = []
    for turn in range(repeats + 1):
        turns.append([*meter.draft_step(), *map(meter.round, widths)])
        if progress is not None:
            progress(turn + 1, repeats + 1)
    draft, head, catch_up, *seconds = map(statistics.median, zip(*turns[1:], strict=True))
    return Costs(
        draft,
        tuple(widths),
        tuple(itertools.accumulate(seconds, max)),
        max(0.0, catch_up),
        min(meter.readings, default=0.0),
        meter.context,
        min(head, draft),
    )


class _Forced:
    """A drafter that proposes `count` tokens of a text, whatever the row holds, at no cost."""

    context: int | None = None
    max_rows: int | None = None
    reads_target = False
    seconds = 0.0

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text
        self.count = 0

    def propose(
        self, rows: Sequence[Row], budgets: Sequence[int], decide: Decide, **options: Any
    ) -> Draft:
        """See `Drafter.propose`."""
        ids = list(itertools.islice(itertools.cycle(self._text), self.count))
        return Draft([RowDraft(ids, [1.0] * self.count, open=False)])

    def admit(self, row: Row, saved: Saved | None = None, **options: Any) -> None:
        """Nothing to do: nothing is cached."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Nothing to do: nothing is cached."""

    def release(self, row: int) -> None:
        """Nothing to do: nothing is cached."""

    def save(self, row: int, tokens: Sequence[int]) -> None:
        """Nothing to keep."""
        return


class _Meter:
    """A row of an engine of its own, in which every round has the width that is asked for.

    Args:
        pair: The pair.
        prompt: See `measure_costs`.
        context: Tokens that the row starts from.
    """

    def __init__(self, pair: Pair, prompt: PromptLike | None, context: int) -> None:
        self._engine = pair.engine()
        drafter = self._engine.drafter
        self._drafter = drafter if isinstance(drafter, ModelDrafter) else None
        limits = [self._engine.target.limits.context, drafter.context if drafter else None]
        limit = min((limit for limit in limits if limit is not None), default=context + ROOM)
        self.room = min(ROOM, limit // 2)
        text, self._request = self._start(pair, prompt, min(context, limit - self.room))
        self.context = len(self._request.prompt.tokens)
        self._engine.drafter = self._forced = _Forced(text)
        self._row: Row | None = None
        self.readings: list[float] = []
        """Seconds of the drafter's readings of the prompt."""

    def _start(
        self, pair: Pair, prompt: PromptLike | None, context: int
    ) -> tuple[list[int], Request]:
        """The ids of the text, and a request of so many of them that nothing but `room` ends."""
        common = list(range(min(1000, pair.vocab)))
        if prompt is None:
            # Not more tokens than fit: a token is a character of this text, or several.
            readable = pair.tokenizer is not None and pair.tokenizer(TEXT[:80]).input_ids
            prompt = (TEXT if readable else common)[: max(1, context // 2)]
        request = pair.requests(prompt, policy="none", temperature=0.0, max_new_tokens=1)[0]
        start = request.prompt
        read = start.tokens if start.encoder is None else start.encoder.get("input_ids")
        ids = common if read is None else torch.as_tensor(read).flatten().tolist()
        text = [token for token in ids if token < pair.vocab] or common
        tokens = [*start.tokens, *itertools.islice(itertools.cycle(text), context)][:context]
        request = dataclasses.replace(
            request,
            prompt=Prompt(tuple(tokens), start.encoder),
            policy=Policy.static(self.room),
            max_new_tokens=self.room,
            eos_ids=frozenset(),
        )
        return text, request

    def round(self, width: int) -> float:
        """Seconds of a round with a pass over `width` tokens."""
        self._ready(width)
        self._forced.count = width - 1
        started = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - started

    @torch.inference_mode()
    def draft_step(self) -> tuple[float, float, float]:
        """Seconds of one step of the pair's own drafter, of its head, and what a second token to
        read adds to a step; 0 where it is no model."""
        row = self._ready(1)
        if self._drafter is None:
            return 0.0, 0.0, 0.0
        self._draft(row, 1)  # catches up with what the target wrote meanwhile
        with _head_of(self._drafter.runner) as head:
            several = self._draft(row, STEPS)
        one = self._draft(row, 1)
        self._drafter.truncate([len(row.tokens) - 2])
        return several, head.seconds / max(1, head.calls), self._draft(row, 1) - one

    def _draft(self, row: Row, count: int) -> float:
        """Draft and take it back; seconds a pass."""
        assert self._drafter is not None
        started = time.perf_counter()
        draft = self._drafter.propose([row], [count], _go_on)
        seconds = time.perf_counter() - started
        self._drafter.truncate([len(row.tokens) - 1])
        return seconds / max(1, draft.rows[0].passes)  # none for a token that it cannot read

    def _ready(self, width: int) -> Row:
        """The row, a new one if the last has no room for a pass of that width."""
        row = self._row
        if row is not None and row.remaining > width:
            return row
        if row is not None:
            self._engine.cancel(row)
            if self._drafter is not None:
                self._drafter.release(0)
        self._row = row = self._engine.admit(self._request)
        self._engine.step()
        if self._drafter is not None:
            started = time.perf_counter()
            with torch.inference_mode():
                self._drafter.admit(row)
            _finish(self._drafter.runner.device)
            self.readings.append(time.perf_counter() - started)
        return row


class _HeadClock:
    """Times a module's calls; a hook before them and one behind."""

    def __init__(self, device: torch.device) -> None:
        self._watch = Stopwatch(device)
        self.calls = 0

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return self._watch.seconds

    def start(self, *_: Any) -> None:
        """Before a call."""
        self.calls += 1
        self._watch.__enter__()

    def stop(self, *_: Any) -> None:
        """Behind it."""
        self._watch.__exit__()


@contextmanager
def _head_of(runner: Runner) -> Iterator[_HeadClock]:
    """Within, a clock runs while the model's head does; never in an engine that runs it whole."""
    clock = _HeadClock(runner.device)
    model = runner.model if isinstance(runner, TransformersRunner) else None
    head = None if model is None else model.get_output_embeddings()
    if head is None:
        yield clock
        return
    with (
        head.register_forward_pre_hook(clock.start),
        head.register_forward_hook(clock.stop),
    ):
        yield clock


def _finish(device: torch.device) -> None:
    """Wait for what was started on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _go_on(step: DraftStep) -> Tensor:
    """A rule that looks at the confidence, and never stops."""
    return Confidence(threshold=0.0).decide(step, [None])
