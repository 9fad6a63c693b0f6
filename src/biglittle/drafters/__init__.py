"""Drafters: a little model, the target's first layers, or the text so far."""

from .base import Draft, Drafter, RowDraft
from .early_exit import EarlyExitDrafter
from .model import ModelDrafter
from .prompt_lookup import PromptLookupDrafter

__all__ = [
    "Draft",
    "Drafter",
    "EarlyExitDrafter",
    "ModelDrafter",
    "PromptLookupDrafter",
    "RowDraft",
]
