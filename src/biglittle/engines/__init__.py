"""Engines run models. The core knows only the protocol in `base`; an engine is a folder."""

from .base import Limits, Prompt, Runner, Saved

__all__ = ["Limits", "Prompt", "Runner", "Saved"]
