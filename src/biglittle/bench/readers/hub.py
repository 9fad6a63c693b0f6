"""Data sets of the Hugging Face hub, through `datasets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from ...errors import LoadError, ParameterError, nearest
from ..tasks import Example, Task
from .files import Record
from .mbpp import mbpp_task
from .options import ReadOptions, fill
from .parallel import METRICS, instruction, language

__all__ = ["HUB", "is_hub", "read_hub"]

REVISION = "refs/convert/parquet"  # the hub's own conversion: some data sets have no other


@dataclass(frozen=True, slots=True)
class HubDataset:
    """Where a data set is, and how its rows become examples."""

    repository: str
    read: Callable[[Iterable[Record], str, ReadOptions], Task]
    """From rows, the configuration that was asked for, and options."""
    config: str
    """The default configuration; a pair of languages for translation."""
    folder: Callable[[str], str] = str
    """The configuration's folder."""
    split: str = "test"


def is_hub(spec: str) -> bool:
    """Whether it names a data set: `xsum`, `wmt14:de-en`."""
    return spec.partition(":")[0] in HUB


def read_hub(spec: str, options: ReadOptions) -> tuple[Task, ...]:
    """A data set of the hub by name, with a configuration after a colon.

    `wmt14:de-en` and `iwslt2017:de-en` name source and target language; `mbpp:sanitized` the
    smaller set. The rows are those of the test split, of alpaca the training split.

    Raises:
        ParameterError: An unknown name, or `datasets` is not installed.
        LoadError: A data set that cannot be had.
    """
    name, _, config = spec.partition(":")
    if name not in HUB:
        raise ParameterError(f"there is no data set {name!r}{nearest(name, HUB)}")
    found = HUB[name]
    config = config or found.config
    rows = _rows(found.repository, found.folder(config), found.split, options.limit)
    task = found.read(rows, config, options)
    return (Task(name, task.examples, task.metrics, task.stop),)


def _rows(repository: str, folder: str, split: str, limit: int | None) -> list[Record]:
    """Rows of one split; no other split is fetched."""
    if find_spec("datasets") is None:
        raise ParameterError(
            f"{repository} needs the package datasets: pip install 'biglittle[hub]'"
        )
    datasets = import_module("datasets")  # without types
    part = split if limit is None else f"{split}[:{limit}]"
    try:
        rows = datasets.load_dataset(
            repository,
            data_files={split: f"{folder}/{split}/*.parquet"},
            split=part,
            revision=REVISION,
        )
    except Exception as cause:  # of many libraries: network, hub, cache, parquet
        reason = " ".join(str(cause).split())[:200]
        raise LoadError(
            f"cannot load {folder}/{split} of the data set {repository} from the hub ({reason}); "
            "check the connection and the name, or give a file"
        ) from cause
    return [Record(row, f"{repository}:{number}") for number, row in enumerate(rows, start=1)]


def _translation(rows: Iterable[Record], config: str, options: ReadOptions) -> Task:
    """Rows with texts by language."""
    source, target = _pair(config)
    names = [language(code) or code for code in (source, target)]
    chat = options.chat is not False
    template = options.template or (instruction(*names) if chat else "{source}")
    examples = []
    for number, row in enumerate(rows, start=1):
        texts = Record(row.fields.get("translation") or {}, row.where)
        examples.append(_sourced(texts, number, source, target, template, chat))
    return Task("translation", tuple(examples), METRICS)


def _summaries(document: str, summary: str) -> Callable[..., Task]:
    """Rows with documents and summaries, under these names."""

    def read(rows: Iterable[Record], config: str, options: ReadOptions) -> Task:
        chat = options.chat is not False
        template = options.template or ("Summarize: {source}" if chat else "{source}")
        examples = [
            _sourced(row, number, document, summary, template, chat)
            for number, row in enumerate(rows, start=1)
        ]
        return Task("summarization", tuple(examples), ("rougeL",))

    return read


def _sourced(
    row: Record, number: int, source: str, target: str, template: str, chat: bool
) -> Example:
    text = row.text(source)
    return Example(
        row.label("id", str(number)),
        (fill(template, text),),
        chat,
        (row.text(target),),
        source=text,
    )


def _mbpp(rows: Iterable[Record], config: str, options: ReadOptions) -> Task:
    return mbpp_task(rows, options)


def _alpaca(rows: Iterable[Record], config: str, options: ReadOptions) -> Task:
    """Instructions, each followed by its input if it has one."""
    chat = options.chat is not False
    examples = []
    for number, row in enumerate(rows, start=1):
        parts = [row.text("instruction"), row.optional_text("input")]
        output = row.optional_text("output")
        turn = "\n\n".join(filter(None, parts))
        examples.append(Example(str(number), (turn,), chat, (output,) if output else ()))
    return Task("alpaca", tuple(examples))


def _pair(config: str) -> tuple[str, str]:
    source, dash, target = config.partition("-")
    if not (source and dash and target):
        raise ParameterError(f"{config!r} is no pair of languages, expected e.g. 'de-en'")
    return source, target


def _wmt(config: str) -> str:
    """The hub has each pair once, English last."""
    source, target = _pair(config)
    return f"{target}-en" if source == "en" else config


HUB = {
    "wmt14": HubDataset("wmt/wmt14", _translation, "de-en", _wmt),
    "iwslt2017": HubDataset("IWSLT/iwslt2017", _translation, "de-en", "iwslt2017-{}".format),
    "xsum": HubDataset("EdinburghNLP/xsum", _summaries("document", "summary"), "default"),
    "cnn_dailymail": HubDataset(
        "abisee/cnn_dailymail", _summaries("article", "highlights"), "3.0.0"
    ),
    "mbpp": HubDataset("google-research-datasets/mbpp", _mbpp, "full"),
    "alpaca": HubDataset("tatsu-lab/alpaca", _alpaca, "default", split="train"),
}
"""By the names that a caller gives."""
