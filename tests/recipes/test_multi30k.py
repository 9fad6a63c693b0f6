"""The recipe's own parts; what it calls is tested where it lies."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recipes.multi30k.__main__ import app, pairs, read
from recipes.multi30k.models import ByteDropout, make_model, make_tokenizer
from recipes.multi30k.page import front, write_page
from recipes.multi30k.sweep import DRAFTS, EXIT, MODELS, SAMPLED, SWEPT, TESTED, benches, chosen
from tests.recipes.common import align_json
from typer.testing import CliRunner

from biglittle.errors import ParameterError
from biglittle.policy import parse_policy

GERMAN = ["Zwei Männer stehen am Herd.", "Ein Hund läuft über die Wiese.", "Ein Kind lacht."]
ENGLISH = ["Two men are at the stove.", "A dog runs over the meadow.", "A child laughs."]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "val"):
        (folder / f"{split}.de").write_text("\n".join(GERMAN) + "\n", encoding="utf8")
        (folder / f"{split}.en.gz").write_bytes(gzip.compress("\n".join(ENGLISH).encode()))
    return folder


def test_the_tokenizer_keeps_the_text_and_ends_it() -> None:
    own = make_tokenizer([*GERMAN, *ENGLISH])
    for line in (*GERMAN, *ENGLISH):
        ids = own(line).input_ids
        assert ids[-1] == own.eos_token_id == 1
        assert own.decode(ids, skip_special_tokens=True) == line


def test_pairs_are_what_the_model_reads_and_writes(data: Path) -> None:
    own = make_tokenizer([*GERMAN, *ENGLISH])
    found = pairs(own, data, "train")
    assert len(found) == 3
    assert own.decode(list(found[1].source or ()), skip_special_tokens=True) == GERMAN[1]
    assert own.decode(list(found[1].output), skip_special_tokens=True) == ENGLISH[1]
    assert found[1].prompt == (make_model("small", len(own), 0).config.decoder_start_token_id,)
    with pytest.raises(ParameterError, match="has neither test.de nor test.de.gz"):
        read(data, "test", "de")


def test_a_model_is_made_by_its_seed() -> None:
    one, same, other = (make_model("small", 100, seed).shared.weight for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()


def test_dropout_by_bytes_is_dropout() -> None:
    own, kept = ByteDropout(0.1), torch.ones(300, 301)
    torch.manual_seed(0)
    one = own(kept)
    assert sorted(one.unique().tolist()) == pytest.approx([0, 256 / 230])
    assert one.mean().item() == pytest.approx(1, abs=0.01)
    assert (one == 0).float().mean(0).max() < 0.25  # no column is favoured
    assert (one != own(kept)).any()
    torch.manual_seed(0)
    assert (one == own(kept)).all()
    assert own.eval()(kept) is kept
    assert ByteDropout(0.0)(kept) is kept


def test_a_models_dropout_is_by_bytes() -> None:
    parts = [part for part in make_model("small", 100, 0).modules() if "Dropout" in str(type(part))]
    assert parts
    assert all(isinstance(part, ByteDropout) for part in parts)


@pytest.mark.slow
def test_training_a_small_model(data: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    where = ["--data", str(data), "--run", run]
    early = CliRunner().invoke(app, ["train", "small", *where])
    assert isinstance(early.exception, ParameterError)
    for words in (["tokenizer", *where], ["train", "small", "--epochs", "1", *where]):
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0
    assert (tmp_path / "run" / "small" / "config.json").is_file()


def row(system: str, speedup: float, bleu: float) -> dict[str, Any]:
    return {
        "system": system, "speedup": speedup, "speedup_low": None, "speedup_high": None,
        "bleu": bleu, "lossless": "bild" not in system and "calm" not in system,
        "fallback": None if system == "none" else 0.2,
        "rollback": None if system == "none" else 0.1,
        "flops_ratio": 1.1, "bytes_ratio": 0.5, "intensity_ratio": 2.2,
    }  # fmt: skip


def swept() -> list[dict[str, Any]]:
    return [
        row("none", 1.0, 35.0),
        row("bild:fallback=0.9,rollback=1", 1.2, 35.4),
        row("bild:fallback=0.8,rollback=2", 1.4, 35.3),
        row("bild:fallback=0.5,rollback=3", 1.6, 34.3),
        row("bild:fallback=0.5,rollback=6", 1.5, 33.0),
    ]


def save(run: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder = run / "bench" / name
    folder.mkdir(parents=True, exist_ok=True)
    header = {"hardware": {"cores": 2}, "settings": {"precision": "float32 on cpu"}}
    found = json.dumps({"header": header, "rows": rows})
    (folder / "summary.json").write_text(found, encoding="utf8")


def test_thresholds_are_the_fastest_within_the_budget() -> None:
    assert chosen(swept()) == {
        "no loss": "bild:fallback=0.8,rollback=2",
        "one point": "bild:fallback=0.5,rollback=3",
    }
    assert [part["speedup"] for part in front(swept()[1:])] == [1.2, 1.4, 1.6]


def test_the_page_shows_what_the_runs_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in DRAFTS:
        save(run, f"{SWEPT}-{name}", [part | {"bleu": 0.0} for part in swept()])
        quality = {part["system"]: part["bleu"] for part in swept()}  # of the whole split
        (run / "quality").mkdir(exist_ok=True)
        (run / "quality" / f"{name}.json").write_text(json.dumps(quality))
    for bench in benches(run):
        systems = ["none", *(str(parse_policy(policy)) for policy in bench.policies)]
        systems += [f"calm:threshold={word}" for word in bench.options[3::2] if "." in word]
        if not bench.name.startswith(SWEPT):
            found = [row(system, 1 + at / 10, 35 - at / 5) for at, system in enumerate(systems)]
            save(run, bench.name, found)
    assert {folder.name for folder in (run / "bench").iterdir()} >= {EXIT, SAMPLED}
    assert (run / "bench" / f"{TESTED}-aligned").is_dir()
    for name in MODELS:
        (run / name).mkdir()
        config = {"num_layers": 1, "num_decoder_layers": 2, "d_model": 64}
        (run / name / "config.json").write_text(json.dumps(config))
        (run / name / "align.json").write_text(align_json())
        (run / "alone").mkdir(exist_ok=True)
        step = 2.5 if name == "large" else 0.5
        known = {"bleu": 31.25, "parameters": 1_500_000, "ms_per_step": step}
        (run / "alone" / f"{name}.json").write_text(json.dumps(known))
    out = tmp_path / "docs" / "page.md"
    out.parent.mkdir()
    findings = tmp_path / "findings.md"
    findings.write_text("## Findings\n\nNothing.\n", encoding="utf8")
    write_page(run, findings, out)
    text = out.read_text(encoding="utf8")
    assert "| large | 1 + 2 | 64 | 1.5 M | 31.25 | 2.50 |" in text
    assert "| aligned BiLD, no loss | 34.80 | 1.10× | 20.0 / 10.0 | fallback=0.8,rollback=2" in text
    assert "calm:threshold=0.9" in text
    assert "| agreement | 57.5 % | 68.0 % |" in text
    assert "| its decoder's step, in steps of the small one | 4 | 5.00 | yes |" in text
    assert "| speed-up, no loss, aligned | 1.5 | 1.00 | no |" in text  # 34.8 is below 34.9
    assert "| speed-up, one point, aligned | 2 | 1.20 | no |" in text
    assert text.endswith("## Findings\n\nNothing.\n")
    assert text.count("![BLEU over speed-up") == 2
    assert (tmp_path / "docs" / "images" / "reproduction-bild.svg").is_file()
