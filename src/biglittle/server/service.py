"""From a body to an answer: what `biglittle serve` and `biglittle batch` have in common."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ContextError, ParameterError, PolicyError
from ..pair import FREE
from ..params import GenerationParams
from ..policy import Policy, parse_policy, reads_files
from ..results import Chunk
from .answers import Answer, ChatAnswer, TextAnswer
from .details import Details
from .errors import ApiError
from .metrics import Metrics
from .scheduler import Scheduler, ServerLimits, Ticket
from .schemas import MOST_CHOICES, ChatRequest, CompletionRequest, Shared
from .structured import Grammars

if TYPE_CHECKING:
    from ..decoding import Request
    from ..pair import Pair

__all__ = ["Job", "ServerSettings", "Service"]

COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
MOST_PREDICTED = 1 << 16  # tokens of a prediction that are drafted from: every round searches them


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server answers."""

    name: str
    """What clients call the model."""
    allow_lossy: bool = False
    """Whether a policy may be lossy."""
    limits: ServerLimits = dataclasses.field(default_factory=ServerLimits)


@dataclass(slots=True)
class Job:
    """A request in the scheduler's hands, and how its answer is written."""

    ticket: Ticket
    answer: Answer
    _first: Chunk | None = None

    async def begin(self) -> None:
        """Wait for the first chunk: what goes wrong until then is raised here."""
        self._first = await anext(self.ticket)

    async def whole(self) -> dict[str, Any]:
        """The answer when it is complete. Leaving early frees the rows."""
        try:
            async for chunk in self.ticket:
                self.answer.take(chunk)
            return self.answer.body()
        finally:
            self.ticket.cancel()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The answer as it comes, in OpenAI's chunks."""
        for event in self.answer.opening():
            yield event
        if self._first is not None:
            for event in self.answer.events(self._first):
                yield event
        async for chunk in self.ticket:
            for event in self.answer.events(chunk):
                yield event
        if (usage := self.answer.closing()) is not None:
            yield usage


class Service:
    """Answers requests with a pair.

    Args:
        pair: What generates.
        settings: How.

    Raises:
        PolicyError: The pair's own policy is lossy, and none may be.
    """

    def __init__(self, pair: Pair, settings: ServerSettings) -> None:
        if not pair.policy.lossless and not settings.allow_lossy:
            raise PolicyError(
                f"policy {pair.policy} is lossy: the texts may differ from the target's own; allow "
                "for it with --allow-lossy, or choose another policy"
            )
        self.pair = pair
        self.settings = settings
        self.metrics = Metrics(settings.name)
        self.scheduler = Scheduler(pair, settings.limits, self.metrics)
        self.created = int(time.time())
        self._grammars = Grammars(pair)
        # Tokenizers are not made for several threads: one of them reads all prompts.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")

    def start(self) -> None:
        """Start the engine."""
        self.scheduler.start()

    def stop(self, grace: float = 0.0) -> None:
        """See `Scheduler.stop`."""
        self.scheduler.stop(grace)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def chat(self, body: ChatRequest) -> Job:
        """Queue a chat completion.

        Raises:
            ApiError, ParameterError, QueueFullError, ShuttingDownError: It is refused.
        """
        return await self._job(body, self._chat_requests, ChatAnswer)

    async def complete(self, body: CompletionRequest) -> Job:
        """Queue a completion; see `chat`."""
        return await self._job(body, self._text_requests, TextAnswer)

    async def _job(
        self, body: Any, read: Callable[[Any], list[Request]], kind: type[Answer]
    ) -> Job:
        self._check(body)
        loop = asyncio.get_running_loop()
        requests = await loop.run_in_executor(self._reader, read, body)
        ticket = self.scheduler.submit(requests)
        answer = kind(
            id=f"{kind.prefix}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=self.settings.name,
            policy=requests[0].policy,
            choices=len(requests),
            samples=body.n or 1,
            tokenizer=self.pair.tokenizer,
            usage=bool(body.stream_options and body.stream_options.include_usage),
            logprobs=wants_logprobs(body),
            details=self._details(requests) if body.details else None,
        )
        return Job(ticket, answer)

    def _details(self, requests: list[Request]) -> tuple[Details, ...]:
        return tuple(Details(self.pair.tokenizer, request.prompt.tokens) for request in requests)

    def check_model(self, name: str) -> None:
        """Raise `ApiError` unless it is the model's name."""
        if name != self.settings.name:
            raise ApiError(
                404,
                f"there is no such model here; ask for {self.settings.name!r}",
                code="model_not_found",
                param="model",
            )

    # Reading a body.

    def _check(self, body: Shared) -> None:
        """What pydantic cannot know."""
        self.check_model(body.model)
        if body.stream_options is not None and not body.stream:
            raise refused("stream_options", "is for streams; set stream to true")
        form = body.response_format
        if form is not None and (form.type == "json_schema") != (form.json_schema is not None):
            raise refused("response_format", "json_schema goes with the type json_schema only")

    def _chat_requests(self, body: ChatRequest) -> list[Request]:
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise refused("max_tokens", "and max_completion_tokens are the same; leave one out")
        if body.top_logprobs is not None and not body.logprobs:
            raise refused("top_logprobs", "needs logprobs to be true")
        messages = [message.for_template() for message in body.messages]
        most = body.max_completion_tokens or body.max_tokens or self.settings.limits.new_tokens
        asked = body.max_completion_tokens or body.max_tokens
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._requests(body, messages, most, asked, logprobs)

    def _text_requests(self, body: CompletionRequest) -> list[Request]:
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise refused("best_of", "must be n: the server returns all that it samples")
        prompt: Any = body.prompt
        many = isinstance(prompt, list) and not isinstance(prompt[0], int)
        if (len(prompt) if many else 1) * (body.n or 1) > MOST_CHOICES:
            raise refused("n", f"times the prompts may be {MOST_CHOICES} at most")
        most = body.max_tokens or COMPLETION_TOKENS
        return self._requests(body, prompt, most, body.max_tokens, body.logprobs)

    def _requests(
        self, body: Shared, prompt: Any, most: int, asked: int | None, logprobs: int | None
    ) -> list[Request]:
        limits = self.settings.limits
        if asked is not None and asked > limits.new_tokens:
            raise refused("max_tokens", f"may be {limits.new_tokens} at most on this server")
        temperature = self._temperature(body.temperature)
        params = GenerationParams(
            max_new_tokens=min(most, limits.new_tokens),
            temperature=temperature,
            top_p=None if temperature == 0 else body.top_p,
            stop=body.stops,
            # A token's probability is a detail, too.
            logprobs=0 if logprobs is None and body.details else logprobs,
            trace=bool(body.details),
        )
        policy = self._policy(body.policy)
        try:
            found = self.pair.requests(prompt, policy=policy, params=params)
        except ParameterError as error:  # a folder's name is none of the client's business
            text = str(error).replace(self.pair.name, self.settings.name)
            raise type(error)(text) from error
        for request in found:
            self._check_length(request)
        found = [self._with_extras(request, body) for request in found]
        return [
            self._sample(request, body, index * (body.n or 1) + sample, sample)
            for index, request in enumerate(found)
            for sample in range(body.n or 1)
        ]

    def _temperature(self, given: float | None) -> float | None:
        """As OpenAI has it, 1, unless the model's configuration says how to sample."""
        return 1.0 if given is None and not self.pair.samples else given

    def _policy(self, given: str | None) -> Policy | None:
        """A request's own policy. It must not name files, which are the server's."""
        if given is None:
            return None
        if reads_files(given):
            raise PolicyError("policy: one that reads a file can only be the server's own")
        policy = parse_policy(given)
        if not policy.lossless and not self.settings.allow_lossy:
            raise ApiError(
                400,
                f"policy {policy} is lossy, and this server was started without --allow-lossy",
                code="lossy_policy",
                param="policy",
            )
        return policy

    def _check_length(self, request: Request) -> None:
        length = max(len(request.prompt.tokens), request.prompt.source_length)
        most = self.settings.limits.prompt_tokens
        if most is not None and length > most:
            raise ContextError(f"the prompt has {length} tokens; this server takes {most} at most")

    def _with_extras(self, request: Request, body: Shared) -> Request:
        """The request with its prediction and its form."""
        if body.prediction is not None and (text := body.prediction.text):
            tokens = self.pair.tokenizer(text, add_special_tokens=False).input_ids
            policy = request.policy
            if policy.lookahead is None and body.policy is None:
                policy = parse_policy(FREE)  # a pair without a draft: only the prediction drafts
            request = dataclasses.replace(
                request, prediction=tuple(tokens[:MOST_PREDICTED]), policy=policy
            )
        form = body.response_format
        if form is not None and form.type != "text":
            schema = None if form.json_schema is None else form.json_schema.schema_
            processor = self._grammars.processor(schema, request.eos_ids)
            pipeline = dataclasses.replace(request.pipeline, custom=(processor,))
            request = dataclasses.replace(request, pipeline=pipeline)
        return request

    @staticmethod
    def _sample(request: Request, body: Shared, index: int, sample: int) -> Request:
        """One sample of a prompt: with a seed and a state of its own."""
        seed = None if body.seed is None else (body.seed + sample) % 2**63
        pipeline = request.pipeline
        if pipeline.custom and sample:
            custom = tuple(processor.copy() for processor in pipeline.custom)  # type: ignore[attr-defined]
            pipeline = dataclasses.replace(pipeline, custom=custom)
        return dataclasses.replace(request, index=index, seed=seed, pipeline=pipeline)


def wants_logprobs(body: Any) -> bool:
    """Whether log-probabilities are asked for: in chats by a switch, else by how many."""
    return bool(body.logprobs) if isinstance(body, ChatRequest) else body.logprobs is not None


def refused(param: str, reason: str) -> ApiError:
    """A field whose value cannot be used."""
    return ApiError(400, f"{param} {reason}", param=param)
