"""What an alignment has come to: a file that grows with it, and a model card."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock

from ..errors import ParameterError
from ..files import LOCK, take
from .evaluation import Evaluation
from .files import writing, written_whole
from .training import TrainingReport

__all__ = ["AlignReport", "State"]

FORMAT, VERSION = "biglittle-align", 1
FILE = "align.json"
UNBEGUN = {LOCK, f".{FILE}.new"}
UNTIL_ASKED = ("prompts", "held_out")
"""Of the plan: what may be changed as long as the target has not answered everything."""
"""What a run leaves that was killed, or found a full disk, before it had begun."""


@dataclass(frozen=True, slots=True)
class AlignReport:
    """A draft before and after, and where it comes from."""

    folder: Path
    """What to load: a model, an adapter, or an exit."""
    target: str
    """As `biglittle.load` takes it: the aligned one, after joint training."""
    draft: str
    """As `biglittle.load` takes it."""
    data: str
    """A hash of all answers."""
    too_long: int
    """Conversations that did not fit in the context, or not to their end."""
    training: TrainingReport
    before: Evaluation
    after: Evaluation

    @property
    def rose(self) -> bool:
        """Whether the agreement on held-out answers did."""
        return self.training.after > self.training.before


class State:
    """`align.json`: the plan, and the results of the stages that are done.

    What is written is written by one process at a time, between `begin` and `close`.

    Args:
        folder: Where it is.
        plan: Plain data; a folder of another plan is refused.

    Raises:
        ParameterError: A folder that holds another alignment, or something else.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self.path = folder / FILE
        plan = json.loads(json.dumps(plan))  # as it is read back
        self._data: dict[str, Any] = {"format": FORMAT, "version": VERSION, "plan": plan}
        self._lock: BaseFileLock | None = None
        if self.path.exists():
            self._data = _read(self.path)
            open_yet = () if "data" in self._data else UNTIL_ASKED
            _check_same(self.path, self._data["plan"], plan, open_yet)
            self._data["plan"] = plan
        elif folder.exists() and (
            not folder.is_dir() or {path.name for path in folder.iterdir()} - UNBEGUN
        ):
            raise ParameterError(
                f"{folder} is there already and holds no alignment; give another folder"
            )

    @property
    def begun(self) -> bool:
        """Whether the folder is there, with the plan in it."""
        return self.path.exists()

    def begin(self) -> None:
        """Make the folder, with the plan in it, for this process alone.

        Raises:
            ParameterError: Another process works there, or it cannot be written.
        """
        if self._lock is None:
            with writing(self.path):
                self._lock = take(self.path.parent, "aligning")
            if self.begun:  # another process may have gone on
                self._data = {**_read(self.path), "plan": self._data["plan"]}
        self._write()

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            (self.path.parent / LOCK).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def __contains__(self, stage: str) -> bool:
        return stage in self._data

    def __getitem__(self, stage: str) -> Any:
        return self._data[stage]

    def put(self, stage: str, result: Any) -> None:
        """Keep what a stage came to."""
        self._data[stage] = result
        self._write()

    def _write(self) -> None:
        written_whole(self.path, json.dumps(self._data, indent=1, ensure_ascii=False) + "\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as cause:
        raise ParameterError(f"{path} cannot be read ({cause}); give another folder") from cause
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (
        FORMAT,
        VERSION,
    ):
        raise ParameterError(f"{path} is no alignment of this version; give another folder")
    return found


def _check_same(
    path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], apart: Collection[str]
) -> None:
    for name in sorted({*theirs, *ours} - {*apart}):
        if theirs.get(name) != ours.get(name):
            raise ParameterError(
                f"{path.parent} holds an alignment with {name}={theirs.get(name)!r}, and now it is "
                f"{ours.get(name)!r}; give the same options to go on, or another folder"
            )
