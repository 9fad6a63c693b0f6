"""Alignment from end to end: ask the target, measure, train, measure again.

Every stage leaves its result in the folder, and a run that was killed goes on with the next.
"""

from __future__ import annotations

import gc
import random
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.environment import hardware, versions
from ..bench.tasks import Task
from ..costs import Costs
from ..diagnosis.profile import Profile
from ..errors import ParameterError
from .calibration import Answer, Calibration, opened
from .card import model_card
from .data import Sample, data_hash
from .evaluation import Evaluation, Progress, evaluate
from .files import written_whole
from .plan import Plan
from .prompts import opening, write_prompts
from .report import AlignReport, State
from .rows import ROWS
from .students import make_student
from .training import TrainingReport

if TYPE_CHECKING:
    from ..pair import Pair

__all__ = ["align"]

HELD_OUT = 100  # conversations at most, where it is not said


def align(
    plan: Plan,
    out: str | Path,
    *,
    answers: str | Path | None = None,
    rows: int = ROWS,
    command: str = "",
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> AlignReport:
    """Make a draft that proposes what its target would write.

    The target answers the prompts greedily; the draft is trained on its answers; acceptance and
    predicted speed on held-out prompts are measured before and after. The folder gets the draft,
    a model card (`README.md`), and `align.json` with everything that was measured.

    Args:
        plan: What, with what, and how.
        out: The folder; new, or that of the same plan, which is gone on with.
        answers: A file of the target's answers that several runs share: what one has asked, the
            next does not ask again. Default: one in the folder.
        rows: Texts that are written beside each other.
        command: For the model card.
        progress: Told what is done.
        stop: Once it is set, the work ends at the next step, training with a checkpoint.

    Raises:
        ParameterError: A plan or data that cannot be used, a folder of something else or one that
            cannot be written.
        LoadError, IncompatiblePairError: Models that cannot be loaded, or used together.
        KeyboardInterrupt: It was stopped; the same call goes on.
    """
    run = _Run(plan, Path(out), answers, rows, progress or _silent, stop)
    if "made" not in run.state:
        with closing(run.state):
            run.run()
            card = model_card(plan, run.report(), command)
            written_whole(run.out / "README.md", card)
            made = {"command": command, "versions": versions(), "hardware": hardware()}
            run.state.put("made", made)
    shutil.rmtree(run.work / "training", ignore_errors=True)
    shutil.rmtree(run.work / "init", ignore_errors=True)
    return run.report()


class _Run:
    """The stages, each done once."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        answers: str | Path | None,
        rows: int,
        say: Progress,
        stop: threading.Event | None,
    ) -> None:
        self.plan, self.out, self.rows, self.stop = plan, out, rows, stop
        self._say = say
        self.work = out / "work"
        self.answers = Path(answers or self.work / "answers.jsonl").expanduser()
        self.state = State(out, plan.as_dict())
        self.student = make_student(plan, out, self.work)
        self.tasks = list(plan.tasks)
        self._loaded: tuple[tuple[str, str | None], Pair] | None = None

    def run(self) -> None:
        """Do what is not done yet."""
        if self.state.begun:
            self.state.begin()
        answers = self._answers()
        kept, held = self._split(answers)
        samples, held_out = [a.sample for a in kept], [a.sample for a in held]
        tasks = _held_out_tasks(self.tasks, held)
        if self.student.writes_with is None:  # cut out of the target, which is loaded once more
            self.free()
            self.student.prepare()
        if "before" not in self.state:
            self._evaluate("before", (self.plan.target, self.student.before), held_out, tasks)
        if "training" not in self.state:
            self._train(samples, held_out)
        if "after" not in self.state:
            known = not self.plan.joint
            self._evaluate("after", self.student.after, held_out, tasks, known=known)

    def say(self, what: str, done: int, total: int) -> None:
        """Tell what is done; between two steps, work can be stopped."""
        self._say(what, done, total)
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt

    def pair(self, target: str, draft: str | None) -> Pair:
        """Those two models; the last pair goes before another comes."""
        from ..pair import load

        if self._loaded is None or self._loaded[0] != (target, draft):
            self.free()
            options = dict(self.plan.options) if draft is not None else self._without_draft()
            self._loaded = (target, draft), load(target, draft, **options)
        return self._loaded[1]

    def _without_draft(self) -> dict[str, Any]:
        return {k: v for k, v in self.plan.options.items() if not k.startswith("draft_")}

    def free(self) -> None:
        """Let go of the models."""
        self._loaded = None
        gc.collect()

    # Asking the target.

    def _answers(self) -> list[Answer]:
        plan = self.plan
        pair = self.pair(plan.target, self.student.writes_with)
        if not plan.tasks:
            opening(pair.tokenizer, pair.name)  # refuses
        self.student.check(pair)
        weights = pair.fingerprints
        self._check_weights(weights)
        if not plan.tasks:
            self._held_out(plan.prompts)  # refuses
            self.state.begin()
            with opened(pair, self.answers, plan.max_new_tokens):
                pass  # refuses
            self.tasks = [self._prompts(pair)]
        calibration = Calibration(
            pair, self.tasks, max_new_tokens=plan.max_new_tokens, rows=self.rows
        )
        self._held_out(calibration.conversations)  # refuses
        self.state.begin()
        answers = calibration.run(
            self.answers,
            lambda done, total, _: self.say("asking the target", done, total),
        )
        samples = [answer.sample for answer in answers]
        self.state.put("weights", weights)
        self.state.put("data", {"hash": data_hash(samples), "too_long": calibration.too_long})
        return answers

    def _check_weights(self, weights: Mapping[str, str]) -> None:
        """Refuse to go on with models that were changed where they lie."""
        for side, found in weights.items():
            if "weights" in self.state and self.state["weights"][side] != found:
                raise ParameterError(
                    f"{self.out} holds an alignment with other weights of the {side} than it has "
                    "now; give another folder"
                )

    def _prompts(self, pair: Pair) -> Task:
        return write_prompts(
            pair,
            self.plan.prompts,
            self.work / "prompts.jsonl",
            seed=self.plan.settings.seed,
            rows=self.rows,
            progress=lambda done, total, _: self.say("writing prompts", done, total),
        )

    def _held_out(self, conversations: int) -> int:
        """How many of them are not trained on."""
        count = self.plan.held_out or max(1, min(HELD_OUT, conversations // 10))
        if count >= conversations:
            raise ParameterError(
                f"held_out={count} leaves nothing to train on: there are {conversations} "
                "conversations; give more prompts, or hold out fewer"
            )
        return count

    def _split(self, answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
        """What is trained on, and what is held out: whole conversations."""
        asked = list(dict.fromkeys((answer.task, answer.example) for answer in answers))
        held = random.Random(self.plan.settings.seed).sample(asked, self._held_out(len(asked)))
        apart = set(held)
        return (
            [answer for answer in answers if (answer.task, answer.example) not in apart],
            [answer for answer in answers if (answer.task, answer.example) in apart],
        )

    # Measuring and training.

    def _evaluate(
        self,
        stage: str,
        models: tuple[str, str],
        held_out: Sequence[Sample],
        tasks: Sequence[Task],
        *,
        known: bool = True,
    ) -> None:
        found, profile = evaluate(
            self.pair(*models),
            held_out,
            self.work / f"traces-{stage}.jsonl",
            tasks=tasks if self.student.is_model else (),
            profile=self._profile() if self.student.costs_stay else None,
            known=known,
            max_new_tokens=self.plan.max_new_tokens,
            rows=self.rows,
            progress=lambda what, done, total: self.say(f"{stage}: {what}", done, total),
        )
        self.state.put("costs", [costs.as_dict() for costs in profile.costs])
        self.state.put(stage, asdict(found))

    def _profile(self) -> Profile | None:
        """What passes cost, measured before."""
        if "costs" not in self.state:
            return None
        return Profile(tuple(Costs.from_dict(costs) for costs in self.state["costs"]))

    def _train(self, samples: Sequence[Sample], held_out: Sequence[Sample]) -> None:
        self.free()

        def watch(done: int, total: int, agreement: float | None) -> None:
            known = "" if agreement is None else f", agreement {100 * agreement:.1f} %"
            self._say(f"training{known}", done, total)

        report = self.student.train(samples, held_out, self.work / "training", watch, self.stop)
        self.state.put("training", asdict(report))

    def report(self) -> AlignReport:
        """What it has come to."""
        state = self.state
        history = tuple((step, rate) for step, rate in state["training"]["history"])
        return AlignReport(
            folder=self.out,
            target=self.student.after[0],
            draft=self.student.after[1],
            data=state["data"]["hash"],
            too_long=state["data"]["too_long"],
            training=TrainingReport(**{**state["training"], "history": history}),
            before=Evaluation(**state["before"]),
            after=Evaluation(**state["after"]),
        )


def _held_out_tasks(tasks: Sequence[Task], held: Sequence[Answer]) -> list[Task]:
    """The tasks, with what is held out of them."""
    names = {(answer.task, answer.example) for answer in held}
    found = []
    for task in tasks:
        examples = tuple(one for one in task.examples if (task.name, one.id) in names)
        if examples:
            found.append(replace(task, examples=examples))
    return found


def _silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""
