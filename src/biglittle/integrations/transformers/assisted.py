"""What `generate(custom_generate=...)` is given."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from torch import Tensor

from ...decoding import Row
from ...engines.llama_cpp import LlamaModel
from ...engines.transformers.capability import base_model
from ...errors import ParameterError, nearest
from ...lookahead import Confidence, Constant, Heuristic
from ...matching import parse_draft
from ...pair import Pair
from ...policy import Policy, PolicyLike, parse_policy
from ...results import Result
from .batch import Batch
from .processors import Processor

__all__ = ["Assisted", "assisted", "policy_of"]

SCHEDULES = ("constant", "heuristic", "heuristic_transient")


def assisted(draft: Any = None, policy: PolicyLike | None = None) -> Assisted:
    """Let a transformers model generate with a draft:
    `model.generate(**inputs, custom_generate=biglittle.assisted(draft))`.

    Args:
        draft: A little transformers (or PEFT) model; `"prompt-lookup"` (`"prompt-lookup:ngram=3"`)
            or `"early-exit:layers=4"`; or None for the target alone.
        policy: See `biglittle.parse_policy`. Default: what the draft's `generation_config` asks
            for (the target's, where the draft is no model of its own), as in transformers' assisted
            generation; see `policy_of`.

    Raises:
        ParameterError, PolicyError: A draft or a policy that is none.
        UnsupportedModelError: A draft that is no model.
    """
    return Assisted(draft, policy)


def policy_of(config: Any) -> Policy:
    """The policy that a draft's `generation_config` asks for.

    `num_assistant_tokens` (20 if it is not set) are the most tokens of a window.
    `num_assistant_tokens_schedule` is "constant" (if it is not set), or "heuristic" or
    "heuristic_transient", which let the window grow and shrink. With any of them, a window ends
    after a token whose probability is below `assistant_confidence_threshold` (0.4 if it is not set;
    0 is off). The defaults are transformers' own.

    Raises:
        ParameterError: An unknown schedule.
        PolicyError: A number out of range.
    """
    default = Confidence()
    tokens, threshold = config.num_assistant_tokens, config.assistant_confidence_threshold
    tokens = default.tokens if tokens is None else int(tokens)
    threshold = default.threshold if threshold is None else float(threshold)
    schedule = config.num_assistant_tokens_schedule or "constant"
    if schedule not in SCHEDULES:
        raise ParameterError(
            f"num_assistant_tokens_schedule={schedule!r} is unknown; known: {', '.join(SCHEDULES)}"
            f"{nearest(str(schedule), SCHEDULES)}"
        )
    if schedule == "constant":
        return Policy(Confidence(threshold, tokens) if threshold else Constant(tokens))
    most = max(tokens, Heuristic().tokens)
    return Policy(Heuristic(start=tokens, tokens=most, threshold=threshold))


class Assisted:
    """A decoding loop for `generate(custom_generate=...)`; `assisted` makes one.

    It can be used for any number of calls, and with any target that fits the draft.

    Attributes:
        last: The rows of the last call, each a `Result` with its statistics (and without text:
            there is no tokenizer).
    """

    def __init__(self, draft: Any = None, policy: PolicyLike | None = None) -> None:
        self._spec = parse_draft(draft)
        named = isinstance(self._spec.model, str | Path)
        if isinstance(draft, LlamaModel) or (named and str(draft).lower().endswith(".gguf")):
            raise ParameterError(
                f"draft {str(draft)!r}: a GGUF draft cannot be used inside transformers; load both "
                "models with biglittle.load instead"
            )
        if named:
            raise ParameterError(
                f"draft {str(draft)!r} is neither a model nor 'prompt-lookup' nor "
                "'early-exit:layers=NUMBER'; load the model with from_pretrained first"
            )
        if self._spec.model is not None:
            base_model(self._spec.model)  # refuses what is no model
        self._policy = None if policy is None else parse_policy(policy)
        self.last: tuple[Result, ...] = ()

    @property
    def lossless(self) -> bool:
        """Whether the output is the target's own. BiLD's is not."""
        return self._policy is None or self._policy.lossless

    def __repr__(self) -> str:
        policy = "" if self._policy is None else f", policy={str(self._policy)!r}"
        return f"biglittle.assisted({self._spec}{policy})"

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Sequence[Processor],
        stopping_criteria: Sequence[Any],
        generation_config: Any,
        inputs_tensor: Tensor | None = None,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Called by `generate`, with what it has prepared; it returns what this returns.

        Args:
            model: The target.
            input_ids: Prompts (of the decoder), [rows, width], once a sample.
            logits_processor: Those of the configuration and the caller's, in their order.
            stopping_criteria: The same.
            generation_config: With every default filled in.
            inputs_tensor: The encoder's inputs, [rows / samples, ...].
            streamer: Default: the one that was given to `generate`.
            **model_kwargs: Masks, encoder outputs and so on.

        Returns:
            Token ids, [rows, width + steps]; or, with `return_dict_in_generate`, transformers'
            output class with `sequences`, and `scores` and `logits` if they were asked for.

        Raises:
            ParameterError, ContextError: A request that cannot be met, before any work starts.
            RowError: An exception in a processor or a criterion, chained as `__cause__`.
        """
        draft = model if self._spec.model is None else base_model(self._spec.model)
        policy = self._policy_for(draft.generation_config)
        streamer = _streamer_of_caller() if streamer is None else streamer
        with _evaluating(model):
            pair = Pair(model, self._spec, policy=policy)
            batch = Batch(
                pair=pair,
                engine=pair.engine(),
                input_ids=input_ids,
                processors=tuple(logits_processor),
                criteria=tuple(stopping_criteria),
                config=generation_config,
                inputs=inputs_tensor,
                extra=model_kwargs,
            )
            rows = _decode(batch, streamer)
            output = batch.output(rows)
        self.last = tuple(row.result() for row in rows)
        if self._policy is None:
            _remember(draft.generation_config, rows)
        return output

    def _policy_for(self, config: Any) -> Policy:
        if self._policy is not None:
            return self._policy
        return policy_of(config) if self._spec.drafts else Policy.none()


def _decode(batch: Batch, streamer: Any) -> list[Row]:
    """Run all rows to their end, streaming the steps that all have been through."""
    engine = batch.engine
    engine.vocab = engine.target.vocab  # a draft with a smaller head does not narrow the scores
    rows = [engine.admit(request) for request in batch.requests()]
    sent = 0
    while engine.busy:
        for row in engine.step():
            if row.error is not None:
                raise row.error
        if streamer is not None:
            steps = batch.steps(rows)
            for step in range(sent, steps):
                streamer.put(torch.tensor([batch.token(row, step) for row in rows]))
            sent = steps
    if streamer is not None:
        streamer.end()
    return rows


def _remember(config: Any, rows: Sequence[Row]) -> None:
    """Let the draft's next call start with the window that this one has arrived at, on average."""
    windows = [row.lookahead_state for row in rows if isinstance(row.lookahead, Heuristic)]
    if windows and config.num_assistant_tokens_schedule == "heuristic":
        config.num_assistant_tokens = round(sum(windows) / len(windows))


def _streamer_of_caller() -> Any:
    """The streamer that was given to `generate`.

    transformers gives it the prompt and then drops it on the way to a `custom_generate` callable.
    It is still an argument of the call of `generate` that we are in.
    """
    code = inspect.unwrap(tf.GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("streamer")


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Leave a model that is being trained in training mode: runners put it into eval mode."""
    training = [module for module in model.modules() if module.training]
    try:
        yield
    finally:
        for module in training:
            module.training = True
