"""Runner for decoder-only models."""

from __future__ import annotations

from typing import Any

from ..base import Prompt
from .runner import TransformersRunner
from .slot_cache import SlotCache

__all__ = ["CausalRunner"]


class CausalRunner(TransformersRunner):
    """Rows of a causal model; see `TransformersRunner`."""

    cache: SlotCache

    def _new_cache(self) -> SlotCache:
        return SlotCache(wants_positions="position_ids" not in self._parameters)

    @property
    def _slots(self) -> SlotCache:
        return self.cache

    def _admit_encoder(self, prompt: Prompt, row: int) -> None:
        """There is none."""

    def _call(self, first: int, last: int, arguments: dict[str, Any]) -> Any:
        return self.model(**arguments)
