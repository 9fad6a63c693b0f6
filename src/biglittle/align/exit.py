"""Training an exit of the target: an adapter that leaves the target as it is, or the whole model.

The adapter (see `engines.transformers.exit_adapter`) learns from the target's answers what to make
of the hidden states after a layer, while every weight of the target stands still. Joint training
is Kim et al. 2023, §4.4: the whole model is fine-tuned on the mean of the losses of its exits and
of its end, ½(L₁ + L_last) for one exit; what comes out is another model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..bench.environment import versions
from ..engines.transformers.capability import (
    base_model,
    check_layers,
    decoder_layers,
    embedding_weight,
    is_seq2seq,
    model_name,
    shallow_model,
)
from ..engines.transformers.exit_adapter import ExitAdapter
from ..engines.transformers.packing import PackedLinear
from ..engines.transformers.quantizing import Int4Linear
from ..errors import ParameterError
from .data import Sample, data_hash
from .training import Settings, TrainingReport, fine_tune

__all__ = ["EXIT_SETTINGS", "train_exit", "train_joint"]

EXIT_SETTINGS = Settings(optimizer="adamw", learning_rate=1e-3)
"""An adapter begins as the identity, and learns at a higher rate than a model is fine-tuned at."""


def train_exit(
    target: Any,
    layers: int,
    samples: Sequence[Sample],
    held_out: Sequence[Sample],
    settings: Settings,
    folder: str | Path,
    **watch: Any,
) -> tuple[ExitAdapter, TrainingReport]:
    """Train an exit adapter on the target's answers.

    The target runs up to the exit without a gradient, and is not changed. With `settings.soft` its
    own distribution is learned from, too, which needs the whole of it.

    Args:
        target: A transformers (or PEFT) model.
        layers: The exit is after so many.
        samples: What it learns from.
        held_out: What the agreement is measured on: the share of the target's tokens that the
            exit would draft.
        settings: How.
        folder: Where checkpoints are kept, of the adapter alone; a run that was killed goes on.
        **watch: `progress` and `stop`, as for `fine_tune`.

    Returns:
        The adapter, in float32; its `save` writes the folder that
        `load(target, "early-exit:adapter=FOLDER")` takes.

    Raises:
        ParameterError: A number of layers that the target cannot have, a head without a gradient,
            or what `fine_tune` raises.
    """
    model = base_model(target).eval()
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        raise _packed(model)
    torch.manual_seed(settings.seed)
    adapter = ExitAdapter.of(model, layers).to(embedding_weight(model).device)
    with _frozen(model):
        alone = _ExitAlone(shallow_model(model, layers, adapter), adapter)
        teacher = model if settings.soft else None
        report = fine_tune(alone, samples, held_out, settings, folder, teacher=teacher, **watch)
    about = {
        "versions": versions(),
        "samples": len(samples),
        "data": data_hash(samples),
        "settings": dataclasses.asdict(settings),
        "steps": report.steps,
        "held_out": len(held_out),
        "agreement": [report.before, report.after],
    }
    adapter.config = dataclasses.replace(adapter.config, about=about)
    return adapter.requires_grad_(False).eval(), report


def train_joint(
    target: Any,
    exits: Sequence[int],
    samples: Sequence[Sample],
    held_out: Sequence[Sample],
    settings: Settings,
    folder: str | Path,
    **watch: Any,
) -> TrainingReport:
    """Fine-tune the whole model, in place, on the mean of the losses of its exits and its end.

    Save it as any other model; `load(model, "early-exit:layers=K")` drafts with an exit of it. Its
    own answers change: what is lossless afterwards is lossless to the new model.

    Args:
        target: A transformers model, in float32 or trained with `settings.bf16`.
        exits: The exits are after so many layers; one as in the paper, or several, for CALM.
        samples: What it learns from.
        held_out: What the agreement of the first exit is measured on.
        settings: How.
        folder: Where checkpoints are kept; a run that was killed goes on.
        **watch: `progress` and `stop`, as for `fine_tune`.

    Raises:
        ParameterError: Exits that the model cannot have, weights without a gradient, or what
            `fine_tune` raises.
    """
    model = base_model(target)
    if not exits:
        raise ParameterError("joint training needs an exit, the number of layers before it")
    for layers in exits:
        check_layers(model, layers)
    if any(isinstance(module, PackedLinear | Int4Linear) for module in model.modules()):
        raise _packed(model)
    with _with_exits(model, exits):
        return fine_tune(model, samples, held_out, settings, folder, **watch)


def _packed(model: PreTrainedModel) -> ParameterError:
    return ParameterError(
        f"{model_name(model)}: its weights are laid out for inference and have no gradient; load "
        "it with pack=False"
    )


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    """Within, nothing of the model requires a gradient."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


class _ExitAlone(nn.Module):
    """The first layers with an exit, as a model of which only the exit is trained and kept.

    The layers are no part of it, so the trainer neither switches them to training nor writes them
    into its checkpoints.
    """

    def __init__(self, model: PreTrainedModel, adapter: ExitAdapter) -> None:
        super().__init__()
        self.exit = adapter
        self.config, self.device = model.config, model.device
        self.forward = model.forward


@contextmanager
def _with_exits(model: PreTrainedModel, exits: Sequence[int]) -> Iterator[None]:
    """Within, the model's output has `exits`, too: the logits of each."""
    plain, heads = model.forward, _Heads(model, exits)

    @functools.wraps(plain)
    def forward(**inputs: Any) -> Any:
        output = plain(**inputs, use_cache=False)
        output["exits"] = heads.logits(output, inputs)
        return output

    hooks = heads.attach()
    model.forward = forward
    try:
        yield
    finally:
        del model.forward
        for hook in hooks:
            hook.remove()


class _Heads:
    """The final norm and the head over what layers wrote, in one pass through the layers.

    They are the model's own, run by its first layer alone, in whose place another's hidden states
    go: so they are what the model's code makes of them, whichever model it is.
    """

    def __init__(self, model: PreTrainedModel, exits: Sequence[int]) -> None:
        self._model, self._exits = model, exits
        self._replay = _Replay()
        self._head = shallow_model(model, 1, self._replay)
        self._said: dict[int, Tensor] = {}

    def attach(self) -> list[Any]:
        """Listen to the layers; what `remove` ends."""
        layers = decoder_layers(self._model)
        return [
            layers[exit - 1].register_forward_hook(functools.partial(self._keep, exit))
            for exit in self._exits
        ]

    def _keep(self, exit: int, layer: nn.Module, args: Any, output: Any) -> None:
        self._said[exit] = output[0] if isinstance(output, tuple) else output

    def logits(self, output: Any, inputs: dict[str, Any]) -> list[Tensor]:
        """Of every exit, after the model's pass; an encoder's answer is in its output."""
        if is_seq2seq(self._model):
            said = BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state)
            inputs = {**inputs, "encoder_outputs": said}
            del inputs[self._model.main_input_name]
        found = []
        for exit in self._exits:
            self._replay.said = self._said.pop(exit)
            found.append(self._head(**inputs, use_cache=False).logits)
        return found


class _Replay(nn.Module):
    """Says what another layer said."""

    said: Tensor

    def forward(self, hidden: Tensor) -> Tensor:
        """Anything → what was said."""
        return self.said
