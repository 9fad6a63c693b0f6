"""Runner for decoder-only models."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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

    def _call(
        self,
        tokens: Tensor,
        first: int,
        last: int,
        ragged: dict[str, Any] | None,
        **extra: Any,
    ) -> Any:
        if ragged is not None:
            extra["attention_mask"] = ragged["mask"]
            if "position_ids" in self._parameters:
                extra["position_ids"] = ragged["positions"]
        name = "cache" if "cache" in self._parameters else "past_key_values"
        return self.model(input_ids=tokens, use_cache=True, **{name: self.cache}, **extra)
