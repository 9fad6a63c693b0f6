"""What `biglittle align` leaves of a training, for the pages that show it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from biglittle.align.evaluation import Evaluation
from biglittle.align.training import TrainingReport


def align_json() -> str:
    before, after = (
        Evaluation(share, share - 0.1, 2 + share, "cost-aware", 1 + share, {})
        for share in (0.57, 0.68)
    )
    training = TrainingReport(150, 0.575, 0.68, ((150, 0.68),), 1100, 100)
    found: dict[str, Any] = {"training": training, "before": before, "after": after}
    made = {"command": "biglittle align --lora 8"}
    return json.dumps({name: asdict(part) for name, part in found.items()} | {"made": made})
