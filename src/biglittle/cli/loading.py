"""Loading a pair for a command: quiet libraries, progress of our own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .options import ModelOptions
from .screen import Screen

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["fetch", "load_options", "load_pair", "notes", "quiet_libraries"]


def quiet_libraries() -> None:
    """Keep the libraries' own warnings and progress bars off the user's terminal."""
    from transformers.utils import logging as transformers_logging

    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # the hub's too
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def load_options(models: ModelOptions) -> dict[str, Any]:
    """What `load` takes beside the models."""
    return {
        "dtype": models.dtype,
        "device": models.device,
        "draft_dtype": models.draft_dtype,
        "draft_device": models.draft_device,
        "draft_quantize": models.draft_quantize,
        "draft_vocab": models.vocab,
        "adapter": models.adapter,
        "trust_remote_code": models.trust_remote_code,
        "engine": models.engine,
        "draft_engine": models.draft_engine,
        "llama": models.llama,
    }


def fetch(target: str, draft: str | None, options: dict[str, Any], screen: Screen) -> None:
    """Check the options, and bring models of the catalogue into the cache."""
    with screen.status("starting"):
        from ..engines.loading import recipes
        from ..matching import parse_draft

        found = recipes(target, parse_draft(draft).model, **options)
    for recipe in found:
        recipe.fetch(progress=not screen.err.quiet)  # shows its own progress


def load_pair(
    models: ModelOptions,
    policy: str | None,
    screen: Screen,
    *,
    profile: str | None = None,
    **more: Any,
) -> Pair:
    """Load what the options say, telling the user what takes so long; `profile` is one that the
    pair must be of, and `more` are further options of `load`."""
    options = {**load_options(models), **more}
    fetch(models.target, models.drafter, options, screen)
    names = [models.target] if models.drafter is None else [models.target, models.drafter]
    with screen.status(f"loading {' and '.join(names)}"), notes(screen):
        from ..pair import load

        return load(models.target, models.drafter, profile=profile, policy=policy, **options)


@contextmanager
def notes(screen: Screen) -> Iterator[None]:
    """Within, what the library has to say is shown like our own notes."""
    handler = _Notes(screen)
    log = logging.getLogger("biglittle")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Notes(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        self._screen.note(record.getMessage(), "yellow")
