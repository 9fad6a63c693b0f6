"""Alignment: a little model that proposes what the target would write."""

from .data import Sample
from .training import Settings, TrainingReport, agreement, fine_tune

__all__ = ["Sample", "Settings", "TrainingReport", "agreement", "fine_tune"]
