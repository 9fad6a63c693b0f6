"""Parallel text: a file of source lines and a file of their translations."""

from __future__ import annotations

from pathlib import Path

from ...errors import ParameterError
from ..tasks import Example, Task
from .files import read_lines, stem
from .options import ReadOptions, fill

__all__ = ["METRICS", "instruction", "language", "read_parallel", "read_source"]

METRICS = ("bleu", "chrf")
LANGUAGES = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hu": "Hungarian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "zh": "Chinese",
}
"""ISO 639-1 codes, as they end the names of parallel files."""


def read_parallel(path: Path, options: ReadOptions) -> tuple[Task, ...]:
    """Line n of the reference file translates line n of the source file.

    The template around a line is by default `Translate German to English: {source}` with the
    languages that the files' names end in (`test.de`, `test.en.gz`). With `chat=False`, as a model
    that was trained on pairs of texts wants it, the line is sent as it is, or through the template
    if one is given, e.g. T5's `translate German to English: {source}`.
    """
    reference = options.reference
    if reference is None:
        raise ParameterError(f"{path} needs a file of references beside it; give reference=")
    sources, references = read_lines(path), read_lines(reference)
    if len(sources) != len(references):
        raise ParameterError(
            f"{path} has {len(sources)} lines, but {reference} has {len(references)}; expected a "
            "reference for every line"
        )
    sources, references = sources[: options.limit], references[: options.limit]
    chat = options.chat is not False
    template = options.template or (_template(path, reference) if chat else "{source}")
    for file, lines in ((path, sources), (reference, references)):
        _check_lines(file, lines)
    examples = [
        Example(str(number), (fill(template, source),), chat, (target,), source=source)
        for number, (source, target) in enumerate(zip(sources, references, strict=True), start=1)
    ]
    return (Task(stem(path), tuple(examples), METRICS),)


def read_source(path: Path, options: ReadOptions) -> tuple[Task, ...]:
    """The source side alone, where no translations are needed.

    The template must be given; with `chat=False` the line is sent as it is, or through the template
    if there is one.
    """
    if options.template is None and options.chat is not False:
        raise ParameterError(
            f"what a chat model should do with the lines of {path} is not said; give a template, "
            "e.g. 'Translate German to English: {source}', or --raw for a model without a chat "
            "template"
        )
    sources = read_lines(path)[: options.limit]
    _check_lines(path, sources)
    template = options.template or "{source}"
    chat = options.chat is not False
    examples = [
        Example(str(number), (fill(template, source),), chat, source=source)
        for number, source in enumerate(sources, start=1)
    ]
    return (Task(stem(path), tuple(examples)),)


def instruction(source: str, target: str) -> str:
    """What a chat model is told, for two languages by name."""
    return f"Translate {source} to {target}: {{source}}"


def language(code: str) -> str | None:
    """The English name of a language by its code; None if it is not known."""
    return LANGUAGES.get(code.lower())


def _template(source: Path, target: Path) -> str:
    names = [
        language(path.name.removesuffix(".gz").rpartition(".")[2]) for path in (source, target)
    ]
    if names[0] is None or names[1] is None:
        unknown = source if names[0] is None else target
        raise ParameterError(
            f"the language of {unknown} is not clear from its name (expected e.g. test.de or "
            "test.de.gz); give a template, e.g. 'Translate German to English: {source}'"
        )
    return instruction(names[0], names[1])


def _check_lines(path: Path, lines: list[str]) -> None:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise ParameterError(f"{path}:{number} is empty, expected a sentence")
