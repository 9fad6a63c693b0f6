"""Loading a pair for a command: quiet libraries, progress of our own."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from .. import catalogue
from .options import ModelOptions
from .screen import Screen

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["load_pair", "quiet_libraries"]


def quiet_libraries() -> None:
    """Keep the libraries' own warnings and progress bars off the user's terminal."""
    from transformers.utils import logging as transformers_logging

    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # the hub's too
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def load_pair(models: ModelOptions, policy: str | None, screen: Screen) -> Pair:
    """Load what the options say, telling the user what takes so long."""
    names = [models.target] if models.drafter is None else [models.target, models.drafter]
    engines = [models.engine, models.draft_engine or models.engine]
    for name, engine in zip(names, engines, strict=False):
        if (entry := catalogue.find(name)) is not None:
            bring = catalogue.fetch_gguf if engine == "llama.cpp" else catalogue.fetch
            bring(entry, progress=not screen.err.quiet)  # shows its own progress
    with screen.status(f"loading {' and '.join(names)}"):
        from ..pair import load

        return load(
            models.target,
            models.drafter,
            policy=policy,
            dtype=models.dtype,
            device=models.device,
            draft_dtype=models.draft_dtype,
            draft_device=models.draft_device,
            draft_quantize=models.draft_quantize,
            adapter=models.adapter,
            trust_remote_code=models.trust_remote_code,
            engine=models.engine,
            draft_engine=models.draft_engine,
            llama=models.llama,
        )
