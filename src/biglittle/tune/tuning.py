"""Tuning: the fastest policy for a pair and a task whose loss of quality stays inside a budget."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench.environment import hardware, versions
from ..bench.records import Header
from ..bench.runner import data_hash
from ..bench.tasks import Example, Task
from ..costs import Costs
from ..diagnosis.profile import Profile as PassCosts
from ..diagnosis.profile import measure_profile
from ..errors import ParameterError
from ..files import write_whole
from ..params import make_params
from ..policy import parse_policy
from ..traces.base import describe
from .budget import Budget, BudgetLike, check_budgets, parse_budget
from .confirm import Timed, time_policies
from .lab import PLAIN, ROWS, Clock, Lab, OutOfTime, Progress, Setting, Split, split
from .lossless import RECORDED, Lossless, tune_lossless
from .plots import draw
from .profile import Profile, Rejected
from .quality import Judge
from .runs import Runs, only_one
from .search import Search
from .words import changes, notes, verdict

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["prepare", "tune"]

PROFILE = "profile.json"
PACKAGES = ("optuna", "scipy", "matplotlib")
OWN_SHARE = 0.3
"""Of the time: until then the target's own outputs are written, those of a first batch always."""
SEARCH_SHARE = 0.6
"""Of the time: the rest is for the confirmation."""
REJECTIONS = 3
"""After so many, no further candidate is looked at: the examples that confirm are used up by it."""


def tune(
    pair: Pair,
    task: Task | Sequence[Task],
    budget: BudgetLike | Sequence[BudgetLike] = (),
    *,
    out: str | Path,
    time_limit: float | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    run_code: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Find the fastest policy of a pair for a task, inside a budget of quality.

    Lossless lookaheads are tuned by replay. With a budget, half of the examples serve the search
    for a faster lossy setting, and the other half confirm what it found; the answer is lossless
    unless a lossy setting is shown to be inside the budget on both. Everything is kept in `out`,
    and a call with the same arguments goes on from there.

    Args:
        pair: With a draft.
        task: As from `biglittle.bench.readers.read_tasks`; of an example's turns the first is used.
        budget: What a metric may lose against the target alone, such as "bleu: -0.5" (points),
            "rougeL: -1%" (of the target's own) or "agreement: 0"; several must all be kept. None
            of them: the answer is lossless.
        out: The folder.
        time_limit: Seconds; when they are over, the best that was found is the answer.
        max_new_tokens: Most tokens of an answer.
        seed: Of the split and the search.
        run_code: Whether programs that the models write may be run, for pass@1.
        progress: Told what is done.

    Raises:
        ParameterError: A pair without a draft, a budget that cannot be read or judged, too few
            examples, a folder of another run, a missing package; before any work starts.
        ContextError: An example that does not fit.
    """
    given = [budget] if isinstance(budget, str | Budget) else budget
    budgets = tuple(map(parse_budget, given))
    tasks = [task] if isinstance(task, Task) else task
    whole = prepare(tasks, budgets, seed=seed, run_code=run_code)
    parts = split(whole, seed, halves=bool(budgets))
    if pair.engine().drafter is None:
        raise ParameterError("tuning needs a draft; load the pair with draft=...")
    params = make_params(
        None,
        {
            "temperature": 0.0,
            "max_new_tokens": max_new_tokens,
            "stop": whole.stop,
            "trace": True,
        },
    )
    folder = Path(out).expanduser()
    header = _header(pair, whole, max_new_tokens, seed)
    with only_one(folder), _full_disk(folder):
        runs = Runs(folder / "runs.jsonl", header)
        judge = Judge(whole, budgets, run_code=run_code)
        run = _Run(  # refuses a profile that would be written over
            Lab(pair, whole, params, runs, judge),  # refuses
            parts,
            budgets,
            folder,
            header,
            Clock(time_limit),
            progress,
        )
        runs.begin()
        return run.profile()


def prepare(tasks: Sequence[Task], budgets: Sequence[Budget], *, seed: int, run_code: bool) -> Task:
    """Everything that can be refused before models are loaded; the task that is left to tune for.

    Raises:
        ParameterError: See `tune`.
    """
    _need_packages()
    task = _merge(tasks)
    check_budgets(budgets, task, run_code=run_code)
    split(task, seed, halves=bool(budgets))
    return task


def _need_packages() -> None:
    """Raise `ParameterError` where a package is missing."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ParameterError(f"tune needs {name}: pip install 'biglittle[tune]'")


def _merge(tasks: Sequence[Task]) -> Task:
    """One task of all examples that ask something of their own, the first turn of each.

    Raises:
        ParameterError: No task, or tasks whose answers end differently.
    """
    if not tasks:
        raise ParameterError("there is no task to tune for")
    if len({task.stop for task in tasks}) > 1:
        names = ", ".join(task.name for task in tasks)
        raise ParameterError(f"answers of {names} end differently: tune for one of them at a time")
    seen: dict[tuple[bool, str], Example] = {}
    for task in tasks:
        for example in task.examples:
            name = example.id if len(tasks) == 1 else f"{task.name}/{example.id}"
            first = dataclasses.replace(example, id=name, turns=example.turns[:1])
            seen.setdefault((first.chat, first.turns[0]), first)
    return Task("+".join(task.name for task in tasks), tuple(seen.values()), stop=tasks[0].stop)


def _header(pair: Pair, task: Task, max_new_tokens: int, seed: int) -> Header:
    """What outputs and times depend on."""
    return Header(
        settings={**describe(pair), "max_new_tokens": max_new_tokens, "seed": seed},
        data={"task": data_hash(task)},
        versions=versions(),
        hardware=hardware(),
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    )


@contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    """Within, a full disk is told in a line."""
    try:
        yield
    except OSError as cause:
        if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ParameterError(
            f"{folder}: the disk is full; make room, and the same command goes on"
        ) from cause


def _check_scores(base: Setting) -> None:
    """Refuse a relative budget of nothing."""
    for change in base.changes:
        if change.unit and not change.plain:
            raise ParameterError(
                f"budget {change.budget!r} is in per cent of what the target alone reaches, which "
                f"is 0 on {change.examples} examples; give one in points, or another metric"
            )


def _saved(folder: Path, budgets: Sequence[Budget]) -> Profile | None:
    """What an earlier call found inside the same budgets."""
    path = folder / PROFILE
    found = Profile.load(path) if path.exists() else None
    return found if found is not None and found.budgets == tuple(map(str, budgets)) else None


def _slower(ratio: float, than: str) -> str:
    return f"timed, it has {ratio:.2f} times the speed of {than}"


class _Run:
    """One call: measure, search, confirm, conclude."""

    def __init__(
        self,
        lab: Lab,
        parts: Split,
        budgets: Sequence[Budget],
        folder: Path,
        header: Header,
        clock: Clock,
        progress: Progress | None,
    ) -> None:
        self._lab, self._parts, self._budgets = lab, parts, budgets
        self._folder, self._header, self._clock = folder, header, clock
        self._progress = progress
        self._before = _saved(folder, budgets)
        self._rejected: list[Rejected] = []
        self._over = False
        """Whether the time is over."""

    def profile(self) -> Profile:
        """Do what is left to do, and save the answer."""
        self._lab.costs = self._costs()
        say = self._say("recording what the models write")
        traces = self._folder / "traces.jsonl"
        lossless = tune_lossless(self._lab, self._parts.search, traces, self._clock, say)
        self._parts = self._affordable(lossless.policy)
        base = self._lab.setting(lossless.policy, self._parts.search)
        _check_scores(base)
        search = self._searched(lossless) if self._budgets else None
        answer = self._confirmed(search, base) if search is not None else self._kept(base)
        answer = self._or_before(answer)
        found = self._found(answer)
        timed = self._timed(answer, base)
        profile = self._conclude(answer, base, found, timed, search.settings if search else [])
        draw(profile, self._lab.setting(PLAIN, self._parts.search), self._folder / "pareto.svg")
        profile.save(self._folder / PROFILE)
        return profile

    def _costs(self) -> PassCosts:
        """What passes cost, measured once."""
        path = self._folder / "costs.json"
        if path.exists():
            try:
                data = json.loads(path.read_text(encoding="utf8"))
                return PassCosts(tuple(map(Costs.from_dict, data)))
            except (ValueError, TypeError) as cause:
                raise ParameterError(f"{path} is damaged; delete it to measure anew") from cause
        prompt = self._lab.prompts(self._parts.search[:1])[0]
        say = self._say("timing passes")
        say(0, 1)
        found = measure_profile(self._lab.pair, prompt=prompt, progress=say)
        write_whole(path, json.dumps([costs.as_dict() for costs in found.costs]) + "\n")
        return found

    def _affordable(self, policy: str) -> Split:
        """The examples, or as many as there is time to let the target answer. Without a budget
        those are enough that were recorded."""
        names = self._parts.search if self._budgets else self._parts.search[:RECORDED]
        say = self._say("writing the target's own outputs")
        for done in range(0, len(names), ROWS):
            say(done, len(names))
            try:
                if done:
                    self._clock.check(OWN_SHARE)
            except OutOfTime:
                self._over = True
                names = names[:done]
                break
            for one in (PLAIN, policy):
                self._lab.outputs(one, names[done : done + ROWS])
        return Split(names, self._parts.held_out[: len(names)])

    def _searched(self, lossless: Lossless) -> Search:
        """The search, as far as the time goes."""
        search = Search(
            self._lab,
            self._parts.search,
            lossless,
            self._folder / "optuna.log",
            ", ".join(map(str, self._budgets)),
            seed=self._header.settings["seed"],
        )
        try:
            search.run(lambda: self._clock.check(SEARCH_SHARE), self._say("trying settings"))
        except OutOfTime:
            self._over = True
        return search

    def _confirmed(self, search: Search, base: Setting) -> Setting:
        """The fastest candidate that holds on examples which the search has not seen, or else the
        best lossless policy."""
        self._rejected += self._refuted()
        for candidate in search.candidates:
            if len(self._rejected) >= REJECTIONS:
                break
            if candidate.policy in {one.policy for one in self._rejected}:
                continue
            try:
                reason = self._objection(candidate, base)
            except OutOfTime:
                self._over = True
                break
            if reason is None:
                return candidate
            self._rejected.append(Rejected(candidate.policy, reason))
        return self._kept(base)

    def _refuted(self) -> list[Rejected]:
        """What an earlier call gave up for its quality on the examples that confirm: to look again
        would use them up."""
        before = () if self._before is None else self._before.rejected
        return [one for one in before if self._is_refuted(one.policy)]

    def _is_refuted(self, policy: str) -> bool:
        """Whether it is not inside, or there is no time to see."""
        if parse_policy(policy).lossless:  # given up for its speed
            return False
        try:
            return not self._lab.setting(policy, self._parts.held_out, self._clock.check).inside
        except OutOfTime:
            self._over = True
            return True

    def _kept(self, base: Setting) -> Setting:
        """The best lossless policy, or the target alone where that turns out to be as fast."""
        timed = self._timed(base, base)
        if timed is None or timed.speedup.value > 1:
            return base
        self._rejected.append(
            Rejected(base.policy, _slower(timed.speedup.value, "the target alone"))
        )
        return self._lab.setting(PLAIN, self._parts.search)

    def _or_before(self, answer: Setting) -> Setting:
        """The answer of an earlier call, where it is faster and nothing speaks against it: more
        time never gives a worse one."""
        before = self._before
        if before is None:
            return answer
        refuted = before.policy in {one.policy for one in self._rejected}
        if refuted or before.promised.ms_per_token >= answer.ms_per_token:
            return answer
        return self._lab.setting(before.policy, self._parts.search)

    def _objection(self, candidate: Setting, base: Setting) -> str | None:
        """Why a candidate is not the answer; None if it is."""
        names = self._parts.held_out
        self._say("confirming quality")(0, 1)
        found = self._lab.setting(candidate.policy, names, self._clock.check)
        for change in found.changes:
            if not change.inside:
                return (
                    f"{changes([change])} on {change.examples} other examples, which is not shown "
                    "to be inside the budget"
                )
        timed = self._time(candidate, base, names)
        assert timed.over_lossless is not None, "it is lossy"
        if timed.over_lossless.value <= 1:
            return _slower(timed.over_lossless.value, base.policy)
        if timed.speedup.value <= 1:
            return _slower(timed.speedup.value, "the target alone")
        return None

    def _found(self, answer: Setting) -> Setting | None:
        """A lossy answer on the examples that were held out: where it was confirmed."""
        if answer.lossless:
            return None
        return self._lab.setting(answer.policy, self._parts.held_out)

    def _timed(self, answer: Setting, base: Setting) -> Timed | None:
        """The answer timed; None where it is the target alone, or there is no time for that."""
        if answer.policy == PLAIN:
            return None
        try:
            return self._time(answer, base, self._parts.held_out or self._parts.search)
        except OutOfTime:
            self._over = True
            return None

    def _time(self, answer: Setting, base: Setting, names: Sequence[str]) -> Timed:
        return time_policies(
            self._lab,
            answer.policy,
            base.policy,
            names,
            self._folder,
            self._header,
            self._clock.check,
            self._say("timing the best"),
        )

    def _conclude(
        self,
        answer: Setting,
        base: Setting,
        found: Setting | None,
        timed: Timed | None,
        settings: Sequence[Setting],
    ) -> Profile:
        pair, header, origin = self._lab.pair, self._header, self._lab.pair.origin
        assert self._lab.costs is not None
        return Profile(
            policy=answer.policy,
            lossless=answer.lossless,
            verdict=verdict(answer, base, found, timed),
            notes=tuple(
                notes(answer, base, found, settings, self._rejected, out_of_time=self._over)
            ),
            target=origin.get("target"),
            draft=origin.get("draft"),
            options=origin.get("options", {}),
            models=describe(pair),
            task=self._lab.task.name,
            data=header.data["task"],
            seed=header.settings["seed"],
            max_new_tokens=header.settings["max_new_tokens"],
            budgets=tuple(map(str, self._budgets)),
            promised=answer,
            best_lossless=base,
            found=found,
            timed=timed,
            rejected=tuple(self._rejected),
            settings=tuple(settings),
            costs=self._lab.costs.costs,
            hardware=header.hardware,
            versions=header.versions,
            command=header.command,
        )

    def _say(self, what: str) -> Callable[[int, int], None]:
        def say(done: int, total: int) -> None:
            if self._progress is not None:
                self._progress(what, done, total)

        return say
