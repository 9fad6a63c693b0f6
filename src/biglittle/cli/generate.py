"""`biglittle generate`: one prompt or many, as text or JSON."""

from __future__ import annotations

import json
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BiglittleError, ParameterError
from .loading import load_pair, quiet_libraries
from .options import (
    ChatOption,
    ModelOptions,
    OutputOptions,
    ProfileOption,
    SamplingOptions,
    with_profile,
)
from .prompts import Asked, read_prompts
from .screen import Screen, complain, first_interrupt, plural, summary

if TYPE_CHECKING:
    from ..decoding import Request, Row
    from ..pair import Pair
    from ..params import GenerationParams
    from ..results import Chunk, Result

__all__ = ["generate"]

EPILOG = """
**Examples**

`biglittle generate "Write a haiku about rivers"`

`biglittle generate --raw "def fibonacci(n):" --stop "def " -m 200`

`biglittle generate -p bild:fallback=0.6,rollback=3 < question.txt`

`biglittle generate --jsonl tasks.jsonl --json > results.jsonl`

`biglittle generate -t ./my-model -d prompt-lookup "Summarize: …"`
"""

_INPUT: Any = {"rich_help_panel": "Input"}
_OUTPUT: Any = {"rich_help_panel": "Output"}


def generate(
    *,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT",
            help="Text to answer or go on from. Without any, standard input is the prompt.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="PATH", help="A file with one prompt; repeatable.", **_INPUT
        ),
    ] = None,
    jsonl: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help='A file with a prompt a line, {"prompt": …} or {"messages": …}.',
            **_INPUT,
        ),
    ] = None,
    chat: ChatOption = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Most prompts that decode together.", **_INPUT)
    ] = 16,
    n: Annotated[
        int, typer.Option("--samples", "-n", help="Samples of every prompt.", **_INPUT)
    ] = 1,
    models: ModelOptions,
    profile: ProfileOption = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="POLICY",
            help="dynamic, static:tokens=5, heuristic (lossless); bild:fallback=0.6,rollback=3 "
            "(lossy); none (the target alone). Default: dynamic, or none without a draft.",
            show_default=False,
            rich_help_panel="Models",
        ),
    ] = None,
    sampling: SamplingOptions,
    output: OutputOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object for every result, a line each.", **_OUTPUT)
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="With --json: log-probabilities of the tokens, and of the K likeliest.",
            **_OUTPUT,
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --json: a record of every round.", **_OUTPUT)
    ] = False,
) -> None:
    """Answer a prompt, or go on from it.

    Several prompts decode together. In a terminal, text streams token by token, coloured by the
    model that it came from; text goes to standard output and everything else to standard error.
    """
    screen = Screen(quiet=output.quiet, color=not output.no_color)
    if not as_json and (logprobs is not None or trace):
        raise ParameterError("--logprobs and --trace are part of the JSON output: add --json")
    asked = read_prompts(prompts or [], file or [], jsonl or [])
    with screen.status("starting"):
        params = sampling.params(n=n, logprobs=logprobs, trace=trace)
        check_policy(policy, models)
        models = with_profile(models, profile)
        quiet_libraries()
    pair = load_pair(models, policy, screen, profile=profile)
    templated = has_template(pair) if chat is None else chat
    requests = make_requests(pair, asked, templated, params)
    screen.warn_if_lossy(pair.policy)
    began = time.perf_counter()
    with first_interrupt() as interrupted:
        rows = watched(decode(pair, requests, batch_size, interrupted), len(requests), screen)
        chunks = in_order(rows)
        if as_json:
            results = show_json(chunks, n)
        else:
            results = show_text(chunks, pair, requests, [a.source for a in asked], n, screen)
    if output.stats and results:
        report(results, time.perf_counter() - began, pair, screen)
    leave(results, interrupted.is_set())


def check_policy(policy: str | None, models: ModelOptions) -> None:
    """Refuse what can be refused before anything is loaded."""
    from ..matching import parse_draft
    from ..policy import parse_policy

    parse_draft(models.drafter)
    if policy is not None:
        parse_policy(policy)


def has_template(pair: Pair) -> bool:
    """Whether the pair's tokenizer knows how to write a chat."""
    return bool(getattr(pair.tokenizer, "chat_template", None))


def make_requests(
    pair: Pair, asked: Sequence[Asked], chat: bool, params: GenerationParams
) -> list[Request]:
    """Requests for all prompts; an error names the prompt that it is about."""
    prompts = [one.as_prompt(chat) for one in asked]
    try:
        return pair.requests(prompts, params=params)
    except BiglittleError:
        for one, prompt in zip(asked, prompts, strict=True):
            try:
                pair.requests(prompt, params=params)
            except BiglittleError as error:
                where = f"{one.source}: " if len(asked) > 1 else ""
                raise type(error)(f"{where}{error}") from error
        raise


def decode(
    pair: Pair, requests: Iterable[Request], batch_size: int, interrupted: Event
) -> Iterator[Chunk]:
    """Chunks as they come, at most `batch_size` rows at a time; a row that ends makes room."""
    engine = pair.engine()
    waiting = deque(requests)
    active: list[Row] = []
    while waiting or active:
        while waiting and len(active) < batch_size:
            active.append(engine.admit(waiting.popleft()))
        engine.step()
        if interrupted.is_set():
            waiting.clear()
            for row in active:
                engine.cancel(row)
        for row in active:
            if (chunk := row.take_chunk()) is not None:
                yield chunk
        active = [row for row in active if not row.finished]


def in_order(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """All chunks of the first request, then of the second …, each as early as it can be."""
    held: dict[int, list[Chunk]] = defaultdict(list)
    current = 0
    for chunk in chunks:
        held[chunk.index].append(chunk)
        while held[current]:
            ready = held.pop(current)
            yield from ready
            current += ready[-1].result is not None


def watched(chunks: Iterable[Chunk], total: int, screen: Screen) -> Iterator[Chunk]:
    """Say on a terminal how far it is, where the texts themselves go elsewhere."""
    if screen.out.is_terminal:
        yield from chunks
        return
    done = tokens = 0
    with screen.status("generating") as say:
        for chunk in chunks:
            done, tokens = done + (chunk.result is not None), tokens + len(chunk.token_ids)
            say(f"generating: {done} of {plural(total, 'text')}, {plural(tokens, 'token')}")
            yield chunk


def show_json(chunks: Iterable[Chunk], samples: int) -> list[Result]:
    """A line of JSON for every result, as soon as it is there."""
    results = []
    for chunk in chunks:
        if chunk.result is not None:
            results.append(chunk.result)
            place = dict(zip(("index", "sample"), divmod(chunk.index, samples), strict=True))
            print(json.dumps({**place, **chunk.result.as_dict()}, ensure_ascii=False), flush=True)
    return results


def show_text(
    chunks: Iterable[Chunk],
    pair: Pair,
    requests: Sequence[Request],
    sources: Sequence[str],
    samples: int,
    screen: Screen,
) -> list[Result]:
    """The texts, one after another, the first unfinished one as it is written."""
    screen.legend(pair.policy)
    results: list[Result] = []
    started = -1
    for chunk in chunks:
        if chunk.index != started:
            started = chunk.index
            if len(requests) > 1:
                screen.write(_heading(started, samples, sources), "dim")
            show = screen.writer(pair, requests[started].prompt.tokens)
        show(chunk)
        if chunk.result is not None:
            results.append(chunk.result)
            if not chunk.result.text.endswith("\n"):
                screen.write("\n")
    return results


def _heading(index: int, samples: int, sources: Sequence[str]) -> str:
    """Between several texts, as `head` and `tail` do it."""
    prompt, sample = divmod(index, samples)
    which = f", sample {sample + 1}" if samples > 1 else ""
    return f"{'' if index == 0 else chr(10)}==> {sources[prompt]}{which} <==\n"


def report(results: Sequence[Result], seconds: float, pair: Pair, screen: Screen) -> None:
    """Statistics of all results together, and what ran."""
    from ..results import Stats

    total = Stats.total(result.stats for result in results)
    text = f"{summary(total, seconds, passes=len(results) == 1)} · {pair.summary}"
    if len(results) == 1:
        screen.note(f"{text} · ended by {results[0].finish_reason.value}")
    else:
        screen.note(f"{plural(len(results), 'text')} · {text}")


def leave(results: Sequence[Result], interrupted: bool) -> None:
    """Exit codes: 130 after Ctrl-C, 1 if a row failed."""
    if interrupted:
        raise typer.Exit(130)
    errors = [result.error for result in results if result.error is not None]
    for error in errors[:-1]:
        complain(str(error))
    if errors:
        raise errors[-1]
