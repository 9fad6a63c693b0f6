"""What every test may use."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from biglittle import catalogue

# Tiny models gain nothing from threads, and lose much where cores are shared.
torch.set_num_threads(1)

# A model's first call warms up threads and kernels: no example has a deadline.
settings.register_profile("biglittle", deadline=None)
settings.load_profile("biglittle")


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The folder of SmolLM2-135M-Instruct in bfloat16, fetched once into the user's cache."""
    entry = catalogue.find("smollm2-135m-instruct")
    assert entry is not None
    return catalogue.fetch(entry)
