"""The diagnosis: measure, record, replay, conclude."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from ..engines.transformers.capability import vocab_size
from ..engines.transformers.cut_head import CutHead
from ..errors import ParameterError
from ..params import make_params
from ..traces import Traces, record
from .advice import Advice, advise
from .agreement import Agreement, measure_agreement
from .disco import disco_candidates
from .head import Head, study_head
from .lookup import lookup_traces
from .predict import Candidate, Comparison, Prediction, settings
from .profile import Profile, measure_profile

if TYPE_CHECKING:
    from ..decoding import Request
    from ..pair import Pair
    from ..prompts import PromptLike

__all__ = ["Diagnosis", "TaskShare", "diagnose"]

NGRAMS = (1, 2, 3, 4)
LOOKUP_WINDOWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
LOOKUP = "prompt lookup"

Progress = Callable[[str, int, int], None]
"""What is being done, how many steps of it are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The prompts of one task."""

    task: str
    prompts: int
    agreement: float
    """Of the best policy's drafter."""
    speedup: float
    """Of the best policy: the mean over the task's prompts."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was measured of a pair on this machine, and what follows."""

    target: str
    draft: str
    summary: str
    """How the models run."""
    prompts: int
    new_tokens: int
    profile: Profile
    agreement: Agreement
    """Of the pair's own drafter."""
    oracle: Prediction
    """The bound, for the pair's own drafter."""
    predictions: tuple[Prediction, ...]
    """The best setting of every policy, fastest first."""
    head: Head | None
    """The draft's head, where it was timed."""
    left_out: tuple[str, ...]
    """Why a policy was not predicted, a line each."""
    tasks: tuple[TaskShare, ...]
    """Where the prompts' tasks are known."""
    advice: Advice

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        data = asdict(self)
        data["agreement"]["calibration_error"] = self.agreement.calibration_error
        return data

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf8")


def diagnose(
    pair: Pair,
    prompts: Sequence[PromptLike],
    traces: str | Path,
    *,
    tasks: Sequence[str] = (),
    max_new_tokens: int = 64,
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure a pair's costs, record traces of the prompts, and predict every policy's speed.

    All predictions are for one greedy generation at a time, after the first token: reading the
    prompt takes the target equally long under every policy.

    Args:
        pair: A pair with a draft.
        prompts: As for `Pair.generate`.
        traces: The trace file; one of the same pair and settings is gone on with. DISCO's
            classifier is written beside it, as `disco.safetensors`.
        tasks: The prompts' tasks, for a breakdown; empty for none.
        max_new_tokens: Most tokens of an answer.
        progress: Told what is done.

    Raises:
        ParameterError: No prompt, a prompt that does not fit, a pair without a draft, or a trace
            file of something else; before any work starts.
    """
    params = make_params(None, {"temperature": 0.0, "max_new_tokens": max_new_tokens})
    requests = pair.requests(list(prompts), policy="none", params=params)
    say = _teller(progress)
    recorded = record(
        pair,
        prompts,
        traces,
        progress=say("recording what the models write"),
        max_new_tokens=max_new_tokens,
    )
    profile = measure_profile(pair, prompt=prompts[0], progress=say("timing passes"))
    classifier = Path(traces).with_name("disco.safetensors")
    return conclude(pair, requests, recorded, profile, tasks, classifier=classifier)


def conclude(
    pair: Pair,
    requests: Sequence[Request],
    traces: Traces,
    profile: Profile,
    tasks: Sequence[str] = (),
    *,
    classifier: Path,
) -> Diagnosis:
    """What follows from traces and costs, without running a model; `classifier` is where DISCO's
    goes."""
    header = traces.header
    families = settings(header.cap, profile.costs[0], modelled=header.chained)
    learned, left_out = _disco(traces, classifier)
    own = Comparison(traces, profile, families, learned)
    compared = [own, _lookup(pair, requests, traces, profile)]
    ranked = sorted(
        ((prediction, part) for part in compared for prediction in part.best()),
        key=lambda item: -item[0].speedup,
    )
    best, part = ranked[0]
    return Diagnosis(
        target=pair.name,
        draft=pair.draft_name,
        summary=pair.summary,
        prompts=len(traces),
        new_tokens=sum(len(trace.tokens) for trace in traces),
        profile=profile,
        agreement=measure_agreement(traces),
        oracle=own.oracle,
        predictions=tuple(prediction for prediction, _ in ranked),
        head=study_head(own, _plain_family(own), _vocab_to_cut(pair), requests[0].eos_ids),
        left_out=left_out,
        tasks=tuple(_by_task(part.traces, tasks, best)),
        advice=advise(best, part, "CPU" if pair.runner().device.type == "cpu" else "GPU"),
    )


def _disco(traces: Traces, path: Path) -> tuple[list[Candidate], tuple[str, ...]]:
    """DISCO's candidates, or why there are none; copies have nothing that it could look at."""
    if not traces.header.chained:
        return [], ()
    try:
        return disco_candidates(traces, path), ()
    except ParameterError as reason:
        return [], (str(reason),)


def _plain_family(own: Comparison) -> str:
    """The fastest family whose settings can be replayed anew, without training."""
    return next(one.family for one in own.best() if one.family != "disco")


def _vocab_to_cut(pair: Pair) -> int:
    """Tokens of the head of a draft model, where it could be cut to some; 0 elsewhere."""
    model = pair.draft
    if not isinstance(model, PreTrainedModel) or isinstance(model.get_output_embeddings(), CutHead):
        return 0
    return vocab_size(model)


def _lookup(
    pair: Pair, requests: Sequence[Request], traces: Traces, profile: Profile
) -> Comparison:
    """Prompt lookup on the same texts, with the n-gram that suits them best."""
    families = {LOOKUP: [f"static:tokens={k}" for k in LOOKUP_WINDOWS if k <= traces.header.cap]}
    compared = [
        Comparison(lookup_traces(traces, requests, pair, ngram), profile, families)
        for ngram in NGRAMS
    ]
    return min(compared, key=lambda part: part.fastest())


def _by_task(traces: Traces, tasks: Sequence[str], best: Prediction) -> list[TaskShare]:
    """Shares of the best policy, whose drafter's the traces are."""
    shares = []
    for task in dict.fromkeys(tasks):
        own = [index for index, name in enumerate(tasks) if name == task]
        part = Traces(traces.header, tuple(traces.traces[index] for index in own))
        speedup = sum(best.by_prompt[index] for index in own) / len(own)
        shares.append(TaskShare(task, len(own), measure_agreement(part).rate, speedup))
    return shares


def _teller(progress: Progress | None) -> Callable[[str], Callable[[int, int], None]]:
    def say(what: str) -> Callable[[int, int], None]:
        return lambda done, total: None if progress is None else progress(what, done, total)

    return say
