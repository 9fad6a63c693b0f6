"""What a benchmark runs: biglittle under a policy, and transformers' own generation beside it.

A system takes a prompt to an answer, and says what that cost. Peers run the same models: the very
same modules where they are as transformers loads them. Weights that biglittle packed or quantized
while loading are its own doing, and peers get models without.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, StoppingCriteriaList, StopStringCriteria

from ..decoding import Request
from ..engines.timing import Stopwatch
from ..engines.transformers.packing import PackedLinear
from ..engines.transformers.quantizing import Int4Linear
from ..pair import Pair
from ..params import GenerationParams
from ..policy import Policy
from ..results import Stats

__all__ = ["PEER", "PLAIN", "Answer", "Ours", "Peer", "System", "as_loaded", "peer_names"]
__all__ += ["why_no_peers"]

PLAIN = "none"
"""The system that all others are set beside: our plain decoding."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One generation."""

    text: str
    tokens: tuple[int, ...]
    """Generated tokens, an EOS that ended them included."""
    seconds: float
    """Wall-clock time from the prompt's tokens to the whole answer."""
    stats: Stats
    """What it cost. Of a peer, as its forwards tell: each draft pass is a predicted token."""
    rounds: tuple[tuple[int, int], ...]
    """Drafted and accepted tokens of every target pass after the prompt's."""
    exits: tuple[int, ...] = ()
    """Layers that every token took, of a system whose tokens leave early."""


class System(Protocol):
    """Something that answers prompts.

    Attributes:
        name: A policy string, "transformers …" or "calm:…".
        lossless: Whether it promises the target's own output.
    """

    @property
    def name(self) -> str:
        """See the class."""

    @property
    def lossless(self) -> bool:
        """See the class."""

    def answer(self, request: Request, params: GenerationParams) -> Answer:
        """Go on from a request's prompt.

        Args:
            request: The prompt's tokens, and limits, as `Pair.requests` resolved them.
            params: What the request was made with.
        """


@dataclass(frozen=True, slots=True)
class Ours:
    """biglittle under a policy."""

    pair: Pair
    policy: Policy

    @property
    def name(self) -> str:
        """The policy's string."""
        return str(self.policy)

    @property
    def lossless(self) -> bool:
        """Whether the policy is."""
        return self.policy.lossless

    def answer(self, request: Request, params: GenerationParams) -> Answer:
        """See `System.answer`."""
        request = replace(request, policy=self.policy, trace=True)
        started = time.perf_counter()
        result = self.pair.run([request])[0]
        seconds = time.perf_counter() - started
        if result.error is not None:
            raise result.error
        rounds = tuple((part.drafted, part.accepted) for part in result.rounds or ())
        return Answer(result.text, result.token_ids, seconds, result.stats, rounds)


SCHEDULES: Mapping[str, Mapping[str, Any]] = {
    "constant": {
        "num_assistant_tokens_schedule": "constant",
        "num_assistant_tokens": 5,
        "assistant_confidence_threshold": 0.0,
    },
    "heuristic": {
        "num_assistant_tokens_schedule": "heuristic",
        "num_assistant_tokens": 5,
        "assistant_confidence_threshold": 0.0,
    },
    "dynamic": {  # transformers' default
        "num_assistant_tokens_schedule": "constant",
        "num_assistant_tokens": 20,
        "assistant_confidence_threshold": 0.4,
    },
}
LOOKUP_TOKENS = 10  # as transformers' documentation has it
PEER = "transformers "
"""What the names of all peers begin with."""


def peer_names(pair: Pair) -> list[str]:
    """The peers that a pair's models allow."""
    if why_no_peers(pair) is not None:
        return []
    assisted = [f"{PEER}{name}" for name in SCHEDULES] if pair.draft is not None else []
    lookup = [] if _is_seq2seq(pair) else [f"{PEER}prompt lookup"]  # it looks up decoder tokens
    return [f"{PEER}plain", *assisted, *lookup]


def why_no_peers(pair: Pair) -> str | None:
    """Why transformers cannot run beside us on these models; None if it can."""
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        if model is not None and not isinstance(model, PreTrainedModel):
            return f"no peers: the {role} runs in llama.cpp, and transformers cannot run it there"
    if pair.draft is pair.target:
        return "no peers: target and draft are one object, and their passes look alike"
    return None


def as_loaded(pair: Pair) -> bool:
    """Whether the models' layers are as transformers loads them: neither packed nor quantized."""
    models = [model for model in (pair.target, pair.draft) if isinstance(model, torch.nn.Module)]
    ours = (PackedLinear, Int4Linear)
    return not any(isinstance(module, ours) for model in models for module in model.modules())


@dataclass(frozen=True, slots=True)
class Peer:
    """transformers' own generation.

    Args:
        pair: Models that are `as_loaded`.
        name: One of `peer_names`.
    """

    pair: Pair
    name: str
    lossless: bool = field(default=True, init=False)

    def answer(self, request: Request, params: GenerationParams) -> Answer:
        """See `System.answer`."""
        inputs, options = self._inputs(request), self._options(request, params)
        if params.seed is not None:
            torch.manual_seed(params.seed)
        with self._schedule(), _watched(self.pair.target) as big, ExitStack() as more:
            little = None
            if "assistant_model" in options:
                little = more.enter_context(_watched(self.pair.draft))
            started = time.perf_counter()
            output = self.pair.target.generate(**inputs, **options)
            tokens = output[0, len(request.prompt.tokens) :].tolist()  # waits for the device
            seconds = time.perf_counter() - started
        prompt = len(request.prompt.tokens)
        rounds = _rounds(big.passes, prompt, len(tokens))
        tokens = self._until_stop(tokens, params.stop_strings)
        stats = Stats(
            rounds=len(rounds),
            target_passes=len(big.passes),
            draft_passes=len(little.passes) if little else 0,
            prompt_tokens=prompt,
            new_tokens=len(tokens),
            predicted=sum(drafted for drafted, _ in rounds),
            drafted=sum(drafted for drafted, _ in rounds),
            accepted=sum(accepted for _, accepted in rounds),
            rollbacks=sum(accepted < drafted for drafted, accepted in rounds),
            draft_seconds=little.stopwatch.seconds if little else 0.0,
            target_seconds=big.stopwatch.seconds,
            total_seconds=seconds,
            first_token_seconds=big.first - started,
        )
        text = self.pair.tokenizer.decode(tokens, skip_special_tokens=True)
        return Answer(_cut(text, params.stop_strings), tuple(tokens), seconds, stats, rounds)

    def _until_stop(self, tokens: list[int], stops: Sequence[str]) -> list[int]:
        """Tokens up to the one that completes a stop string. transformers looks for it only behind
        the last token of a window, and may write past it."""
        decode = self.pair.tokenizer.decode
        if any(stop in decode(tokens, skip_special_tokens=True) for stop in stops):
            for count in range(1, len(tokens)):
                text = decode(tokens[:count], skip_special_tokens=True)
                if any(stop in text for stop in stops):
                    return tokens[:count]
        return tokens

    def _inputs(self, request: Request) -> dict[str, Any]:
        """What `generate` reads."""
        device = self.pair.target.device
        tokens = torch.tensor([request.prompt.tokens], device=device)
        if request.prompt.encoder is None:
            return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        encoder = {name: value.to(device) for name, value in request.prompt.encoder.items()}
        return {**encoder, "decoder_input_ids": tokens}

    def _options(self, request: Request, params: GenerationParams) -> dict[str, Any]:
        """How `generate` decodes."""
        options: dict[str, Any] = {"max_new_tokens": request.max_new_tokens, "do_sample": False}
        if params.temperature:
            options |= {"do_sample": True, "temperature": params.temperature}
            if params.top_p is not None:
                options["top_p"] = params.top_p
        if params.stop_strings:  # by `stop_strings` transformers' assisted generation fails
            criterion = StopStringCriteria(self.pair.tokenizer, list(params.stop_strings))
            options["stopping_criteria"] = StoppingCriteriaList([criterion])
        kind = self.name.removeprefix(PEER)
        if kind in SCHEDULES:
            options["assistant_model"] = self.pair.draft
        elif kind == "prompt lookup":
            options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        return options

    @contextmanager
    def _schedule(self) -> Iterator[None]:
        """The draft's settings for this run. transformers changes them as it goes; every run
        starts from the same, and afterwards they are as they were."""
        settings = SCHEDULES.get(self.name.removeprefix(PEER))
        if settings is None:
            yield
            return
        config = self.pair.draft.generation_config
        before = {name: getattr(config, name) for name in settings}
        try:
            for name, value in settings.items():
                setattr(config, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(config, name, value)


def _is_seq2seq(pair: Pair) -> bool:
    return bool(pair.target.config.is_encoder_decoder)


def _cut(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


class _Watch:
    """What one model's forwards tell: where each began, how wide it was, and the time they took."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stopwatch = Stopwatch(device)
        self.passes: list[tuple[int, int]] = []  # cached tokens before it, tokens read
        self.first = 0.0  # when the first pass was done

    def before(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
        cache = kwargs.get("cache", kwargs.get("past_key_values"))  # as the model calls it
        cached = 0 if cache is None else int(cache.get_seq_length())
        self.passes.append((cached, kwargs[name].shape[1]))
        self.stopwatch.__enter__()

    def after(self, model: Any, args: tuple[Any, ...], output: Any) -> None:
        self.stopwatch.__exit__()
        if not self.first:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.first = time.perf_counter()


@contextmanager
def _watched(model: Any) -> Iterator[_Watch]:
    watch = _Watch(model.device)
    hooks = [
        model.register_forward_pre_hook(watch.before, with_kwargs=True),
        model.register_forward_hook(watch.after),
    ]
    try:
        yield watch
    finally:
        for hook in hooks:
            hook.remove()


def _rounds(
    passes: Sequence[tuple[int, int]], prompt: int, new_tokens: int
) -> tuple[tuple[int, int], ...]:
    """Drafted and accepted tokens of every pass, from where passes began and how wide they were.

    A pass reads the last token that is certain and what was drafted after it (the first one reads
    the whole prompt), and the next pass begins behind what it accepted.
    """
    starts = [prompt - 1, *(cached for cached, _ in passes[1:]), prompt + new_tokens - 1]
    ends = [cached + width for cached, width in passes]
    return tuple(
        (end - start - 1, max(0, after - start - 1))
        for start, end, after in zip(starts, ends, starts[1:], strict=False)
    )
