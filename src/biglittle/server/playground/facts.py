"""What the page has to know of the server: the model, and the policies with their numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_type_hints

from ... import __version__
from ...acceptance import Bild
from ...lookahead import Fallback
from ...policy import ALIASES, lookahead_names, lookahead_type, reads_files
from ..schemas import Playground, PolicyCard, PolicyOption

if TYPE_CHECKING:
    from ..service import Service

__all__ = ["describe_server"]

RANGES = {
    "draft": (0.0, 1.0, 0.01),
    "fallback": (0.0, 1.0, 0.05),
    "read": (0.0, 0.1, 0.001),
    "rollback": (0.0, 10.0, 0.5),
    "start": (1, 20, 1),
    "threshold": (0.0, 1.0, 0.05),
    "tokens": (1, 64, 1),
}
"""What is sensible for options: from, to, and in what steps. What is missing here can be written
into a policy all the same."""
BILD = "Hand unsure positions over to the target; it corrects strong disagreements only."


def describe_server(service: Service) -> Playground:
    """The facts, which do not change while a server runs."""
    pair, settings = service.pair, service.settings
    return Playground(
        version=__version__,
        model=settings.name,
        chat=bool(getattr(pair.tokenizer, "chat_template", None)),
        policy=str(pair.policy),
        lossless=pair.policy.lossless,
        allow_lossy=settings.allow_lossy,
        max_tokens=settings.limits.new_tokens,
        policies=[*_lookaheads(), _bild()] if pair.drafts else [],
    )


def _lookaheads() -> Iterator[PolicyCard]:
    """Every lookahead that a request may name, with exact acceptance."""
    for module in lookahead_names():
        name = ALIASES.get(module, module)
        if not reads_files(name):
            kind = lookahead_type(name)
            yield PolicyCard(
                name=name, about=_summary(kind), lossless=True, options=list(_options(kind))
            )


def _bild() -> PolicyCard:
    fallback, *rest = _options(Fallback)
    fallback = fallback.model_copy(update={"name": "fallback"})
    options = [fallback, *_options(Bild), *rest]
    return PolicyCard(name="bild", about=BILD, lossless=Bild.lossless, options=options)


def _summary(kind: type[Any]) -> str:
    """The first line of a rule's docstring."""
    return (kind.__doc__ or "").partition("\n")[0].replace("`", "")


def _options(kind: type[Any]) -> Iterator[PolicyOption]:
    """The numbers among a rule's options."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in RANGES and hints[field.name] in (int, float):
            default: Any = field.default
            least, most, step = RANGES[field.name]
            yield PolicyOption(name=field.name, default=default, least=least, most=most, step=step)
