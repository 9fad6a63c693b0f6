"""The pair: a target, a drafter, a tokenizer and a default policy."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import math
import queue
import threading
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .chat import Chat
from .decoding import Capacity, Engine, Request
from .decoding.sampling import resolve
from .drafters import Drafter, EarlyExitDrafter, ModelDrafter, PromptLookupDrafter
from .engines import open_model
from .engines.base import EncoderInput, Runner
from .engines.llama_cpp import LlamaOptions
from .engines.loading import recipes
from .engines.threads import release_workers
from .engines.transformers import TransformersRunner
from .engines.transformers.exit_adapter import ExitAdapter, load_exit
from .engines.transformers.fingerprint import fingerprint
from .errors import ParameterError, PolicyError, UnsupportedModelError
from .matching import DraftSpec, check_pair, check_tokenizers, parse_draft, shared_vocab
from .params import GenerationParams, make_params
from .policy import Policy, PolicyLike, parse_policy
from .prompts import PromptLike, Prompts
from .results import Chunk, Result

if TYPE_CHECKING:
    from .tune import Profile

__all__ = ["Pair", "load"]

log = logging.getLogger("biglittle")

DEFAULT_POLICY = "cost-aware"
ON_A_GPU = "cost-aware:read=0.001"  # many tokens are read there in the time of a few
EARLY_EXIT = "cost-aware:read=0"  # the target has read everything
FREE = "cost-aware:draft=0,read=0"  # for drafts that cost nothing


def load(
    target: Any = None,
    draft: Any = None,
    *,
    profile: str | Path | Profile | None = None,
    policy: PolicyLike | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    draft_dtype: str | torch.dtype | None = None,
    draft_device: str | torch.device | None = None,
    draft_quantize: str | None = None,
    draft_vocab: int | str | Path | Sequence[int] | None = None,
    engine: str = "auto",
    draft_engine: str | None = None,
    llama: LlamaOptions | Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    adapter: str | Path | None = None,
    pack: bool = True,
    trust_remote_code: bool = False,
) -> Pair:
    """Load a target and what drafts for it.

    Args:
        target: A hub id, a local folder, a GGUF file, a name from `biglittle models`, or a model
            in memory: a transformers (or PEFT) model, or a `LlamaModel`.
        draft: A little model, given the same way; or `"early-exit:layers=4"` (the target's first
            layers; `"early-exit:adapter=FOLDER"` with a trained exit), or `"prompt-lookup"` (the
            text so far; `"prompt-lookup:ngram=3"`); None for the target alone.
        profile: What `biglittle tune` found, or its file: policy, models and their options are the
            profile's where they are not given. Its policy may be lossy.
        policy: The default policy of the pair; see `biglittle.parse_policy`. Default: "cost-aware",
            which is lossless; "none" without a draft.
        dtype: Of the target; "auto" is the checkpoint's own.
        device: Of the target; "auto" is a GPU where there is one.
        draft_dtype: Of the draft; default: as for the target.
        draft_device: Of the draft; default: the target's.
        draft_quantize: "int4": four-bit weights for the draft, on a CPU. It drafts about
            twice as fast and nearly as well; what is lossless stays so, for the target checks it.
        draft_vocab: Tokens that the draft may propose: how many from the first one, a text file
            (those that occur in it), or ids. The draft's head is cut to them, which makes a draft
            of a large vocabulary faster; what is lossless stays so.
        engine: "transformers", "llama.cpp" (for GGUF files, with the extra `biglittle[llama]`), or
            "auto": llama.cpp for GGUF files where it is installed.
        draft_engine: Of the draft; default: as for the target, where that can run it. The two
            models may live in different engines.
        llama: Options of llama.cpp by its own names (`n_ctx`, `n_threads`, `n_gpu_layers`, …);
            see `biglittle.LlamaOptions`.
        tokenizer: A tokenizer in place of the target's own.
        adapter: A PEFT adapter for the target; the draft does not see it.
        pack: Lay bfloat16 weights out for the CPU while loading: the same results, faster. Give
            False to train or change the models afterwards. Models that you give as objects are
            left as they are.
        trust_remote_code: As in transformers.

    Raises:
        LoadError: A model that cannot be found or read.
        UnsupportedModelError: A model whose state cannot be rolled back.
        IncompatiblePairError: Two models that cannot work together.
        PolicyError, ParameterError: Options that cannot be used; a profile of another pair, or
            neither a target nor a profile that names one.
    """
    options: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "draft_dtype": draft_dtype,
        "draft_device": draft_device,
        "draft_quantize": draft_quantize,
        "draft_vocab": draft_vocab,
        "engine": engine,
        "draft_engine": draft_engine,
        "adapter": adapter,
        "pack": pack,
        "trust_remote_code": trust_remote_code,
        "llama": llama,
    }
    tuned = None if profile is None else _read_profile(profile)
    if tuned is not None:
        target, draft, options = tuned.sources(target, draft, options, DEFAULTS)
        policy = tuned.policy if policy is None else policy
    if target is None:
        raise ParameterError("there is no target: name one, or give a profile")
    chosen = None if policy is None else parse_policy(policy)
    spec = parse_draft(draft)
    big, little = recipes(target, spec.model, **options)
    own = big.tokenizer() if tokenizer is None else tokenizer
    little_tokenizer = None
    if spec.model is not None:
        little_tokenizer = little.tokenizer()
        big_name = str(target) if isinstance(target, str | Path) else type(target).__name__
        check_tokenizers(own, little_tokenizer, big_name, str(spec.model))
    model = big.load()
    if spec.model is not None:
        spec = dataclasses.replace(spec, model=little.load())
    pair = Pair(model, spec, own, little_tokenizer, policy=chosen)
    if tuned is not None:
        tuned.check(pair)
    changed = {name: value for name, value in options.items() if value != DEFAULTS[name]}
    pair.origin = _origin(target, draft, changed)
    return pair


DEFAULTS = {name: option.default for name, option in inspect.signature(load).parameters.items()}
"""Of the options of `load`."""


def _read_profile(profile: str | Path | Profile) -> Profile:
    from .tune import Profile

    return profile if isinstance(profile, Profile) else Profile.load(profile)


def _origin(target: Any, draft: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as plain data: models in memory are left out, and so is the trust in code
    that comes with a model, which is nobody's to pass on."""
    names = {"target": target, "draft": draft}
    found: dict[str, Any] = {
        key: str(name) for key, name in names.items() if isinstance(name, str | Path)
    }
    plain = {name: _plain(value) for name, value in options.items() if name != "trust_remote_code"}
    return {**found, "options": plain}


def _plain(value: Any) -> Any:
    """An option of `load`, for JSON."""
    if isinstance(value, LlamaOptions):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {name: part for name, part in value.items() if part is not None}
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, Sequence):
        return list(value)
    return str(value).removeprefix("torch.")  # a dtype, a device, a path


class Pair:
    """A target and its drafter, ready to generate. `load` makes one.

    Args:
        target: A transformers (or PEFT) model, or a `LlamaModel`.
        draft: A model, a string as in `load`, or None.
        tokenizer: The target's; None for a `LlamaModel`'s own, or to work with token ids.
        draft_tokenizer: The draft's, to be checked against the target's; None for a `LlamaModel`'s
            own, or if it is the same.
        policy: The default policy.
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        tokenizer: Any = None,
        draft_tokenizer: Any = None,
        *,
        policy: PolicyLike | None = None,
    ) -> None:
        spec = draft if isinstance(draft, DraftSpec) else parse_draft(draft)
        self._target = open_model(target)
        self._draft = None if spec.model is None else open_model(spec.model)
        tokenizer = self._target.tokenizer if tokenizer is None else tokenizer
        if self._draft is not None and draft_tokenizer is None:
            draft_tokenizer = self._draft.tokenizer
        self.tokenizer = tokenizer
        self._spec = spec
        runner = self._target.runner()  # refuses what cannot take part
        self.vocab = shared_vocab(runner.vocab, tokenizer)
        self._draft_vocab = self.vocab
        if self._draft is not None:
            little = self._draft.runner()
            check_pair(self._target, self._draft, tokenizer, draft_tokenizer)
            if tokenizer is None:  # heads of different size: what only one has is padding
                self.vocab = min(self.vocab, little.vocab)
            self._draft_vocab = shared_vocab(min(self.vocab, little.vocab), draft_tokenizer)
        self._exit: ExitAdapter | None = None
        self._make_drafter(runner)  # refuses what cannot draft
        if spec.adapter is not None:
            self._exit = load_exit(spec.adapter, self.target)
        self.name = runner.name
        self._warned: set[str] = set()
        self.policy = self._policy(self._default_policy if policy is None else policy)
        self._prompts = Prompts(
            tokenizer,
            encoder=self._encoder_input(),
            start=self._target.decoder_start(),
            vocab=runner.vocab,
            context=runner.limits.context,
            name=runner.name,
        )
        self._limits = runner.limits
        self._head = runner.vocab
        self.origin: dict[str, Any] = {}
        """What `load` was given, as plain data; empty for a pair that was made otherwise."""

    def __repr__(self) -> str:
        return f"Pair({self.name!r}, draft={self.draft_name}, policy={str(self.policy)!r})"

    @property
    def target(self) -> Any:
        """The target: a transformers model, or a `LlamaModel`."""
        return getattr(self._target, "model", self._target)

    @property
    def draft(self) -> Any:
        """The draft model; None without one."""
        return getattr(self._draft, "model", self._draft)

    @property
    def exit(self) -> ExitAdapter | None:
        """The trained exit that the target's first layers draft with; None without one."""
        return self._exit

    @property
    def drafts(self) -> bool:
        """Whether anything drafts: a model, early exit, prompt lookup."""
        return self._spec.drafts

    @property
    def draft_name(self) -> str:
        """What drafts, for reports: a model's name, "prompt-lookup:ngram=3", …; "None" without."""
        return str(self._spec) if self._draft is None else self._draft.name

    @property
    def summary(self) -> str:
        """How the models run, e.g. "bfloat16 on cpu": for reports."""
        parts = [self._target.summary]
        if self._draft is not None and self._draft.summary != parts[0]:
            parts.append(f"the draft {self._draft.summary}")
        return ", ".join(parts)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Short hashes by which the weights of "target" and "draft" are known again, under whatever
        name they are loaded; "" where what drafts has no weights of its own."""
        own = "" if self._exit is None else fingerprint(self._exit)
        draft = own if self._draft is None else self._draft.fingerprint
        return {"target": self._target.fingerprint, "draft": draft}

    @property
    def resolution(self) -> float:
        """The relative rounding of the target's logits; see `biglittle.engines.Model`."""
        return self._target.resolution

    @property
    def samples(self) -> bool:
        """Whether the target's own configuration samples where a request says nothing."""
        return bool(self._target.generation_config.do_sample)

    # Generating.

    def generate(
        self,
        prompt: PromptLike,
        *,
        policy: PolicyLike | None = None,
        params: GenerationParams | None = None,
        **changes: Any,
    ) -> Any:
        """Generate from one prompt or several; several decode together.

        Args:
            prompt: Text, chat messages (`[{"role": "user", "content": ...}]`), token ids, or
                encoder inputs (`{"input_features": ...}`); or a list of any of these.
            policy: In place of the pair's own.
            params: Parameters; `changes` are applied to them, or to the defaults.
            **changes: Fields of `GenerationParams` by name.

        Returns:
            A `Result` for one prompt, a list of them for several. With `n` above 1, a list, the
            samples of a prompt beside each other.

        Raises:
            ParameterError, PolicyError, ContextError: Before any work starts.
            RowError: A single prompt that ended on an exception of its own code; in a batch its
                result carries the error, and the others are unaffected.
        """
        return self._generate(prompt, policy, make_params(params, changes), threading.Event())

    def _generate(
        self,
        prompt: PromptLike,
        policy: PolicyLike | None,
        params: GenerationParams,
        stopped: threading.Event,
    ) -> Any:
        requests, single = self._requests(prompt, policy, params)
        results = self._run(requests, stopped)
        if single and len(results) == 1:
            if results[0].error is not None:
                raise results[0].error
            return results[0]
        return results

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Decode requests together, to the end; results in the same order."""
        return self._run(requests, threading.Event())

    def _run(self, requests: Sequence[Request], stopped: threading.Event) -> list[Result]:
        engine = self.engine()
        rows = [engine.admit(request) for request in requests]
        while engine.busy and not stopped.is_set():
            engine.step()
        for row in rows:
            engine.cancel(row)  # does nothing to one that has ended
        return [row.result() for row in rows]

    def stream(
        self,
        prompt: PromptLike,
        *,
        policy: PolicyLike | None = None,
        params: GenerationParams | None = None,
        **changes: Any,
    ) -> Generator[Chunk, None, None]:
        """Generate, yielding what every round adds; see `generate`.

        Yields chunks of all prompts as they come (`Chunk.index` says whose); a row's last chunk
        carries its `Result`. Bad input raises here, before the first chunk is asked for. Close
        the iterator to cancel.
        """
        requests, single = self._requests(prompt, policy, make_params(params, changes))
        return self._stream(requests, single)

    def _stream(self, requests: list[Request], single: bool) -> Generator[Chunk, None, None]:
        engine = self.engine()
        for request in requests:
            engine.admit(request)
        while engine.busy:
            for row in engine.step():
                chunk = row.take_chunk()
                if chunk is None:
                    continue
                yield chunk
                if single and len(requests) == 1 and row.error is not None:
                    raise row.error

    async def agenerate(
        self,
        prompt: PromptLike,
        *,
        policy: PolicyLike | None = None,
        params: GenerationParams | None = None,
        **changes: Any,
    ) -> Any:
        """`generate`, in a thread, so that an event loop goes on. Cancelling the task ends the
        generation after the round that runs."""
        stopped = threading.Event()
        settings = make_params(params, changes)

        def work() -> Any:
            try:
                return self._generate(prompt, policy, settings, stopped)
            finally:
                release_workers()  # the thread stays, for other work

        release_workers()
        try:
            return await asyncio.to_thread(work)
        finally:
            stopped.set()

    async def astream(self, prompt: PromptLike, **options: Any) -> AsyncGenerator[Chunk, None]:
        """`stream`, in a thread. Leaving the loop cancels what is left."""
        chunks = self.stream(prompt, **options)
        arrived: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
        stopped = threading.Event()

        def work() -> None:
            try:
                for chunk in chunks:
                    arrived.put(chunk)
                    if stopped.is_set():
                        break
                arrived.put(None)
            except BaseException as error:  # handed to the consumer, whatever it is
                arrived.put(error)

        release_workers()
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            while (item := await asyncio.to_thread(arrived.get)) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()

    def chat(self, system: str | None = None, **options: Any) -> Chat:
        """A conversation that goes on from its own cached state.

        Args:
            system: The system message.
            **options: Defaults for every turn, as for `generate`.
        """
        return Chat(self, system, options)

    # Building requests.

    def runner(self) -> Runner:
        """A runner of the target, without rows."""
        return self._target.runner()

    def engine(self, capacity: Capacity | None = None) -> Engine:
        """A fresh engine over the pair's models: what `generate` and a server run."""
        target = self.runner()
        drafter = self._make_drafter(target)
        return Engine(target, drafter, self.tokenizer, vocab=self.vocab, capacity=capacity)

    def requests(
        self,
        prompt: PromptLike,
        *,
        policy: PolicyLike | None = None,
        params: GenerationParams | None = None,
        **changes: Any,
    ) -> list[Request]:
        """The requests that `generate` would run, for use with `engine`."""
        return self._requests(prompt, policy, make_params(params, changes))[0]

    def _requests(
        self, prompt: PromptLike, policy: PolicyLike | None, params: GenerationParams
    ) -> tuple[list[Request], bool]:
        chosen = self.policy if policy is None else self._policy(policy)
        prompts, single = self._prompts.read(prompt)
        if params.stop_strings and self.tokenizer is None:
            raise ParameterError("stop strings need a tokenizer; pass tokenizer= to load or Pair")
        stops, ends = self._stops(params)
        found: list[Request] = []
        pointwise = None
        for start in prompts:
            settings = resolve(
                params,
                self._target.generation_config,
                prompt_length=len(start.tokens),
                context=self._limits.context,
                vocab=self.vocab,
                head=self._head,
                tokenizer=self.tokenizer,
                device=self._target.device,
                encoder_ids=(start.encoder or {}).get("input_ids"),
            )
            # One tuple of processors for all rows lets the loop run them on all rows at once.
            pointwise = settings.pipeline.pointwise if pointwise is None else pointwise
            pipeline = dataclasses.replace(settings.pipeline, pointwise=pointwise)
            for sample in range(params.n):
                seed = None if params.seed is None else params.seed + sample
                found.append(
                    Request(
                        prompt=start,
                        policy=chosen,
                        pipeline=pipeline,
                        max_new_tokens=settings.max_new_tokens,
                        eos_ids=settings.eos_ids | ends,
                        stop=stops,
                        criteria=tuple(params.stopping_criteria),
                        seed=seed,
                        logprobs=params.logprobs,
                        trace=params.trace,
                        index=len(found),
                    )
                )
        return found, single

    def _stops(self, params: GenerationParams) -> tuple[tuple[str, ...], frozenset[int]]:
        """Stop strings, and the ids of those that are special tokens, which text leaves out."""
        if not params.stop_strings:
            return (), frozenset()
        special = dict(
            zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids, strict=True)
        )
        ends = {special[stop] for stop in params.stop_strings if stop in special}
        return tuple(s for s in params.stop_strings if s not in special), frozenset(ends)

    @property
    def _default_policy(self) -> str:
        if not self.drafts:
            return "none"
        if self._draft is None:
            return FREE if self._spec.layers is None else EARLY_EXIT
        return DEFAULT_POLICY if self._target.device.type == "cpu" else ON_A_GPU

    def _policy(self, policy: PolicyLike) -> Policy:
        chosen = parse_policy(policy)
        if chosen.lookahead is not None and not self.drafts:
            raise PolicyError(
                f"policy {str(chosen)!r} needs a draft; load the pair with draft=..., for example "
                "draft='prompt-lookup', or use policy='none'"
            )
        if chosen.lookahead is not None:
            self._warn(chosen.lookahead.warning(self.name, self.draft_name))
        return chosen

    def _warn(self, text: str) -> None:
        """Say it, once."""
        if text and text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    def _encoder_input(self) -> EncoderInput | None:
        """What both encoders read: the one with less room says how much."""
        models = [self._target] if self._draft is None else [self._target, self._draft]
        found = [reads for model in models if (reads := model.encoder_input()) is not None]
        least = min(found, key=lambda reads: reads.tokens or math.inf, default=None)
        if least is None or self._draft is None:
            return least
        # What the target's encoder made of an input is of no use to the draft's.
        return dataclasses.replace(least, stand_ins=frozenset())

    def _make_drafter(self, target: Runner) -> Drafter | None:
        spec = self._spec
        if self._draft is not None:
            same = self._draft.shares_weights(self._target)
            return ModelDrafter(self._draft.runner(adapters=not same), self._draft_vocab)
        if spec.layers is not None:
            if not isinstance(target, TransformersRunner):
                raise UnsupportedModelError(
                    f"{target.name}: early exit needs the model's layers one by one, and llama.cpp "
                    "runs a model whole; give a draft model or 'prompt-lookup', or load the "
                    "target with engine='transformers'"
                )
            return EarlyExitDrafter(target, spec.layers, self.vocab, self._exit)
        if spec.ngram is not None:
            return PromptLookupDrafter(spec.ngram, vocab=self.vocab)
        return None
