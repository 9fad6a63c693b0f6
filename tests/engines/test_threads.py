"""OpenMP's workers end with the computing of their thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

GNU = any((Path(torch.__file__).parent / "lib").glob("libgomp*"))
COUNTS = """
import os, torch
from biglittle.engines.threads import release_workers

def compute():
    one = torch.ones(1200, 1200)
    return float((one + one).sum()), len(os.listdir("/proc/self/task"))

def released():
    release_workers()
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
print(*compute(), released(), *compute(), released())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux shows them")
@pytest.mark.skipif(not GNU, reason="another OpenMP")
def test_they_end_and_come_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "3"},
    )  # fmt: skip
    first, working, idle, second, again, ended = done.stdout.split()
    assert first == second
    assert int(working) - int(idle) == int(again) - int(ended) == 2
