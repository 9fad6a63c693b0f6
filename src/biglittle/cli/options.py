"""Options that several commands share, in groups: each group is a dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from .. import catalogue
from ..errors import ParameterError

if TYPE_CHECKING:
    from ..bench.tasks import Task
    from ..params import GenerationParams

__all__ = [
    "DEFAULT_DRAFT",
    "DEFAULT_TARGET",
    "ChatOption",
    "ModelOptions",
    "OutputOptions",
    "ProfileOption",
    "SamplingOptions",
    "TaskOptions",
]
__all__ += ["given", "in_options", "parse_time", "with_groups", "with_profile"]

DEFAULT_TARGET = "qwen2.5-coder-1.5b-instruct"
DEFAULT_DRAFT = "qwen2.5-coder-0.5b-instruct"

TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")
_MODELS: Any = {"rich_help_panel": "Models"}
_LLAMA: Any = {"rich_help_panel": "llama.cpp", "show_default": False}
_SAMPLING: Any = {"rich_help_panel": "Generation"}
_ENDING: Any = {"rich_help_panel": "Where it ends"}
_OUTPUT: Any = {"rich_help_panel": "Output"}
_TASKS: Any = {"rich_help_panel": "Tasks"}

ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="What `biglittle tune` found: its policy, which may be lossy, and its models where "
        "none are given.",
        show_default=False,
        rich_help_panel="Models",
    ),
]
ChatOption = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Put a prompt into the model's chat template, or not. Default: where it has one.",
        show_default=False,
        rich_help_panel="Input",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which models, where, and how precise."""

    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="MODEL",
            help="The big model: a hub id, a folder, a .gguf file, or a name from `biglittle "
            "models`.",
            **_MODELS,
        ),
    ] = DEFAULT_TARGET
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            "-d",
            metavar="MODEL",
            help="The little model, given the same way; or `prompt-lookup`, "
            "`early-exit:layers=4` (or `early-exit:adapter=FOLDER`), or `none`. Default: "
            f"{DEFAULT_DRAFT} for the default target, none for another.",
            show_default=False,
            **_MODELS,
        ),
    ] = None
    dtype: Annotated[
        str,
        typer.Option(help="auto (the checkpoint's own), float32, bfloat16, float16.", **_MODELS),
    ] = "auto"
    device: Annotated[
        str, typer.Option(help="auto (a GPU where there is one), cpu, cuda, cuda:1 …", **_MODELS)
    ] = "auto"
    draft_dtype: Annotated[
        str | None,
        typer.Option(help="Of the draft; default: the target's.", show_default=False, **_MODELS),
    ] = None
    draft_device: Annotated[
        str | None,
        typer.Option(help="Of the draft; default: the target's.", show_default=False, **_MODELS),
    ] = None
    draft_quantize: Annotated[
        str | None,
        typer.Option(
            metavar="int4",
            help="Four-bit weights for the draft, on a CPU: faster drafts, nearly as good.",
            show_default=False,
            **_MODELS,
        ),
    ] = None
    draft_vocab: Annotated[
        str | None,
        typer.Option(
            metavar="N|FILE",
            help="Tokens that the draft may propose: the first N, or those of a text file. Its "
            "head is cut to them, which makes it faster.",
            show_default=False,
            **_MODELS,
        ),
    ] = None
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A PEFT adapter for the target; the draft does not see it.",
            show_default=False,
            **_MODELS,
        ),
    ] = None
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code that comes with a model.", **_MODELS),
    ] = False
    engine: Annotated[
        str,
        typer.Option(
            help="auto (llama.cpp for .gguf files where it is installed), transformers, llama.cpp.",
            **_MODELS,
        ),
    ] = "auto"
    draft_engine: Annotated[
        str | None,
        typer.Option(help="Of the draft, where it differs.", show_default=False, **_MODELS),
    ] = None
    n_ctx: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of one text. Default: what a model was trained for.", **_LLAMA
        ),
    ] = None
    n_threads: Annotated[
        int | None,
        typer.Option(
            help="Threads for one token at a time. Default: as torch, usually all cores.", **_LLAMA
        ),
    ] = None
    n_threads_batch: Annotated[
        int | None,
        typer.Option(
            help="Threads for many tokens: the prompt, and checking a draft. Default: as "
            "--n-threads.",
            **_LLAMA,
        ),
    ] = None
    n_gpu_layers: Annotated[
        int | None, typer.Option(help="Layers on a GPU; -1 is all.", **_LLAMA)
    ] = None
    type_k: Annotated[
        str | None, typer.Option(help="Type of cached keys: f16, f32, bf16, q8_0 …", **_LLAMA)
    ] = None
    type_v: Annotated[
        str | None,
        typer.Option(
            help="Type of cached values. A quantized one needs fused attention.", **_LLAMA
        ),
    ] = None
    flash_attn: Annotated[
        bool | None,
        typer.Option(
            help="Fused attention. Default: llama.cpp decides; off for a draft on a CPU.", **_LLAMA
        ),
    ] = None
    use_mmap: Annotated[
        bool | None, typer.Option("--mmap/--no-mmap", help="Map files, or read them.", **_LLAMA)
    ] = None

    @property
    def vocab(self) -> int | str | None:
        """`draft_vocab` as `load` takes it."""
        given = self.draft_vocab
        return int(given) if given is not None and given.lstrip("-").isdecimal() else given

    @property
    def llama(self) -> dict[str, Any]:
        """Options of llama.cpp that were given."""
        names = ("n_ctx", "n_threads", "n_threads_batch", "n_gpu_layers", "type_k", "type_v")
        values = {name: getattr(self, name) for name in (*names, "flash_attn", "use_mmap")}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def drafter(self) -> str | None:
        """What `load` gets as its draft."""
        if self.draft is not None:
            return None if self.draft == "none" else self.draft
        entry = catalogue.find(self.target)
        return DEFAULT_DRAFT if entry is not None and entry.name == DEFAULT_TARGET else None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The fields of `GenerationParams` that a command line can give."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            "-m",
            help="Most tokens to write. Default: the model's own limit, or 256.",
            show_default=False,
            **_ENDING,
        ),
    ] = None
    min_new_tokens: Annotated[
        int | None, typer.Option(help="No end before so many tokens.", **_ENDING)
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A text that ends the answer; repeatable.", **_ENDING),
    ] = None
    eos_token_id: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="A token that ends the answer; repeatable.", **_ENDING),
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's own end.", **_ENDING)
    ] = False
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 is greedy; above 0 samples. Default: the model's own, or 0.",
            show_default=False,
            **_SAMPLING,
        ),
    ] = None
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.", **_SAMPLING)] = None
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the k likeliest tokens.", **_SAMPLING)
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(help="Drop tokens below this share of the likeliest.", **_SAMPLING),
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: fewer tokens that occurred.", **_SAMPLING)
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="No n-gram of this size twice.", **_SAMPLING)
    ] = None
    bad_words: Annotated[
        list[str] | None,
        typer.Option(
            "--bad-word", metavar="TEXT", help="Must not appear; repeatable.", **_SAMPLING
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Repeats the same samples.", **_SAMPLING)] = None

    def params(self, **more: Any) -> GenerationParams:
        """The parameters, checked."""
        from ..params import make_params

        given = dataclasses.asdict(self)
        given["eos_token_ids"] = given.pop("eos_token_id")
        given = {name: value for name, value in given.items() if value is not None}
        return make_params(None, {**given, **more})


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown."""

    stats: Annotated[
        bool, typer.Option(help="Statistics at the end, on standard error.", **_OUTPUT)
    ] = True
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on standard error but errors.", **_OUTPUT),
    ] = False
    no_color: Annotated[
        bool,
        typer.Option("--no-color", help="No colours, in a terminal either.", **_OUTPUT),
    ] = False


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is asked."""

    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="What to ask: a text file with a prompt a line, JSONL with prompts or turns (and "
            "references), Spec-Bench questions, HumanEval or MBPP; or a data set of the hub: "
            "wmt14, iwslt2017, xsum, cnn_dailymail, mbpp, alpaca. Repeatable. Default: "
            "built-in prompts.",
            show_default=False,
            **_TASKS,
        ),
    ] = None
    format: Annotated[
        str,
        typer.Option(
            help="Of the tasks' files: text, jsonl, spec-bench, humaneval, mbpp; auto looks at "
            "their beginning.",
            **_TASKS,
        ),
    ] = "auto"
    source: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Texts to translate, a line each, measured with BLEU and chrF; needs --reference.",
            **_TASKS,
        ),
    ] = None
    reference: Annotated[
        str | None, typer.Option(metavar="FILE", help="Their translations.", **_TASKS)
    ] = None
    template: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="The prompt around a text, with {source} in its place.", **_TASKS
        ),
    ] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put prompts into the model's chat template, or not. Default: as the format has "
            "it.",
            show_default=False,
            **_TASKS,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first so many examples of every task.", **_TASKS),
    ] = None
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Run the programs that the models write, with their tests, for pass@1. They run "
            "in processes with limits on time, memory and network, which is no sandbox.",
            **_TASKS,
        ),
    ] = False

    def check(self) -> None:
        """Refuse what does not go together."""
        if (self.source is None) != (self.reference is None):
            raise ParameterError("--source and --reference go together: a text and its translation")

    def read(self, metrics: Sequence[str] | None = None) -> list[Task]:
        """The tasks of files and data sets, or else the project's own prompts, a task a kind;
        `metrics` are in place of the formats' own."""
        from ..bench.readers import read_tasks

        options: dict[str, Any] = {
            "limit": self.limit,
            "template": self.template,
            "chat": self.chat,
            "metrics": metrics,
        }
        found: list[Task] = []
        for spec in self.task or []:
            found += read_tasks(spec, format=self.format, **options)
        if self.source is not None:
            found += read_tasks(self.source, reference=self.reference, **options)
        return found or _built_in(self.limit)


def _built_in(limit: int | None) -> list[Task]:
    from ..bench.tasks import Example, Task
    from ..diagnosis.prompts import builtin_prompts

    kinds: dict[str, list[Example]] = {}
    for prompt in builtin_prompts():
        examples = kinds.setdefault(prompt.task, [])
        examples.append(Example(str(len(examples)), (prompt.text,), chat=True))
    return [Task(kind, tuple(examples[:limit])) for kind, examples in kinds.items()]


def parse_time(text: str | None) -> float | None:
    """`1h30m`, `30m`, `90s` in seconds.

    Raises:
        ParameterError: Something else.
    """
    if text is None:
        return None
    found = TIME.fullmatch(text.strip().lower())
    hours, minutes, seconds = (int(part or 0) for part in (found.groups() if found else ("",) * 3))
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise ParameterError(f"--time {text} is no time: write for example 30m, 1h30m or 90s")
    return float(total)


def with_profile(models: ModelOptions, path: str | None) -> ModelOptions:
    """The options, with a profile's models and their options where none are given."""
    if path is None:
        return models
    from ..tune import Profile

    tuned = Profile.load(path)
    if models.draft == "none" and tuned.policy != "none":
        raise ParameterError(
            f"the profile's policy {tuned.policy!r} needs a draft: leave out --draft none, or "
            "--profile"
        )
    own = {"target": tuned.target, "draft": tuned.draft or "none", **tuned.options}
    own |= own.pop("llama", {})
    fields = {field.name: field.default for field in dataclasses.fields(ModelOptions)}
    changes: dict[str, Any] = {
        name: str(value) if name == "draft_vocab" else value
        for name, value in own.items()
        if name in fields and value is not None and getattr(models, name) == fields[name]
    }
    return dataclasses.replace(models, **changes)


def given(models: ModelOptions, *, drafting: bool = True) -> list[str]:
    """The options that differ from their defaults, but for the models themselves, as a command
    line has them; without `drafting`, none of the draft's."""
    words = []
    for field in dataclasses.fields(ModelOptions):
        value = getattr(models, field.name)
        draft = field.name.startswith("draft")
        if field.name in ("target", "draft") or value == field.default or (draft and not drafting):
            continue
        flag = _flags()[field.name]
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        else:
            words += [flag, str(value)]
    return words


def in_options(message: str) -> str:
    """A message of the library in the words of the command line.

    `max_new_tokens=0` becomes `--max-new-tokens 0`, `draft='prompt-lookup'` becomes
    `--draft prompt-lookup`, and `flash_attn=False` becomes `--no-flash-attn`.
    """
    for name, flag in _flags().items():
        message = re.sub(rf"(?<![\w-]){name}=True\b", flag, message)
        message = re.sub(rf"(?<![\w-]){name}=False\b", f"--no-{flag[2:]}", message)
        message = re.sub(rf"(?<![\w-]){name}=('?)([^\s,;:)']*)\1", rf"{flag} \2", message)
        message = re.sub(rf"^{name}: ", f"{flag}: ", message)
        if "_" in name:  # a word that can be nothing else
            message = re.sub(rf"(?<![\w-]){name}(?!\w)", flag, message)
    return message


def _flags() -> dict[str, str]:
    """What the command line calls the parameters of the library."""
    fields = [*dataclasses.fields(ModelOptions), *dataclasses.fields(SamplingOptions)]
    flags = {field.name: "--" + field.name.replace("_", "-") for field in fields}
    others = {"bad_words": "--bad-word", "eos_token_ids": "--eos-token-id", "policy": "--policy"}
    others |= {"use_mmap": "--mmap", "force": "--force", "learning_rate": "--lr"}
    training = ("early_exit", "held_out", "init", "lora", "soft", "epochs", "steps", "batch")
    others |= {name: "--" + name.replace("_", "-") for name in (*training, "optimizer", "prompts")}
    return {**flags, **others, "n": "-n", "logprobs": "--logprobs", "stop_strings": "--stop"}


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a typer command take option groups: every field becomes an option of its own."""
    hints: dict[str, Any] = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _options(groups[name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=kind, annotation=hints[name]))

    def flat(**values: Any) -> None:
        made: dict[str, Any] = {}
        for name, group in groups.items():
            made[name] = group(**{f.name: values.pop(f.name) for f in dataclasses.fields(group)})
        command(**values, **made)

    flat.__name__, flat.__doc__ = command.__name__, command.__doc__
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
