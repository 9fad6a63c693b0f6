"""How much arithmetic and how much memory traffic a token costs, computed from the models.

As in the analysis of Kim et al. 2023 (§5, "FLOPs, MOPs and latency"): decoding a token at a time
reads every weight for two operations a number, so that memory, not arithmetic, is the limit. A
target that checks several tokens a pass reads its weights once for all of them: more operations,
far fewer bytes, and so a higher arithmetic intensity.

Counted are the weights of the layers and of the head (an embedding is looked up, not multiplied),
attention's scores and sums, and keys and values read and written; of an encoder, its weights, once
a prompt. Activations and normalisations, which are small beside them, are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..engines.llama_cpp import LlamaModel
from ..engines.llama_cpp.header import read_header
from ..engines.llama_cpp.options import CACHE_TYPES
from ..engines.transformers.capability import decoder_config, is_seq2seq, layer_kinds
from ..engines.transformers.packing import PackedLinear
from ..engines.transformers.quantizing import Int4Linear
from ..pair import Pair

__all__ = ["Operations", "Shape", "Shapes", "Weights", "operations", "shapes_of"]


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers that are multiplied, and the bytes that they lie in."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pass of one model costs.

    Attributes:
        layers: Weights of the decoder's layers.
        head: Of the prediction head.
        windows: How far back every layer attends; 0 is to the beginning.
        queries: Width of a layer's queries (heads times their size).
        cache: Bytes of one token's keys and values in one layer.
        encoder: Weights of the encoder.
    """

    layers: Weights
    head: Weights
    windows: tuple[int, ...]
    queries: int
    cache: int
    encoder: Weights = Weights()

    def first(self, layers: int) -> Shape:
        """The first layers, with the head: what an early exit runs."""
        part = layers / len(self.windows)
        own = Weights(round(self.layers.count * part), round(self.layers.bytes * part))
        return replace(self, layers=own, windows=self.windows[:layers])

    def run(self, cached: int, width: int, scored: int) -> Operations:
        """One pass.

        Args:
            cached: Tokens before it.
            width: Tokens that it reads.
            scored: Tokens that the head scores.
        """
        weights = self.layers.count * width + self.head.count * scored
        # A token sees those before it: on average half of those that are read with it. Its
        # attention is two products as wide as the queries, for the scores and for the values.
        attention = 2 * self.queries * width * self._seen(cached + (width + 1) / 2)
        moved = self.cache * (self._seen(cached + width) + len(self.windows) * width)
        return Operations(2 * (weights + attention), self.layers.bytes + self.head.bytes + moved)

    def _seen(self, tokens: float) -> float:
        """Tokens that the layers attend to, summed over the layers."""
        return sum(min(tokens, window or tokens) for window in self.windows)

    def encode(self, tokens: int) -> Operations:
        """The encoder's pass over a prompt."""
        return Operations(2 * self.encoder.count * tokens, self.encoder.bytes)


@dataclass(frozen=True, slots=True)
class Operations:
    """Arithmetic and traffic, of anything."""

    flops: float = 0.0
    """Floating-point operations: a multiplication and an addition are two."""
    bytes: float = 0.0
    """Read from memory and written to it."""

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, by: float) -> Operations:
        return Operations(self.flops * by, self.bytes * by)

    @property
    def intensity(self) -> float:
        """Operations a byte; 0 for nothing."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """A pair's shapes.

    Attributes:
        target: Of the big model.
        draft: Of what drafts; None where no model does.
        early_exit: Whether it is the target's first layers, which have read what the target has.
    """

    target: Shape
    draft: Shape | None
    early_exit: bool = False


def operations(
    shapes: Shapes,
    *,
    prompt: int,
    rounds: Sequence[tuple[int, int]],
    target_passes: int,
    draft_passes: int,
    source: int = 0,
) -> Operations:
    """What one generation cost, reading the prompt included.

    Args:
        shapes: The models.
        prompt: Tokens of the (decoder's) prompt.
        rounds: Drafted and accepted tokens of every round.
        target_passes: Passes of the target.
        draft_passes: Passes of the draft; 0 for a system that has none.
        source: Tokens that an encoder read.
    """
    target, draft = shapes.target, shapes.draft if draft_passes else None
    total = target.encode(source)
    # A system that reads the prompt and verifies its first draft in one pass has one pass less.
    if target_passes > len(rounds):
        total += target.run(0, prompt, 1)
    else:
        total += Operations(target.run(0, prompt - 1, 0).flops)
    if draft is not None and not shapes.early_exit:
        total += draft.encode(source) + draft.run(0, prompt, 0)
    cached = prompt
    for drafted, accepted in rounds:
        total += target.run(cached, 1 + drafted, 1 + drafted)
        if draft is not None:
            total += draft.run(cached, 1, 1) * (draft_passes / len(rounds))
        cached += 1 + accepted
    return total


# Shapes of models.


def shapes_of(pair: Pair, layers: int | None = None) -> Shapes | None:
    """The shapes of a pair's models.

    Args:
        pair: The pair.
        layers: Of the target that an early exit runs.

    Returns:
        None for mixtures of experts, of whose weights a token reads a part that only the run knows.
    """
    target = _shape(pair.target)
    draft = _shape(pair.draft) if pair.draft is not None else None
    if target is None or (pair.draft is not None and draft is None):
        return None
    if not layers:
        return Shapes(target, draft)
    little = target.first(layers)
    if pair.exit is not None:
        little = replace(little, layers=little.layers + _weights(pair.exit.modules()))
    return Shapes(target, little, early_exit=True)


def _shape(model: Any) -> Shape | None:
    return _gguf_shape(model) if isinstance(model, LlamaModel) else _module_shape(model)


def _module_shape(model: Any) -> Shape | None:
    """Of a transformers model."""
    config = decoder_config(model)
    if getattr(config, "num_experts_per_tok", None):
        return None
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    size = size or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    windows = tuple(window for _, window in layer_kinds(model))
    head = _weights(model.get_output_embeddings().modules())
    encoder = _weights(model.get_encoder().modules()) if is_seq2seq(model) else Weights()
    return Shape(
        layers=_weights(model.get_decoder().modules()),
        head=head,
        windows=windows,
        queries=heads * size,
        cache=2 * groups * size * model.dtype.itemsize,
        encoder=encoder,
    )


def _weights(modules: Iterable[nn.Module]) -> Weights:
    """What modules multiply with; embeddings are looked up."""
    own = (_own(module) for module in modules if not isinstance(module, nn.Embedding))
    return sum(own, Weights())


def _own(module: nn.Module) -> Weights:
    if isinstance(module, Int4Linear):
        size = sum(buffer.nbytes for buffer in module.buffers())
        return Weights(module.in_features * module.out_features, size)
    tensors: list[Tensor] = [t for t in module._parameters.values() if t is not None]
    if isinstance(module, PackedLinear):
        tensors.append(module.weight)
    return Weights(
        sum(tensor.numel() for tensor in tensors),
        sum(tensor.numel() * tensor.element_size() for tensor in tensors),
    )


def _gguf_shape(model: LlamaModel) -> Shape | None:
    """Of a GGUF file, from its header."""
    headers = [read_header(part) for part in _parts(model.path)]
    tensors = {name: size for header in headers for name, size in header.tensors.items()}
    values = headers[0].values
    name = values["general.architecture"]
    if values.get(f"{name}.expert_count"):
        return None
    heads = _mean(values[f"{name}.attention.head_count"])
    groups = _mean(values.get(f"{name}.attention.head_count_kv", heads))
    usual = values[f"{name}.embedding_length"] / heads
    key, value = (values.get(f"{name}.attention.{k}_length", usual) for k in ("key", "value"))
    types = (CACHE_TYPES[kind].bytes for kind in (model.options.type_k, model.options.type_v))
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    layers = [size for tensor, size in tensors.items() if tensor.startswith("blk.")]
    return Shape(
        layers=sum((Weights(size.count, size.bytes) for size in layers), Weights()),
        head=Weights(head.count, head.bytes),
        windows=(0,) * int(values[f"{name}.block_count"]),
        queries=round(heads * key),
        cache=round(groups * sum(a * b for a, b in zip((key, value), types, strict=True))),
    )


def _mean(value: Any) -> float:
    """A number that some files give layer by layer."""
    return sum(value) / len(value) if isinstance(value, list) else float(value)


def _parts(path: Path) -> Iterator[Path]:
    """The files of a split model, or the one."""
    split = re.fullmatch(r"(.*)-\d+-of-(\d+)\.gguf", path.name)
    if split is None:
        yield path
        return
    name, count = split[1], split[2]
    for index in range(1, int(count) + 1):
        yield path.with_name(f"{name}-{index:05}-of-{count}.gguf")
