"""The search for the fastest lossy setting inside the budget: Optuna proposes, real runs tell.

Settings are tried in rungs of growing numbers of examples (successive halving, Jamieson & Talwalkar
2016): one that is shown to be outside the budget, or is slower than what is known already, goes no
further.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import GrowingFile
from .lab import Lab, OutOfTime, Setting
from .lossless import Lossless
from .space import Space

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

__all__ = ["MOST", "Search"]

MOST = 64
"""Settings that are tried."""
FIRST_RUNG = 8
"""Examples, at least: of fewer, little can be said."""
SLACK = 1.05
"""How much slower than the best a setting may be on the first examples, and still go on."""

LEAST = 1e-6
"""A speed-up, where answers are so short that the target alone takes no time for them."""

INSIDE, OUTSIDE, OPEN, SLOWER = "inside", "outside the budget", "not shown to be inside", "slower"


class Search:
    """Settings tried, those of earlier calls included.

    Args:
        lab: Where they are tried.
        names: Examples, in the order in which they are used.
        lossless: What replay found; a setting that is no faster is of no use.
        path: Of Optuna's journal.
        title: Of the study: what its values depend on beside the examples' outputs.
        seed: Of the proposals.
    """

    def __init__(
        self,
        lab: Lab,
        names: Sequence[str],
        lossless: Lossless,
        path: Path,
        title: str,
        *,
        seed: int,
    ) -> None:
        self._lab, self._names, self._seed = lab, names, seed
        self._lossless = lossless.policy
        self._space = Space(lossless.cost_aware, modelled=lab.modelled)
        self._first = list(self._space.first([one.policy for one in lossless.predictions]))
        count = len(names)
        self._rungs = sorted({min(count, max(FIRST_RUNG, count // part)) for part in (4, 2, 1)})
        self._study = _open(path, title)

    def run(self, check: Callable[[], None], say: Callable[[int, int], None]) -> None:
        """Try settings until there are enough of them.

        Raises:
            OutOfTime: As `check` says; what was tried until then stays.
        """
        import optuna
        from optuna.trial import TrialState

        for left in self._study.get_trials(states=(TrialState.RUNNING,)):  # of a killed run
            self._study.tell(left.number, state=TrialState.FAIL)
        while (done := len(self._finished)) < MOST:
            say(done, MOST)
            check()
            # Seeded by what is known: a run that goes on proposes what it would have proposed.
            self._study.sampler = optuna.samplers.TPESampler(seed=self._seed + done)
            waiting = self._study.get_trials(states=(TrialState.WAITING,))
            if done < len(self._first) and not waiting:
                self._study.enqueue_trial(self._first[done])
            trial = self._study.ask()
            try:
                self._try(trial, check)
            except OutOfTime:
                self._study.tell(trial, state=TrialState.FAIL)
                raise
        say(MOST, MOST)

    def _try(self, trial: Trial, check: Callable[[], None]) -> None:
        from optuna.trial import TrialState

        policy = self._space.suggest(trial)
        setting, outcome = self._climb(policy, check)
        trial.set_user_attr("policy", policy)
        trial.set_user_attr("examples", setting.examples)
        trial.set_user_attr("outcome", outcome)
        for change in setting.changes:
            trial.set_constraint(change.budget, change.allowed - change.low)
        time = 1 / max(setting.speedup, LEAST)  # of the target alone
        trial.report(time, setting.examples)
        whole = setting.examples == len(self._names)
        state = TrialState.COMPLETE if whole else TrialState.PRUNED
        self._study.tell(trial, time if whole else None, state)

    def _climb(self, policy: str, check: Callable[[], None]) -> tuple[Setting, str]:
        """A setting on as many examples as it deserves, and what came of it."""
        best = next(iter(self.candidates), None)
        for rung in self._rungs:
            names = self._names[:rung]
            setting = self._lab.setting(policy, names, check)
            if setting.outside:
                return setting, OUTSIDE
            if setting.ms_per_token >= self._lab.setting(self._lossless, names, check).ms_per_token:
                return setting, SLOWER
            if best is not None and rung < len(self._names):
                bound = SLACK * self._lab.setting(best.policy, names).ms_per_token
                if setting.ms_per_token > bound:
                    return setting, SLOWER
        return setting, INSIDE if setting.inside else OPEN

    @property
    def _finished(self) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        return self._study.get_trials(
            deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)
        )

    @property
    def settings(self) -> list[Setting]:
        """All that were tried, each once, fastest first."""
        tried = {trial.user_attrs["policy"]: trial.user_attrs for trial in self._finished}
        found = [
            dataclasses.replace(
                self._lab.setting(policy, self._names[: known["examples"]]),
                outcome=known["outcome"],
            )
            for policy, known in tried.items()
        ]
        return sorted(found, key=lambda setting: setting.ms_per_token)

    @property
    def candidates(self) -> list[Setting]:
        """Those that are shown to be inside the budget, and faster than what is lossless; fastest
        first."""
        return [setting for setting in self.settings if setting.outcome == INSIDE]


def _open(path: Path, title: str) -> Study:
    """The study of that title in a journal, new or to be gone on with."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    GrowingFile(path).mend()
    for lock in path.parent.glob(f"{path.name}.lock*"):  # of a killed run: we are alone
        lock.unlink()
    storage = JournalStorage(JournalFileBackend(str(path)))
    return optuna.create_study(
        storage=storage, study_name=title, direction="minimize", load_if_exists=True
    )
