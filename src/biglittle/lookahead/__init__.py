"""Lookahead rules: how far to draft. One module a rule; its name is the rule's name."""

from .base import Decision, DraftStep, Lookahead
from .confidence import Confidence
from .constant import Constant
from .fallback import Fallback
from .heuristic import Heuristic

__all__ = [
    "Confidence",
    "Constant",
    "Decision",
    "DraftStep",
    "Fallback",
    "Heuristic",
    "Lookahead",
]
