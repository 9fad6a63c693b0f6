"""Acceptance rules: which drafted tokens stay. Pure functions of tensors, one module a rule."""

from .base import Acceptance, Block, Verdict, judge
from .bild import Bild
from .exact import Exact

__all__ = ["Acceptance", "Bild", "Block", "Exact", "Verdict", "judge"]
