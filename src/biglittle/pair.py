"""The pair: a target, a drafter, a tokenizer and a default policy."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import queue
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from .chat import Chat
from .decoding import Engine, Request
from .decoding.sampling import resolve
from .drafters import Drafter, EarlyExitDrafter, ModelDrafter, PromptLookupDrafter
from .engines.base import EncoderInput
from .engines.transformers import make_runner
from .engines.transformers.capability import (
    base_model,
    embedding_weight,
    encoder_input,
    is_seq2seq,
)
from .engines.transformers.loading import (
    check_quantize,
    load_model,
    load_tokenizer,
    pick_device,
    pick_dtype,
)
from .errors import ParameterError, PolicyError
from .matching import DraftSpec, check_pair, check_tokenizers, parse_draft, shared_vocab
from .params import GenerationParams, make_params
from .policy import Policy, PolicyLike, parse_policy
from .prompts import PromptLike, Prompts
from .results import Chunk, Result

__all__ = ["Pair", "load"]

DEFAULT_POLICY = "dynamic"


def load(
    target: Any,
    draft: Any = None,
    *,
    policy: PolicyLike | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    draft_dtype: str | torch.dtype | None = None,
    draft_device: str | torch.device | None = None,
    draft_quantize: str | None = None,
    tokenizer: Any = None,
    adapter: str | Path | None = None,
    pack: bool = True,
    trust_remote_code: bool = False,
) -> Pair:
    """Load a target and what drafts for it.

    Args:
        target: A hub id, a local folder, a GGUF file, a name from `biglittle models`, or a
            transformers (or PEFT) model in memory.
        draft: A little model, given the same way; or `"early-exit:layers=4"` (the target's first
            layers), or `"prompt-lookup"` (the text so far; `"prompt-lookup:ngram=3"`); None for
            the target alone.
        policy: The default policy of the pair; see `biglittle.parse_policy`. Default: "dynamic",
            which is lossless; "none" without a draft.
        dtype: Of the target; "auto" is the checkpoint's own.
        device: Of the target; "auto" is a GPU where there is one.
        draft_dtype: Of the draft; default: as for the target.
        draft_device: Of the draft; default: the target's.
        draft_quantize: "int4": four-bit weights for the draft, on a CPU. It drafts about
            twice as fast and nearly as well; what is lossless stays so, for the target checks it.
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
        PolicyError, ParameterError: Options that cannot be used.
    """
    chosen = None if policy is None else parse_policy(policy)
    spec = parse_draft(draft)
    kinds = dtype, dtype if draft_dtype is None else draft_dtype
    devices = device, device if draft_device is None else draft_device
    # Whatever can be wrong is found out before anything large is read.
    for kind, where in zip(kinds, devices, strict=True):
        pick_dtype(kind)
        pick_device(where)
    check_quantize(draft_quantize, spec.model, devices[1])
    own, little_tokenizer = tokenizer, None
    if own is None:
        own = load_tokenizer(target, dtype=kinds[0], trust_remote_code=trust_remote_code)
    if spec.model is not None:
        little_tokenizer = load_tokenizer(
            spec.model, dtype=kinds[1], trust_remote_code=trust_remote_code
        )
        big_name = str(target) if isinstance(target, str | Path) else type(target).__name__
        check_tokenizers(own, little_tokenizer, big_name, str(spec.model))
    options: dict[str, Any] = {"pack": pack, "trust_remote_code": trust_remote_code}
    big = load_model(target, dtype=kinds[0], device=devices[0], adapter=adapter, **options)
    little = spec.model
    if little is not None:
        options["quantize"] = draft_quantize
        little = load_model(little, dtype=kinds[1], device=devices[1], **options)
    return Pair(big, dataclasses.replace(spec, model=little), own, little_tokenizer, policy=chosen)


class Pair:
    """A target and its drafter, ready to generate. `load` makes one.

    Args:
        target: A transformers (or PEFT) model.
        draft: A model, a string as in `load`, or None.
        tokenizer: The target's; None to work with token ids.
        draft_tokenizer: The draft's, to be checked against the target's; None if it is the same.
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
        self.target = base_model(target)
        self.draft = None if spec.model is None else base_model(spec.model)
        self.tokenizer = tokenizer
        self._spec = spec
        runner = make_runner(self.target)  # refuses what cannot take part
        self.vocab = shared_vocab(runner.vocab, tokenizer)
        self._draft_vocab = self.vocab
        if self.draft is not None:
            little = make_runner(self.draft)
            check_pair(self.target, self.draft, tokenizer, draft_tokenizer)
            if tokenizer is None:  # heads of different size: what only one has is padding
                self.vocab = min(self.vocab, little.vocab)
            self._draft_vocab = shared_vocab(min(self.vocab, little.vocab), draft_tokenizer)
        self._make_drafter(runner)
        default = DEFAULT_POLICY if spec.drafts else "none"
        self.policy = self._policy(default if policy is None else policy)
        self._prompts = Prompts(
            tokenizer,
            encoder=self._encoder_input(),
            start=_decoder_start(self.target),
            vocab=runner.vocab,
            context=runner.limits.context,
            name=runner.name,
        )
        self._limits = runner.limits
        self._head = runner.vocab
        self.name = runner.name

    def __repr__(self) -> str:
        return f"Pair({self.name!r}, draft={self._spec}, policy={str(self.policy)!r})"

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
        try:
            return await asyncio.to_thread(self._generate, prompt, policy, settings, stopped)
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

    def engine(self) -> Engine:
        """A fresh engine over the pair's models: what `generate` and a server run."""
        target = make_runner(self.target)
        return Engine(target, self._make_drafter(target), self.tokenizer, vocab=self.vocab)

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
            raise ParameterError("stop strings need a tokenizer; pass tokenizer= to load")
        stops, ends = self._stops(params)
        found: list[Request] = []
        pointwise = None
        for start in prompts:
            settings = resolve(
                params,
                self.target.generation_config,
                prompt_length=len(start.tokens),
                context=self._limits.context,
                vocab=self.vocab,
                head=self._head,
                tokenizer=self.tokenizer,
                device=embedding_weight(self.target).device,
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

    def _policy(self, policy: PolicyLike) -> Policy:
        chosen = parse_policy(policy)
        if chosen.lookahead is not None and not self._spec.drafts:
            raise PolicyError(
                f"policy {str(chosen)!r} needs a draft; load the pair with draft=..., for example "
                "draft='prompt-lookup', or use policy='none'"
            )
        return chosen

    def _encoder_input(self) -> EncoderInput | None:
        """What both encoders read: the one with less room says how much."""
        models = [self.target] if self.draft is None else [self.target, self.draft]
        found = [reads for reads in map(encoder_input, models) if reads is not None]
        least = min(found, key=lambda reads: reads.tokens or math.inf, default=None)
        if least is None or self.draft is None:
            return least
        # What the target's encoder made of an input is of no use to the draft's.
        return dataclasses.replace(least, stand_ins=frozenset())

    def _make_drafter(self, target: Any) -> Drafter | None:
        spec = self._spec
        if self.draft is not None:
            same = self.draft is self.target or _shares_modules(self.draft, self.target)
            runner = make_runner(self.draft, adapters=not same)
            return ModelDrafter(runner, self._draft_vocab)
        if spec.layers is not None:
            return EarlyExitDrafter(target, spec.layers, self.vocab)
        if spec.ngram is not None:
            return PromptLookupDrafter(spec.ngram, vocab=self.vocab)
        return None


def _shares_modules(one: Any, other: Any) -> bool:
    """Whether two models share weights: then an adapter in one is an adapter in the other."""
    ids = {id(module) for module in one.modules()}
    return any(id(module) in ids for module in other.modules())


def _decoder_start(model: Any) -> tuple[int, ...]:
    """What the decoder of an encoder-decoder model starts from."""
    if not is_seq2seq(model):
        return ()
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            token = getattr(config, name, None)
            if isinstance(token, int):
                return (token,)
    return ()
