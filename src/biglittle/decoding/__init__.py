"""The decode loop and what it keeps for every row."""

from .engine import Engine
from .rows import Request, Row

__all__ = ["Engine", "Request", "Row"]
