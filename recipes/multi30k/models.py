"""The tokenizer and the two models, T5-like, made from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

__all__ = ["SHAPES", "ByteDropout", "make_model", "make_tokenizer"]

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"  # T5's, in T5's order
VOCAB = 4000
SHAPES = {
    "large": {"d_model": 128, "d_ff": 512, "num_heads": 2, "num_layers": 3, "decoder": 24},
    "small": {"d_model": 96, "d_ff": 256, "num_heads": 2, "num_layers": 1, "decoder": 1},
}
"""Sized so that the large one is clearly better and its decoder's step several times dearer."""


def make_tokenizer(lines: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-pair encoding of both languages, with T5's special tokens."""
    inner = Tokenizer(models.BPE(unk_token=UNK))
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[PAD, EOS, UNK], show_progress=False
    )
    inner.train_from_iterator(lines, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, inner.token_to_id(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=128,
        clean_up_tokenization_spaces=False,
    )


def make_model(name: str, vocab: int, seed: int) -> T5ForConditionalGeneration:
    """A model of `SHAPES`, its weights drawn by a seed."""
    shape: dict[str, Any] = {**SHAPES[name], "decoder_start_token_id": 0}
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=vocab,
            num_decoder_layers=shape.pop("decoder"),
            d_kv=64,
            dropout_rate=0.1,
            pad_token_id=0,
            eos_token_id=1,
            **shape,
        )
    )
    hasten_dropout(model)
    return model


class ByteDropout(nn.Dropout):
    """Dropout that draws a byte an element: torch's own draw takes a quarter of a step on a CPU.

    The probability is a whole number of 256ths.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Of any shape."""
        dropped = round(256 * self.p)
        if not self.training or not dropped:
            return input
        words = torch.empty((input.numel() + 7) // 8, dtype=torch.int64, device=input.device)
        drawn = words.random_(-(2**63), None).view(torch.uint8)[: input.numel()]
        kept = drawn.view(input.shape) >= dropped
        return input * kept.to(input.dtype).mul_(256 / (256 - dropped))


def hasten_dropout(module: nn.Module) -> None:
    """Have `ByteDropout` in place of torch's, everywhere within."""
    for name, child in module.named_children():
        if isinstance(child, nn.Dropout):
            setattr(module, name, ByteDropout(child.p))
        else:
            hasten_dropout(child)
