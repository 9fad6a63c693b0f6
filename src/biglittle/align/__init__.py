"""Alignment: a little model that proposes what the target would write."""

from .alignment import align
from .calibration import Answer, Calibration
from .cut import Cut, cut_model, parse_cut
from .data import Sample
from .evaluation import Evaluation, evaluate
from .plan import Plan
from .prompts import write_prompts
from .report import AlignReport
from .training import Settings, TrainingReport, agreement, fine_tune

__all__ = [
    "AlignReport",
    "Answer",
    "Calibration",
    "Cut",
    "Evaluation",
    "Plan",
    "Sample",
    "Settings",
    "TrainingReport",
    "agreement",
    "align",
    "cut_model",
    "evaluate",
    "fine_tune",
    "parse_cut",
    "write_prompts",
]
