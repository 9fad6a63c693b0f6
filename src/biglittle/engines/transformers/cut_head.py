"""A draft's head, cut to some tokens of the vocabulary.

A little model's head is often a quarter of its weights or more, because its vocabulary is the big
model's. Most of it is never needed: a draft that proposes only some tokens is a draft all the same
(q = 0 for the others), and what is lossless stays so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import LoadError, ParameterError
from .capability import vocab_size

__all__ = ["SAVED", "CutHead", "DraftVocab", "check_vocab", "cut_head", "saved_vocab", "vocabulary"]

DraftVocab = int | str | Path | Sequence[int]
"""How many tokens from the first one; a text file, for the tokens that occur in it; or ids."""

SAVED = "draft_vocab.json"
"""A file beside a model: ids that its head is cut to when it drafts."""


class CutHead(nn.Module):
    """A head that knows some tokens; the others' logits are -inf.

    Args:
        head: The whole one.
        ids: The tokens that stay, ascending, [kept].
    """

    ids: Tensor

    def __init__(self, head: nn.Linear, ids: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = head.in_features, head.out_features
        self.part = nn.Linear(head.in_features, len(ids), head.bias is not None, device="meta")
        self.part.weight = nn.Parameter(head.weight[ids], requires_grad=False)
        if head.bias is not None:
            self.part.bias = nn.Parameter(head.bias[ids], requires_grad=False)
        self.register_buffer("ids", ids, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The whole head's, without its values, [out, in]: for whoever asks for its shape."""
        dtype: torch.dtype = self.part.weight.dtype  # in four bits, of what it was made of
        return torch.empty(self.out_features, self.in_features, dtype=dtype, device="meta")

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        known: Tensor = self.part(inputs)
        scores = known.new_full((*known.shape[:-1], self.out_features), float("-inf"))
        scores[..., self.ids] = known
        return scores


def check_vocab(wanted: DraftVocab | None, source: Any) -> None:
    """Raise `ParameterError` for what cannot be a draft's vocabulary, or for a draft that cannot
    have one."""
    if wanted is None:
        return
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 1):
        raise ParameterError(f"draft_vocab={wanted!r} must be at least 1 token")
    if isinstance(wanted, str | Path):
        _text(wanted)
    if source is None:
        raise ParameterError("draft_vocab needs a draft model; give one as draft")
    if not isinstance(source, str | Path):
        raise ParameterError(
            "draft_vocab is for a draft that is loaded here, by a name or a path; a model in "
            "memory is used as it is"
        )


def saved_vocab(folder: str | Path) -> list[int] | None:
    """The ids that a file beside a model names; None without one.

    Raises:
        LoadError: Something else in the file.
    """
    path = Path(folder) / SAVED
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(type(token) is int for token in found):
        raise LoadError(f"{path} is no list of token ids; mend it, or remove it")
    return found


def vocabulary(wanted: DraftVocab, tokenizer: Any, model: Any) -> list[int]:
    """The tokens that `wanted` stands for, and those that end a text: the draft may propose its
    end. Ascending.

    Args:
        wanted: What `check_vocab` has let through.
        tokenizer: For a text file.
        model: Whose vocabulary it is.

    Raises:
        ParameterError: Ids that the model does not have; a text file without a tokenizer.
    """
    size = vocab_size(model)
    if isinstance(wanted, int):
        found = list(range(min(wanted, size)))
    elif not isinstance(wanted, str | Path):
        found = list(wanted)
    elif tokenizer is None:
        raise ParameterError("draft_vocab: a text file needs a tokenizer; give token ids instead")
    else:
        found = tokenizer(_text(wanted), add_special_tokens=False).input_ids
    if not found or min(found) < 0 or max(found) >= size:
        raise ParameterError(f"draft_vocab: token ids must be from 0 to {size - 1}, one at least")
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends or []
    return sorted({*found, *(token for token in ends if token < size)})


def _text(path: str | Path) -> str:
    try:
        text = Path(path).expanduser().read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as cause:
        reason = getattr(cause, "strerror", None) or "not UTF-8 text"
        raise ParameterError(
            f"draft_vocab: {path} cannot be read ({reason}); give a number of tokens, or a text "
            "file like what will be written"
        ) from None
    if not text.strip():
        raise ParameterError(f"draft_vocab: {path} is empty")
    return text


@torch.no_grad()
def cut_head(model: Any, ids: Sequence[int]) -> None:
    """Cut a model's head to tokens, in place. A tied embedding stays whole.

    Raises:
        LoadError: A head that is more than a linear layer.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise LoadError(
            f"draft_vocab: the head of {type(model).__name__} is no plain linear layer, and cannot "
            "be cut; leave the option out"
        )
    model.set_output_embeddings(CutHead(head, torch.tensor(ids, device=head.weight.device)))
