"""Drafts that learn: what an adapter's folder says, and what a draft does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.align.common import samples_of, simple
from tests.models import VOCAB, build

import biglittle
from biglittle.align import Plan, Sample, Settings
from biglittle.align.students import _fitting, _lasting_name, _readable, make_student

FAST = Settings(learning_rate=1e-2, optimizer="adamw", steps=2, batch=4)


def no_progress(done: int, total: int, agreement: float | None) -> None:
    """Tell nobody."""


@pytest.fixture
def samples() -> list[Sample]:
    return samples_of(simple("llama"), 8, new=6)


def test_an_adapter_names_its_base_and_is_small(
    folders: dict[str, str], samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(folders["draft"]).parent)
    plan = Plan(target="./target", draft="draft", lora=2, settings=FAST)
    out = tmp_path / "out"
    student = make_student(plan, out, tmp_path / "work")
    student.train(samples[2:], samples[:2], tmp_path / "training", no_progress, None)
    monkeypatch.chdir(tmp_path)
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == (
        str(Path(folders["draft"]).resolve())
    )
    pair = biglittle.load(folders["target"], out)
    assert len(pair.generate("The little", max_new_tokens=4).token_ids) == 4
    assert not (out / "model.safetensors").exists()


def test_a_draft_is_kept_in_its_own_type(
    folders: dict[str, str], samples: list[Sample], tmp_path: Path
) -> None:
    plan = Plan(
        target=folders["target"],
        draft=folders["draft"],
        settings=FAST,
        options={"draft_dtype": "bfloat16"},
    )
    student = make_student(plan, tmp_path / "out", tmp_path / "work")
    student.train(samples[2:], samples[:2], tmp_path / "training", no_progress, None)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_names_that_last(folders: dict[str, str]) -> None:
    assert _lasting_name("qwen2.5-coder-0.5b-instruct") == "qwen2.5-coder-0.5b-instruct"
    assert _lasting_name("some/model") == "some/model"
    assert _lasting_name(folders["draft"]) == str(Path(folders["draft"]).resolve())


def test_what_a_draft_cannot_read() -> None:
    model = build("opt")
    known, new, context = Sample((1,), (2,)), VOCAB, model.config.max_position_embeddings
    others = [Sample((new,), (2,)), Sample((1,), (new,)), Sample((1,), (2,), source=(new,))]
    assert _readable([known, *others], model) == [known]
    fits = Sample((1,) * (context - 1), (2, 2))  # the last token is not read
    longer = Sample((1,) * context, (2, 2))
    assert _readable([longer, fits, known], model) == [fits, known]
    model(torch.tensor([[*fits.prompt, *fits.output]])[:, :-1])
    unbounded = build("t5")
    assert _readable([longer], unbounded) == [longer]


def test_a_forward_takes_what_fits() -> None:
    samples = [Sample((1,) * 100, (2,) * 412)]
    vocab = 1 << 17  # 512 tokens of 2¹⁷ logits of 4 bytes are 256 MiB
    assert _fitting(Settings(batch=16), samples, vocab).forward_batch == 4
    assert _fitting(Settings(batch=6), samples, vocab).forward_batch == 3
    assert _fitting(Settings(batch=16), samples, 1 << 30).forward_batch == 1
    assert _fitting(Settings(batch=16), samples, 100).forward_batch == 16
    assert _fitting(Settings(batch=16, micro_batch=8), samples, vocab).forward_batch == 8
