"""Drafters: a little model, the target's first layers, the text so far, or its prediction."""

from .base import Draft, Drafter, RowDraft
from .early_exit import EarlyExitDrafter
from .model import ModelDrafter
from .predicted import PredictedDrafter
from .prompt_lookup import PromptLookupDrafter

__all__ = [
    "Draft",
    "Drafter",
    "EarlyExitDrafter",
    "ModelDrafter",
    "PredictedDrafter",
    "PromptLookupDrafter",
    "RowDraft",
]
