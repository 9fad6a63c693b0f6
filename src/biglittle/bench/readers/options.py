"""How a reader is to make its prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import ParameterError

__all__ = ["ReadOptions", "fill"]

PLACE = "{source}"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a caller may say about any format; see `read_tasks`."""

    chat: bool | None = None
    reference: Path | None = None
    template: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.template is not None and PLACE not in self.template:
            raise ParameterError(
                f"template={self.template!r} does not say where the text goes; write "
                f"e.g. 'Translate German to English: {PLACE}'"
            )
        if self.limit is not None and self.limit < 1:
            raise ParameterError(f"limit={self.limit} leaves no example; give at least 1")


def fill(template: str, source: str) -> str:
    """A template with the text in its place."""
    return template.replace(PLACE, source)
