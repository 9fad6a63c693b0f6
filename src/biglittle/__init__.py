"""Generation with two models: a little one writes and a big one corrects.

import biglittle

pair = biglittle.load("Qwen/Qwen2.5-Coder-1.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct")
result = pair.generate([{"role": "user", "content": "Reverse a string in Python."}])
print(result.text, result.stats.acceptance_rate)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import audit as audit
    from . import tune as tune
    from .chat import Chat
    from .engines.llama_cpp import LlamaModel, LlamaOptions
    from .errors import (
        BiglittleError,
        ContextError,
        IncompatiblePairError,
        LoadError,
        ParameterError,
        PolicyError,
        RowError,
        UnsupportedModelError,
    )
    from .integrations.transformers.assisted import assisted
    from .pair import Pair, load
    from .params import GenerationParams
    from .policy import Policy, parse_policy
    from .results import Chunk, FinishReason, Origin, Result, Round, Stats, TokenLogprob

__all__ = [
    "BiglittleError",
    "Chat",
    "Chunk",
    "ContextError",
    "FinishReason",
    "GenerationParams",
    "IncompatiblePairError",
    "LlamaModel",
    "LlamaOptions",
    "LoadError",
    "Origin",
    "Pair",
    "ParameterError",
    "Policy",
    "PolicyError",
    "Result",
    "Round",
    "RowError",
    "Stats",
    "TokenLogprob",
    "UnsupportedModelError",
    "assisted",
    "load",
    "parse_policy",
]

__version__ = "0.1.0"

_HOMES = {
    "chat": ["Chat"],
    "engines.llama_cpp": ["LlamaModel", "LlamaOptions"],
    "errors": [name for name in __all__ if name.endswith("Error")],
    "integrations.transformers": ["assisted"],
    "pair": ["Pair", "load"],
    "params": ["GenerationParams"],
    "policy": ["Policy", "parse_policy"],
    "results": ["Chunk", "FinishReason", "Origin", "Result", "Round", "Stats", "TokenLogprob"],
}
_MODULES = {"audit", "tune"}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: torch takes seconds to import, and
    `biglittle --help` does not need it."""
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
