"""The target's first layers as the drafter (Kim et al. 2023, §4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..engines.base import Saved
from ..engines.transformers.exit_adapter import ExitAdapter
from ..engines.transformers.runner import TransformersRunner
from .base import Decide, Draft
from .model import ModelDrafter

if TYPE_CHECKING:
    from ..decoding.rows import Row

__all__ = ["EarlyExitDrafter"]


class EarlyExitDrafter(ModelDrafter):
    """Drafts with the first layers of the target, its final norm and its head.

    The drafting layers use the target's own weights and K/V slots. What they write there beyond
    the target's length is what the target would write, and the target's pass writes it again.

    Args:
        target: The target's runner.
        layers: Layers to run, fewer than the target has.
        vocab: Ids that may be drafted.
        adapter: A trained exit of that layer, on the target's device and in its dtype.
    """

    reads_target = True

    def __init__(
        self,
        target: TransformersRunner,
        layers: int,
        vocab: int,
        adapter: ExitAdapter | None = None,
    ) -> None:
        super().__init__(target.early_exit(layers, adapter), vocab)
        self._target = target

    def admit(self, row: Row, saved: Saved | None = None, **options: Any) -> None:
        """Nothing to do: the rows are the target's."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Nothing to do: every round starts from the target's lengths."""

    def release(self, row: int) -> None:
        """Nothing to do: the rows are the target's."""

    def save(self, row: int, tokens: Sequence[int]) -> None:
        """Nothing to keep: the rows are the target's."""
        return

    def propose(
        self,
        rows: Sequence[Row],
        budgets: Sequence[int],
        decide: Decide,
        *,
        most: int | None = None,
    ) -> Draft:
        """See `Drafter.propose`."""
        self.runner.lengths = list(self._target.lengths)
        return super().propose(rows, budgets, decide)
