"""Lookahead rules: how far to draft. One module a rule; its name is the rule's name."""

from .base import Decision, DraftStep, Lookahead
from .confidence import Confidence
from .constant import Constant
from .cost_aware import CostAware
from .disco import Disco
from .fallback import Fallback
from .heuristic import Heuristic
from .self_adjusting import SelfAdjusting

__all__ = [
    "Confidence",
    "Constant",
    "CostAware",
    "Decision",
    "Disco",
    "DraftStep",
    "Fallback",
    "Heuristic",
    "Lookahead",
    "SelfAdjusting",
]
