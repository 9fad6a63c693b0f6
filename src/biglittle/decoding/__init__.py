"""The decode loop and what it keeps for every row."""

from .capacity import Capacity
from .engine import Engine
from .rows import Request, Row

__all__ = ["Capacity", "Engine", "Request", "Row"]
