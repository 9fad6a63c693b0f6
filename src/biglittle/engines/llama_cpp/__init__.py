"""The llama.cpp engine: decoder-only models in GGUF files, through llama-cpp-python."""

from .binding import INSTALL, available
from .model import LlamaModel, read_tokenizer
from .options import LlamaOptions
from .runner import LlamaRunner

__all__ = ["INSTALL", "LlamaModel", "LlamaOptions", "LlamaRunner", "available", "read_tokenizer"]
