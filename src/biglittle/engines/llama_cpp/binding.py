"""llama-cpp-python's low-level binding, loaded when it is first needed."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections import deque
from functools import cache
from typing import Any

from ...errors import LoadError

__all__ = ["INSTALL", "available", "complaints", "has_amx", "library"]

INSTALL = "pip install 'biglittle[llama]'"
WARNING, ERROR, CONTINUED = 3, 4, 5  # levels of ggml's log

complaints: deque[str] = deque(maxlen=64)
"""What llama.cpp complained of, oldest first: its functions say only that they failed."""


def available() -> bool:
    """Whether llama-cpp-python is installed."""
    return importlib.util.find_spec("llama_cpp") is not None


@cache
def library() -> Any:
    """The binding's module, with llama.cpp's log turned off the user's terminal.

    Raises:
        LoadError: It is not installed, or cannot be loaded here.
    """
    try:
        found = importlib.import_module("llama_cpp.llama_cpp")
    except ImportError as cause:
        raise LoadError(f"the llama.cpp engine needs llama-cpp-python: {INSTALL}") from cause
    except (OSError, RuntimeError, AttributeError) as cause:  # a shared library that does not fit
        reason = str(cause).splitlines()[0]
        raise LoadError(f"llama-cpp-python cannot be loaded here ({reason}): {INSTALL}") from cause
    found.llama_log_set(_listener(found), ctypes.c_void_p(0))
    found.llama_backend_init()
    return found


@cache
def has_amx() -> bool:
    """Whether llama.cpp was built with Intel's AMX tiles, for this CPU that has them."""
    return b"AMX_INT8 = 1" in library().llama_print_system_info()


_kept: list[Any] = []  # callbacks that C code holds


def _listener(binding: Any) -> Any:
    loud = False

    def listen(level: int, text: bytes, _: Any) -> None:
        nonlocal loud
        if level != CONTINUED:
            loud = level in (WARNING, ERROR)
        line = text.decode("utf8", errors="replace").strip()
        if loud and line:
            complaints.append(line)

    _kept.append(binding.llama_log_callback(listen))
    return _kept[-1]
