"""Generation with two models: a little one writes and a big one corrects.

import biglittle

pair = biglittle.load("Qwen/Qwen2.5-Coder-1.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct")
result = pair.generate([{"role": "user", "content": "Reverse a string in Python."}])
print(result.text, result.stats.acceptance_rate)
"""

from .chat import Chat
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
from .integrations.transformers import assisted
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
