"""Whether two models can work together, found out when the pair is built."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .engines.base import EncoderInput, Model
from .engines.transformers.exit_adapter import ExitConfig
from .errors import IncompatiblePairError, ParameterError, nearest

__all__ = ["DraftSpec", "check_pair", "check_tokenizers", "parse_draft", "shared_vocab"]


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """What drafts: one of a model, the target's first layers, or the text so far."""

    model: Any = None
    layers: int | None = None
    adapter: str | None = None
    """The folder of a trained exit after those layers."""
    ngram: int | None = None

    @property
    def drafts(self) -> bool:
        """Whether anything does."""
        return self.model is not None or self.layers is not None or self.ngram is not None

    def __str__(self) -> str:
        if self.layers is not None:
            adapter = "" if self.adapter is None else f",adapter={self.adapter}"
            return f"early-exit:layers={self.layers}{adapter}"
        if self.ngram is not None:
            return f"prompt-lookup:ngram={self.ngram}"
        if self.model is None:
            return "None"
        return getattr(self.model, "name_or_path", "") or type(self.model).__name__


MODES = {"early-exit": "layers", "prompt-lookup": "ngram"}
EXIT_ADAPTER = re.compile(
    r"(layers=(?P<before>\d+),)?adapter=(?P<adapter>.+?)(,layers=(?P<after>\d+))?"
)


def parse_draft(draft: Any) -> DraftSpec:
    """The meaning of `load`'s `draft`.

    Raises:
        ParameterError: `early-exit` without a number of layers or an adapter, an unknown option,
            or a mode that is misspelt.
        LoadError: An adapter that cannot be read.
    """
    if draft is None:
        return DraftSpec()
    if isinstance(draft, DraftSpec):
        return draft
    name, _, option = str(draft).partition(":") if isinstance(draft, str) else ("", "", "")
    if name not in MODES:
        if get_close_matches(name, MODES, cutoff=0.8) and not Path(draft).exists():
            raise ParameterError(
                f"draft {draft!r} is neither a model nor a mode{nearest(name, MODES)}"
            )
        return DraftSpec(model=draft)
    if name == "early-exit" and (found := EXIT_ADAPTER.fullmatch(option)) is not None:
        return _adapted_exit(draft, found["adapter"], found["before"] or found["after"])
    wanted = MODES[name]
    key, _, value = option.partition("=")
    if not option and name == "prompt-lookup":
        return DraftSpec(ngram=3)
    if key != wanted or not value.isdecimal() or int(value) < 1:
        other = " or early-exit:adapter=FOLDER" if name == "early-exit" else ""
        raise ParameterError(
            f"draft {draft!r}: write {name}:{wanted}=NUMBER{other}, e.g. {name}:{wanted}=3"
            f"{nearest(key, [wanted]) if key != wanted else ''}"
        )
    number = int(value)
    return DraftSpec(layers=number) if name == "early-exit" else DraftSpec(ngram=number)


def _adapted_exit(draft: str, adapter: str, layers: str | None) -> DraftSpec:
    """An early exit with an adapter, which knows after how many layers it is."""
    trained = ExitConfig.read(adapter).layers
    if layers is not None and int(layers) != trained:
        raise ParameterError(
            f"draft {draft!r}: that exit was trained for the first {trained} layers; leave "
            "layers out"
        )
    return DraftSpec(layers=trained, adapter=adapter)


def shared_vocab(head: int, tokenizer: Any) -> int:
    """Ids that may be emitted: what the head has beyond the tokenizer is padding."""
    return head if tokenizer is None else min(head, 1 + max(_vocabulary(tokenizer).values()))


def _vocabulary(tokenizer: Any) -> dict[str, int]:
    """Every token and its id."""
    if not hasattr(tokenizer, "get_vocab"):
        raise ParameterError(
            f"tokenizer: {type(tokenizer).__name__} is not a transformers tokenizer; of a "
            "processor, give its .tokenizer"
        )
    found: dict[str, int] = tokenizer.get_vocab()
    return found


def check_pair(target: Model, draft: Model, tokenizer: Any, draft_tokenizer: Any) -> None:
    """Raise `IncompatiblePairError` for two models that cannot work together."""
    big, little = target.name, draft.name
    reads = target.encoder_input(), draft.encoder_input()
    if (reads[0] is None) != (reads[1] is None):
        kinds = {True: "a decoder-only model", False: "an encoder-decoder model"}
        raise IncompatiblePairError(
            f"{big} is {kinds[reads[0] is None]} and {little} is {kinds[reads[1] is None]}; "
            "choose a draft of the same kind"
        )
    if reads[0] is not None and reads[1] is not None:
        _check_encoder_inputs(reads[0], reads[1], big, little)
    check_tokenizers(tokenizer, draft_tokenizer, big, little)
    if tokenizer is None and not _padded_alike(target.vocab, draft.vocab):
        raise IncompatiblePairError(
            f"{big} has a vocabulary of {target.vocab} and {little} of {draft.vocab}, "
            "which is more than padding; choose a draft of the same family"
        )


PADDING = 2048  # heads are padded to multiples of at most this; more is another vocabulary


def _padded_alike(one: int, other: int) -> bool:
    return abs(one - other) < min(PADDING, max(one, other) // 2)


def _check_encoder_inputs(one: EncoderInput, other: EncoderInput, big: str, little: str) -> None:
    if one.main == other.main == "input_features" and one.features and other.features:
        for meaning, ours, theirs in zip(MEANINGS, one.features, other.features, strict=True):
            if ours != theirs:
                raise IncompatiblePairError(
                    f"{big} reads {ours} {meaning} and {little} {theirs}; both encoders must take "
                    "the same input"
                )
    if one.main != other.main:
        raise IncompatiblePairError(
            f"{big} reads {one.main} and {little} {other.main}; both encoders must take the same "
            "input"
        )


MEANINGS = ("mel bins", "audio frames")


def check_tokenizers(one: Any, other: Any, big: str, little: str) -> None:
    """Raise `IncompatiblePairError` unless every id that both tokenizers know is the same token.

    Args:
        one: The target's; None if there is none, and then there is nothing to compare.
        other: The draft's; None if it is the same.
        big: Name of the target.
        little: Name of the draft.
    """
    if one is None or other is None:
        return
    ours = {index: token for token, index in _vocabulary(one).items()}
    theirs = {index: token for token, index in _vocabulary(other).items()}
    both = ours.keys() & theirs.keys()
    differ = [index for index in sorted(both) if ours[index] != theirs[index]]
    if differ:
        index = differ[0]
        raise IncompatiblePairError(
            f"{big} and {little} have different tokenizers: {len(differ)} of {len(both)} ids "
            f"differ, e.g. id {index} is {ours[index]!r} and {theirs[index]!r}; choose a draft of "
            "the same family, or draft='prompt-lookup', which needs none"
        )
