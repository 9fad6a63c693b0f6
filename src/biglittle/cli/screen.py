"""What is shown: text on standard output, everything else on standard error."""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from ..pair import Pair
    from ..policy import Policy
    from ..results import Chunk, Result, Stats

__all__ = [
    "Colours",
    "Screen",
    "bytes_below",
    "complain",
    "first_interrupt",
    "parts",
    "percent",
    "plural",
    "size",
    "summary",
]

STYLES = {"accepted": "green", "corrected": "bold red", "target": "cyan"}
MEANING = {
    "accepted": "drafted and accepted",
    "corrected": "corrected by the target",
    "target": "written by the target",
}
LEGEND = Text("   ").join(Text(f"■ {MEANING[name]}", style) for name, style in STYLES.items())

# What a model writes must not steer the terminal: control characters but tab and line feed are
# shown as their pictures.
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
VISIBLE |= dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)


class Screen:
    """The two streams, as they are now.

    Args:
        quiet: Whether standard error is for errors only.
        color: Whether a terminal gets colours.
    """

    def __init__(self, *, quiet: bool = False, color: bool = True) -> None:
        options: dict[str, Any] = {} if color else {"color_system": None}
        self.out = Console(highlight=False, **options)
        self.err = Console(stderr=True, quiet=quiet, highlight=False, **options)
        plain = self.out.no_color or self.out.legacy_windows  # NO_COLOR in the environment
        self.colored = self.out.color_system is not None and not plain

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """A spinner on a terminal while something takes its time; yields what changes the text."""
        if not self.err.is_terminal:
            yield lambda text: None
            return
        with self.err.status(Text(text, "dim")) as status:
            yield lambda text: status.update(Text(text, "dim"))

    def note(self, text: str, style: str = "dim") -> None:
        """A line on standard error, never wrapped."""
        self.err.print(Text(text, style), soft_wrap=True)

    def write(self, text: str, style: str = "") -> None:
        """Text on standard output, at once."""
        if self.out.is_terminal:
            text = text.translate(VISIBLE)
        if self.colored and style:
            text = Style.parse(style).render(text, color_system=ColorSystem.STANDARD)
        sys.stdout.write(text)  # not through rich, which would turn tabs into spaces
        sys.stdout.flush()

    def writer(self, pair: Pair, prompt: Sequence[int]) -> Callable[[Chunk | Result], None]:
        """What shows one row's chunks; its prompt's tokens matter to its first new one."""
        if not self.colored:
            return lambda chunk: self.write(chunk.text)
        colours = Colours(pair.tokenizer, prompt)

        def show(chunk: Chunk | Result) -> None:
            for text, style in colours.split(chunk):
                self.write(text, style)

        return show

    def legend(self, policy: Policy) -> None:
        """What the colours mean, where there are any."""
        if self.colored and self.err.is_terminal and policy.lookahead is not None:
            self.err.print(LEGEND)

    def warn_if_lossy(self, policy: Policy) -> None:
        """A lossy policy says so."""
        if not policy.lossless:
            self.note(f"{policy} is lossy: the text may differ from the target's own", "yellow")


class Colours:
    """Says which of a chunk's characters came from which model.

    A chunk's text is what is safe to show and may lag behind its tokens, so tokens are turned into
    text once more, one at a time, and their lengths remembered until their text comes.

    Args:
        tokenizer: The pair's.
        prompt: The row's prompt tokens; its last few matter to the first new one.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        from ..decoding.stopping import Detokenizer

        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._due: deque[tuple[int, str]] = deque()  # characters, style

    def split(self, chunk: Chunk | Result) -> Iterator[tuple[str, str]]:
        """Pieces of the chunk's text, each with its style."""
        for token, origin in zip(chunk.token_ids, chunk.origins, strict=True):
            self._due.append((len(self._detokenizer.push(token)), STYLES[origin.value]))
        rest = chunk.text
        while rest:
            length, style = self._due.popleft() if self._due else (len(rest), "")
            yield rest[:length], style
            if length > len(rest):
                self._due.appendleft((length - len(rest), style))
            rest = rest[length:]


@contextmanager
def parts(screen: Screen) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for every part of the work on a terminal, a line for each elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    live, shown = screen.err.is_terminal, {}
    with Progress(*columns, console=screen.err, transient=True, disable=not live) as bar:

        def say(what: str, done: int, total: int) -> None:
            if what not in shown:
                shown[what] = bar.add_task(what, total=total)
                if not live:
                    screen.note(what)
            bar.update(shown[what], completed=done, total=total)

        yield say


@contextmanager
def first_interrupt() -> Iterator[threading.Event]:
    """Within, the first Ctrl-C (or SIGTERM) sets the event, and a second one raises
    `KeyboardInterrupt`.

    So that a round is finished before its rows are: nothing is cut in the middle.
    """
    asked = threading.Event()

    def handle(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a background job is not to be interrupted
            signal.signal(number, handle)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def complain(text: str) -> None:
    """An error in one line on standard error."""
    text = " ".join(text.split())
    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def plural(count: int, noun: str) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def percent(share: float) -> str:
    """`87 %`."""
    return f"{100 * share:.0f} %"


def summary(stats: Stats, seconds: float, *, passes: bool = True) -> str:
    """What a run cost, in a line.

    Args:
        stats: Of one row, or the sum of several.
        seconds: Wall-clock time, which rows that run together share.
        passes: Whether passes are this row's own.
    """
    rate = stats.new_tokens / seconds if seconds else 0.0
    parts = [f"{plural(stats.new_tokens, 'token')} in {seconds:.1f} s ({rate:.1f} tokens/s)"]
    if stats.drafted:
        share = percent(stats.acceptance_rate)
        parts.append(f"{stats.accepted} of {stats.drafted} drafted tokens accepted ({share})")
    if stats.fallbacks:
        parts.append(f"fallback {percent(stats.fallback_rate)}")
        parts.append(f"rollback {percent(stats.rollback_rate)}")
    if passes:
        parts.append(f"{stats.target_passes} target and {stats.draft_passes} draft passes")
    if stats.reused_tokens:
        parts.append(f"{stats.reused_tokens} of {stats.prompt_tokens} prompt tokens from the cache")
    return " · ".join(parts)


def size(count: float) -> str:
    """Bytes as people write them: `1.3 GB`."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def bytes_below(folder: Path) -> int:
    """Bytes of all files in a folder and its folders."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
