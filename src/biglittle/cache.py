"""Where downloaded and converted models are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """`BIGLITTLE_CACHE`, or the user's cache directory of this platform."""
    return Path(os.environ.get("BIGLITTLE_CACHE") or platformdirs.user_cache_dir("biglittle"))
