"""Bodies of requests, checked by pydantic: types, ranges and sizes.

What OpenAI's API has and the server cannot do is refused by name; only what has no influence on an
answer (`user`, `metadata`, …) is taken and left aside.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

__all__ = [
    "TAGS",
    "ChatRequest",
    "CompletionRequest",
    "ErrorBody",
    "JsonSchema",
    "Message",
    "ModelCard",
    "ModelList",
    "Playground",
    "PolicyCard",
    "PolicyOption",
    "Prediction",
    "ResponseFormat",
    "Shared",
    "StreamOptions",
]

MOST_CHOICES = 128
MOST_MESSAGES = 4096
MOST_STOPS = 16
MOST_FIELDS = 64  # of an object; what is unknown is told one by one, and there may be many

Text = Annotated[str, Field(max_length=1 << 22)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Off = Annotated[float, Field(ge=0, le=0)]


class Body(BaseModel):
    """A part of a request: unknown fields are refused, and numbers are finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MOST_FIELDS:
            raise PydanticCustomError("too_many_fields", "Object has too many fields")
        return data


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: Text


# Of a union, only the kind that was meant is checked, and of a list, no more than what comes before
# the first mistake: who sends a million of them is told of one.
TAGS = ("<text>", "<list>", "<texts>", "<ids>", "<lists of ids>")
"""What pydantic names in the place of a mistake, and no client has sent."""


def text_or_list(value: Any) -> str:
    """Which of the two it is meant to be."""
    return "<list>" if isinstance(value, list) else "<text>"


def kind_of_prompt(value: Any) -> str:
    """The same of a prompt, of which there are four kinds."""
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else None
    if isinstance(first, list):
        return "<lists of ids>"
    return "<texts>" if isinstance(first, str) else "<ids>"


Parts = Annotated[list[TextPart], Field(fail_fast=True, min_length=1, max_length=1024)]
Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[Parts, Tag("<list>")], Discriminator(text_or_list)
]


def plain(content: str | list[TextPart]) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Message(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: Annotated[str, Field(max_length=64)] | None = None

    def for_template(self) -> dict[str, str]:
        """As chat templates know it: `developer` is OpenAI's newer word for `system`."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": plain(self.content)}


class StreamOptions(Body):
    """How to stream."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    """Taken and left aside."""


class Prediction(Body):
    """Predicted output: the given text is the draft."""

    type: Literal["content"]
    content: Content

    @property
    def text(self) -> str:
        """The text."""
        return plain(self.content)


class JsonSchema(Body):
    """A JSON schema by name."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: Annotated[str, Field(max_length=4096)] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """Of what form the answer is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


Stops = Annotated[list[Stop], Field(fail_fast=True, max_length=MOST_STOPS)]
StopOrStops = Annotated[
    Annotated[Stop, Tag("<text>")] | Annotated[Stops, Tag("<list>")], Discriminator(text_or_list)
]


class Shared(Body):
    """What both kinds of requests have."""

    model: Annotated[str, Field(max_length=512)]
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: StopOrStops | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    policy: Annotated[str, Field(max_length=512)] | None = None
    """Ours: how the two models work together."""
    details: bool | None = None
    """Ours: whether choices say of every token where it came from, and of every round what it
    did."""
    # These say nothing about the answer.
    user: Annotated[str, Field(max_length=512)] | None = None
    metadata: dict[str, Any] | None = None
    # These are taken as long as they change nothing.
    frequency_penalty: Off | None = None
    presence_penalty: Off | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


TokenIds = Annotated[
    list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]], Field(fail_fast=True, min_length=1)
]
Texts = Annotated[list[Text], Field(fail_fast=True, min_length=1, max_length=MOST_CHOICES)]
ListsOfIds = Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=MOST_CHOICES)]
PromptOrPrompts = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[TokenIds, Tag("<ids>")]
    | Annotated[Texts, Tag("<texts>")]
    | Annotated[ListsOfIds, Tag("<lists of ids>")],
    Discriminator(kind_of_prompt),
]


class CompletionRequest(Shared):
    """`POST /v1/completions`."""

    prompt: PromptOrPrompts
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None


class ChatRequest(Shared):
    """`POST /v1/chat/completions`."""

    messages: Annotated[
        list[Message], Field(fail_fast=True, min_length=1, max_length=MOST_MESSAGES)
    ]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    store: bool | None = None
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None


class ErrorDetail(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Any answer but a good one."""

    error: ErrorDetail


class ModelCard(BaseModel):
    """A model that can be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "biglittle"


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class PolicyOption(BaseModel):
    """A number that a policy may be given, and what is sensible for it."""

    name: str
    default: float
    least: float
    most: float
    step: float


class PolicyCard(BaseModel):
    """A policy that requests may name."""

    name: str
    about: str
    lossless: bool
    options: list[PolicyOption]


class Playground(BaseModel):
    """What the playground has to know of the server."""

    version: str
    model: str
    chat: bool
    """Whether the model has a chat template."""
    policy: str
    """The server's own."""
    lossless: bool
    """Whether that is."""
    allow_lossy: bool
    """Whether requests may name one that is not."""
    max_tokens: int
    """The most that a request may ask for."""
    policies: list[PolicyCard]
    """None without a draft."""
