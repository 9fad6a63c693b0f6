"""The page of the aligned pair, and its adapter; the commands are tested where they lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipes.qwen_coder.__main__ import write_page
from safetensors.torch import load_file
from tests.recipes.common import align_json
from tests.tune.common import change, setting
from tests.tune.test_profile import profile

import biglittle
from biglittle.bench.summary import ALL, Interval
from biglittle.catalogue import find, is_cached
from biglittle.tune import Timed


def summary(draft: str, speed: float) -> str:
    rows = [
        {
            "task": task, "system": system, "examples": 6, "ms_per_token": 150.0,
            "speedup": speedup, "speedup_low": 1.1, "speedup_high": 1.3, "acceptance": 0.55,
            "tokens_per_pass": 1.9,
        }
        for task, system, speedup in (
            ("test", "none", 1.0), ("test", "cost-aware", speed), (ALL, "cost-aware", 9.0)
        )
    ]  # fmt: skip
    settings = {
        "target": "big", "draft": draft, "draft_quantize": "int4", "precision": "bfloat16",
    }  # fmt: skip
    header = {"settings": settings, "command": "biglittle bench", "hardware": {"cores": 2}}
    return json.dumps({"header": header, "rows": rows})


def test_the_page_shows_what_the_runs_found(tmp_path: Path) -> None:
    (tmp_path / "aligned").mkdir()
    (tmp_path / "aligned" / "align.json").write_text(align_json())
    (tmp_path / "aligned" / "adapter_model.safetensors").write_bytes(bytes(8_800_000))
    for name, speed in (("after", 1.3), ("before", 1.2)):
        folder = tmp_path / "bench" / "captions" / name
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(summary(f"the {name} one", speed))
    (tmp_path / "tuned").mkdir()
    lossy = setting("bild:fallback=0.4,rollback=3", changes=(change(-0.5),))
    timed = Timed(8, Interval(1.31, 1.2, 1.45), Interval(1.2), None)
    made = profile(policy=lossy.policy, lossless=False, promised=lossy, found=lossy, timed=timed)
    made.save(tmp_path / "tuned" / "code-1.json")
    safe = profile(policy="dynamic", lossless=True, found=None, timed=None)
    safe.save(tmp_path / "tuned" / "code0.json")
    write_page(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf8")
    assert "1,100 translations" in text
    assert "8.8 MB" in text
    assert "| agreement | 57.5 % | 68.0 % |" in text
    assert "| predicted speed-up | 1.57× | 1.68× |" in text
    words = " ".join(text.split())
    assert (
        "big with the before one before, and aligned after, bfloat16, the draft in int4; cores: 2."
        in words
    )
    gains = "1.20× (1.10–1.30) | 55 % | 1.90 | 1.30× (1.10–1.30) | 55 % | 1.90"
    assert text.count("| captions |") == text.count(f"| captions | 6 | `cost-aware` | {gains} |")
    assert "1.31× (1.20–1.45)" in text
    assert text.count("| yes |") == text.count("| no |") == 1


def test_the_adapter_is_small_and_one_of_a_model_that_can_be_had() -> None:
    folder = Path(__file__).parents[2] / "recipes" / "qwen_coder" / "aligned"
    weights = folder / "adapter_model.safetensors"
    assert weights.stat().st_size < 20_000_000
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf8"))
    assert find(config["base_model_name_or_path"]) is not None
    down = [part for name, part in load_file(weights).items() if ".lora_A." in name]
    assert {len(part) for part in down} == {config["r"]}


@pytest.mark.slow
def test_the_adapter_drafts_better_where_it_was_trained() -> None:
    """On captions that are not in the data."""
    folder = Path(__file__).parents[2] / "recipes" / "qwen_coder" / "aligned"
    big, little = (f"qwen2.5-coder-{size}-instruct" for size in ("1.5b", "0.5b"))
    for name in (big, little):
        entry = find(name)
        if entry is None or not is_cached(entry):
            pytest.skip(f"{name} is not in the cache: biglittle models fetch {name}")
    captions = (
        "Ein alter Mann mit Hut repariert vor seinem Haus ein rotes Fahrrad.",
        "Drei Frauen warten mit ihren Koffern auf einem Bahnsteig.",
        "Ein kleiner brauner Hund springt über einen Baumstamm im Wald.",
        "Arbeiter mit Helmen heben einen Graben am Straßenrand aus.",
    )
    asked = (f"Translate German to English: {caption}" for caption in captions)
    prompts = [[{"role": "user", "content": text}] for text in asked]
    passes = []
    for draft in (little, str(folder)):
        pair = biglittle.load(big, draft)
        results = pair.generate(prompts, policy="static:tokens=4", max_new_tokens=24)
        passes.append(sum(result.stats.target_passes for result in results))
    assert passes[1] < passes[0]
