"""Engines run models. The core knows only the protocols in `base`; an engine is a folder."""

from typing import Any

from .base import Limits, Model, Prompt, Runner, Saved

__all__ = ["Limits", "Model", "Prompt", "Runner", "Saved", "open_model"]


def open_model(model: Any) -> Model:
    """A model object as its engine holds it.

    Raises:
        UnsupportedModelError: An object that no engine runs.
    """
    from .llama_cpp import LlamaModel
    from .transformers import TransformersModel

    return model if isinstance(model, LlamaModel) else TransformersModel(model)
