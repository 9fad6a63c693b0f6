"""`biglittle chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BiglittleError, ParameterError, nearest
from .generate import check_policy, has_template
from .loading import load_pair, quiet_libraries
from .options import ModelOptions, OutputOptions, ProfileOption, SamplingOptions, with_profile
from .screen import Screen, complain, first_interrupt, plural, summary

if TYPE_CHECKING:
    from ..chat import Chat
    from ..pair import Pair
    from ..results import Result, Stats

__all__ = ["chat"]

EPILOG = """
**In the conversation**

`/reset` forgets it · `/stats` shows what it cost · `/policy NAME` changes the policy · `/exit` or
end of input leaves · Ctrl-C stops an answer and keeps what was written; at the prompt it leaves
"""


def chat(
    *,
    models: ModelOptions,
    sampling: SamplingOptions,
    output: OutputOptions,
    profile: ProfileOption = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="POLICY",
            help="As for `biglittle generate`.",
            show_default=False,
            rich_help_panel="Models",
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The system message.", rich_help_panel="Input"),
    ] = None,
) -> None:
    """Talk with a model in the terminal.

    Every turn goes on from the cached state of the one before.
    """
    screen = Screen(quiet=output.quiet, color=not output.no_color)
    with screen.status("starting"):
        params = sampling.params()
        check_policy(policy, models)
        models = with_profile(models, profile)
        quiet_libraries()
    pair = load_pair(models, policy, screen, profile=profile)
    if not has_template(pair):
        raise ParameterError(
            f"{pair.name} has no chat template; choose a model that was trained for chats, or use "
            "`biglittle generate --raw`"
        )
    Session(pair, pair.chat(system, params=params), screen, stats=output.stats).run()


HELLO = [{"role": "user", "content": "Hello"}]  # stands for any message
HELP = "/reset, /stats, /policy [NAME], /exit; Ctrl-C stops an answer"
COMMANDS = ("/reset", "/stats", "/policy", "/exit", "/help")
NO_ARGUMENT = ("/reset", "/stats", "/exit", "/help")


class Session:
    """The conversation: reads lines, answers them, obeys commands.

    Args:
        pair: Who answers.
        chat: Its conversation.
        screen: Where it is shown.
        stats: Whether every answer is followed by what it cost.
    """

    def __init__(self, pair: Pair, chat: Chat, screen: Screen, *, stats: bool) -> None:
        self._pair = pair
        self._chat = chat
        self._screen = screen
        self._stats = stats
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if self._terminal:
            with suppress(ImportError):  # not on every platform
                import readline  # noqa: F401  # gives `input` line editing and a history
        self._policy = pair.policy
        self._costs: list[Stats] = []  # of all answers
        # Any chat's prompt ends with the same tokens, which open the answer.
        self._opening = pair.requests(HELLO)[0].prompt.tokens

    def run(self) -> None:
        """Until the end of input, `/exit`, or Ctrl-C at the prompt."""
        self._greet()
        while (line := self._read()) is not None:
            text = line.strip()
            if text == "/exit":
                return
            try:
                if text.startswith("/"):
                    self._obey(*text.split(maxsplit=1))
                elif text:
                    self._answer(text)
            except BiglittleError as error:  # about this line only: the conversation goes on
                complain(str(error))

    def _greet(self) -> None:
        self._screen.note(f"{self._pair.name}, policy {self._policy}. {HELP}")
        self._screen.legend(self._policy)
        self._screen.warn_if_lossy(self._policy)

    def _read(self) -> str | None:
        """A line of input; None at its end."""
        try:
            if self._terminal:
                return input("> ")
            line = sys.stdin.readline()
            line.encode()  # foreign bytes may come as surrogates
            return line or None
        except EOFError:
            print()
            return None
        except UnicodeError as cause:
            raise ParameterError("standard input is not UTF-8 text; convert it first") from cause

    def _obey(self, command: str, argument: str = "") -> None:
        if argument and command in NO_ARGUMENT:
            raise ParameterError(f"{command} stands alone on its line")
        if command == "/reset":
            self._chat.reset()
            self._screen.note("forgotten")
        elif command == "/stats":
            self._report(self._costs)
        elif command == "/policy":
            self._choose(argument)
        elif command == "/help":
            self._screen.note(HELP)
        else:
            hint = nearest(command, COMMANDS) or "; what begins with a slash is a command"
            raise ParameterError(f"unknown command {command}{hint}")

    def _choose(self, policy: str) -> None:
        if policy:
            self._policy = self._pair.requests(HELLO, policy=policy)[0].policy
        self._screen.note(f"policy {self._policy}")
        self._screen.warn_if_lossy(self._policy)

    def _answer(self, text: str) -> None:
        show = self._screen.writer(self._pair, self._opening)
        chunks = self._chat.stream(text, policy=self._policy)
        result: Result | None = None
        shown = 0  # characters
        with first_interrupt() as interrupted, closing(chunks):
            for chunk in chunks:
                show(chunk)
                shown += len(chunk.text)
                result = chunk.result
                if interrupted.is_set():
                    break
        if result is None:  # what was written stays, and what of it was held back is shown now
            self._screen.write(self._chat.messages[-1]["content"][shown:])
        self._screen.write("\n")
        if result is None:
            self._screen.note("stopped")
            if (stats := self._chat.last_stats) is not None:
                self._costs.append(stats)
        else:
            self._close(result)

    def _close(self, result: Result) -> None:
        self._costs.append(result.stats)
        if self._stats:
            self._report(self._costs[-1:])
        if result.finish_reason.value == "length":
            count = plural(len(result.token_ids), "token")
            self._screen.note(f"cut after {count}; --max-new-tokens allows for more")

    def _report(self, costs: list[Stats]) -> None:
        from ..results import Stats

        total = Stats.total(costs)
        self._screen.note(summary(total, total.total_seconds))
