"""Prompts of the user's own: plain text, and JSON lines."""

from __future__ import annotations

from pathlib import Path

from ...errors import ParameterError
from ..tasks import Example, Task
from .files import Record, json_records, read_lines, stem
from .options import ReadOptions

__all__ = ["read_jsonl", "read_text"]


def read_text(path: Path, options: ReadOptions) -> tuple[Task, ...]:
    """A prompt a line; blank lines are left out, and an example's id is its line number.

    Prompts of several lines go into a JSON lines file.
    """
    lines = enumerate(read_lines(path), start=1)
    chat = options.chat is not False
    examples = [Example(str(number), (line,), chat) for number, line in lines if line.strip()]
    return (Task(stem(path), tuple(examples)),)


def read_jsonl(path: Path, options: ReadOptions) -> tuple[Task, ...]:
    """A JSON object a line, with one of

    - `prompt`: a text,
    - `turns`: what the user says, turn by turn,
    - `messages`: a chat, of which the user's turns are taken: the model gives its own answers;

    and, if there are any, `reference` (a text) or `references` (a list) for the first answer,
    and an `id` (default: the line number).
    """
    chat = options.chat is not False
    examples = tuple(_example(record, chat) for record in json_records(path))
    return (Task(stem(path), examples),)


def _example(record: Record, chat: bool) -> Example:
    number = record.where.rpartition(":")[2]
    turns = _turns(record)
    if len(turns) > 1 and not chat:
        raise ParameterError(
            f"{record.where} has {len(turns)} turns, which need a chat model; expected one"
        )
    return Example(record.label("id", number), turns, chat, _references(record))


def _turns(record: Record) -> tuple[str, ...]:
    given = [name for name in ("prompt", "turns", "messages") if name in record]
    if len(given) > 1:
        raise ParameterError(f"{record.where} has {given[0]!r} and {given[1]!r}; leave one out")
    if given == ["turns"]:
        return record.texts("turns")
    return _user_turns(record) if given == ["messages"] else (record.text("prompt"),)


def _user_turns(record: Record) -> tuple[str, ...]:
    messages = record.fields["messages"]
    expected = 'a list like [{"role": "user", "content": "…"}]'
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise record.refusal("messages", messages, expected)
    turns = []
    for message in (Record(m, f"{record.where}: a message") for m in messages):
        role = message.text("role")
        if role == "user":
            turns.append(message.text("content"))
        elif role != "assistant":
            raise ParameterError(
                f"{record.where} has a {role!r} message, but only a user's turns are sent; put "
                "its text into the first turn"
            )
    if not turns:
        raise record.refusal("messages", messages, expected)
    return tuple(turns)


def _references(record: Record) -> tuple[str, ...]:
    if "reference" in record and "references" in record:
        raise ParameterError(f"{record.where} has 'reference' and 'references'; leave one out")
    if "references" in record:
        return record.texts("references")
    if isinstance(record.fields.get("reference"), list):
        return record.texts("reference")
    return (record.text("reference"),) if "reference" in record else ()
