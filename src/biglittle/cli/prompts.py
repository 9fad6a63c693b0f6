"""Prompts from the command line: arguments, files, lines of JSON, standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ParameterError

__all__ = ["Asked", "read_prompts"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt and where it came from.

    Attributes:
        content: Text, or chat messages.
        source: For messages to the user, e.g. `tasks.jsonl:3`.
    """

    content: str | list[dict[str, Any]]
    source: str

    def as_prompt(self, chat: bool) -> str | list[dict[str, Any]]:
        """What `Pair.generate` takes: with `chat`, plain text becomes a user's message."""
        if chat and isinstance(self.content, str):
            return [{"role": "user", "content": self.content}]
        return self.content


def read_prompts(
    arguments: Sequence[str], files: Sequence[str], json_files: Sequence[str]
) -> list[Asked]:
    """All prompts in the order arguments, files, lines of JSON; else standard input as one.

    Args:
        arguments: Prompts themselves; `-` is standard input.
        files: Names of files that hold one prompt each; `-` is standard input.
        json_files: Names of files with a prompt a line, `{"prompt": …}` or `{"messages": …}`.

    Raises:
        ParameterError: No prompt at all, an empty one, or a file that cannot be read.
    """
    asked = [
        Asked(_prompt_text("-"), _title("-"))
        if text == "-"
        else Asked(_checked(text, f"argument {i}"), f"argument {i}")
        for i, text in _count(arguments)
    ]
    asked += [Asked(_prompt_text(name), _title(name)) for name in files]
    for name in json_files:
        asked += _json_lines(name)
    if asked:
        return asked
    if sys.stdin is None or sys.stdin.isatty():  # None: closed by whoever started the program
        raise ParameterError(
            "there is no prompt: give one as an argument, with --file or --jsonl, or on standard "
            "input"
        )
    return [Asked(_prompt_text("-"), _title("-"))]


def _count(items: Sequence[str]) -> Iterator[tuple[int, str]]:
    return enumerate(items, start=1)


def _title(name: str) -> str:
    return "standard input" if name == "-" else name


def _prompt_text(name: str) -> str:
    """A file's text without the line end that closes it."""
    return _checked(_read(name).removesuffix("\n").removesuffix("\r"), _title(name))


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).expanduser().read_bytes()
        return data.decode("utf-8-sig")
    except OSError as cause:
        raise ParameterError(f"cannot read {name}: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        raise ParameterError(
            f"{_title(name)} is not UTF-8 text (byte {cause.start}); convert it first"
        ) from cause


def _checked(text: str, source: str) -> str:
    if not text:
        raise ParameterError(f"the prompt is empty ({source})")
    _check_unicode(text, source)
    return text


def _check_unicode(text: str, source: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as cause:  # an argument's foreign bytes, half a JSON pair
        raise ParameterError(f"the prompt is not valid Unicode text ({source})") from cause


def _json_lines(name: str) -> list[Asked]:
    lines = [(i, line) for i, line in _count(_read(name).split("\n")) if line.strip()]
    if not lines:
        raise ParameterError(f"there is no prompt in {_title(name)}")
    return [_json_prompt(line, f"{_title(name)}:{i}") for i, line in lines]


def _json_prompt(line: str, source: str) -> Asked:
    try:
        data = json.loads(line)
    except ValueError as cause:
        reason = getattr(cause, "msg", str(cause))
        raise ParameterError(f"{source} is not JSON: {reason}") from cause
    data = data if isinstance(data, dict) else {}
    if "prompt" in data and "messages" in data:
        raise ParameterError(f"{source} holds both a prompt and messages; leave one out")
    if isinstance(prompt := data.get("prompt"), str):
        return Asked(_checked(prompt, source), source)
    messages = data.get("messages")
    if isinstance(messages, list) and messages and all(_is_message(m) for m in messages):
        for message in messages:
            _check_unicode(message["content"], source)
        return Asked(messages, source)
    raise ParameterError(
        f'{source} holds no prompt: write {{"prompt": "…"}} or '
        '{"messages": [{"role": "user", "content": "…"}]}'
    )


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    )
