"""Prompts from nothing: a chat model, given only the opening of the user's turn, writes one.

An instruct model has seen so many conversations that it goes on from the opening with what users
ask (Xu et al. 2024, Magpie). So a pair can be aligned without any data.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.tasks import Example, Task
from ..errors import ParameterError
from ..params import make_params
from ..results import FinishReason
from ..traces.base import describe
from .files import Records
from .rows import ROWS, run_rows

if TYPE_CHECKING:
    from ..decoding import Request
    from ..pair import Pair

__all__ = ["Opening", "opening", "write_prompts"]

VERSION = 1
TASK = "self-written"
TRIES = 4  # texts that are written for one that is wanted, at most
LONGEST = 256  # tokens of a prompt
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

Progress = Callable[[int, int, int], None]
"""Prompts that are there, prompts that are wanted, and tokens written by this run."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A user's turn, around what the user says."""

    text: str
    """Everything before."""
    end: str
    """What closes the turn."""


def opening(tokenizer: Any, name: str) -> Opening:
    """The opening of the user's turn in a tokenizer's chat template.

    Raises:
        ParameterError: No chat template, or one that does not show where the user's words go.
    """
    remedy = "give prompts of your own"
    if not getattr(tokenizer, "chat_template", None):
        raise ParameterError(f"{name} has no chat template, so it cannot ask itself; {remedy}")
    mark = "7c1e0b"  # nothing that a template would contain or change
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
        )
    except Exception as cause:  # templates raise errors of their own
        reason = " ".join(str(cause).split())
        raise ParameterError(f"the chat template of {name} fails ({reason}); {remedy}") from cause
    before, _, after = text.partition(mark)
    end = _first_special(after, tokenizer) or after.strip().split("\n")[0]
    if text.count(mark) != 1 or not before or not end:
        raise ParameterError(
            f"the chat template of {name} does not show where a user's turn begins and ends; "
            f"{remedy}"
        )
    return Opening(before, end)


def _first_special(text: str, tokenizer: Any) -> str | None:
    """The special token that a text begins with, white space aside."""
    rest = text.lstrip()
    found = [token for token in tokenizer.all_special_tokens if token and rest.startswith(token)]
    return max(found, key=len, default=None)


def write_prompts(
    pair: Pair,
    count: int,
    path: str | Path,
    *,
    seed: int = 0,
    rows: int = ROWS,
    progress: Progress | None = None,
) -> Task:
    """Let the target write prompts: sampled at temperature 1, each with a seed of its own.

    Args:
        pair: The target. It writes alone: a seed gives the same prompts with any draft.
        count: How many, all different.
        path: Where they are kept as they come; a killed run goes on.
        seed: Of the first.
        rows: Prompts that are written beside each other.
        progress: Told how far it is.

    Raises:
        ParameterError: A target that cannot ask itself, see `opening`; a file of something else;
            or a target that repeats itself, so that there are too few.
    """
    found = opening(pair.tokenizer, pair.name)
    models = describe(pair)
    own = {name: models[name] for name in ("target", "target weights", "tokenizer")}
    about = {**own, "seed": seed}
    file = Records(Path(path), "prompts", VERSION, about)
    start = list(pair.tokenizer(found.text, add_special_tokens=False).input_ids)
    tokens = 0

    def request(number: int) -> Request:
        params = make_params(
            None,
            {**SAMPLING, "seed": seed + number, "stop": found.end, "max_new_tokens": LONGEST},
        )
        return pair.requests(start, policy="none", params=params)[0]

    tried = 0
    chosen: list[str] = []
    while len(chosen) < count and tried < TRIES * count:
        tried += count - len(chosen)
        waiting = deque(number for number in range(tried) if str(number) not in file.done)
        for number, row in run_rows(pair, waiting, request, rows):
            ended = row.finish_reason is not FinishReason.LENGTH
            file.add(str(number), {"prompt": row.result().text.strip() if ended else ""})
            tokens += len(row.new_tokens)
            if progress is not None:
                progress(min(len(file.done), count), count, tokens)
        chosen = _different(file, tried)
    if len(chosen) < count:
        raise ParameterError(
            f"{pair.name} wrote {len(chosen)} different prompts in {tried} attempts, and {count} "
            "are wanted; ask for fewer, or give prompts of your own"
        )
    return Task(TASK, tuple(Example(_id(text), (text,), chat=True) for text in chosen[:count]))


def _different(file: Records, tried: int) -> list[str]:
    """Prompts in the order of their numbers, each once, whatever its spaces and case."""
    found: dict[str, str] = {}
    for number in range(tried):
        text = file.done[str(number)]["prompt"]
        found.setdefault(" ".join(text.casefold().split()), text)
    found.pop("", None)
    return list(found.values())


def _id(text: str) -> str:
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()[:12]
