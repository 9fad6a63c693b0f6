"""Training an exit: the target stays as it is, or becomes another on purpose."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.align.common import samples_of, simple
from tests.models import build
from torch import Tensor, nn
from torch.nn import functional

from biglittle import Pair, ParameterError
from biglittle.align import Sample, Settings, agreement
from biglittle.align.data import Collator, Samples
from biglittle.align.exit import _with_exits, train_exit, train_joint
from biglittle.align.training import _Trainer
from biglittle.engines.transformers.capability import decoder_layers, shallow_model
from biglittle.engines.transformers.packing import PackedLinear, can_pack

FAST = Settings(learning_rate=1e-2, optimizer="adamw", epochs=3, batch=4, patience=0)
KINDS = ["llama", "t5"]


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest) -> Any:
    return simple(str(request.param))


@pytest.fixture(scope="module")
def samples(target: Any) -> list[Sample]:
    return samples_of(target, 24)


def train(
    target: Any, samples: list[Sample], folder: Path, settings: Settings = FAST, **more: Any
) -> Any:
    return train_exit(target, 1, samples[4:], samples[:4], settings, folder, **more)


def batch_of(model: Any, samples: list[Sample]) -> dict[str, Any]:
    data = Samples(samples)
    return Collator(model)([data[index] for index in range(len(samples))])


@pytest.mark.parametrize("soft", [0.0, 0.5])
def test_an_exit_learns_and_the_target_does_not_change(
    target: Any, samples: list[Sample], soft: float, tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in target.state_dict().items()}
    settings = dataclasses.replace(FAST, soft=soft)
    adapter, report = train(target, samples, tmp_path / "work", settings)
    assert report.after > report.before + 0.1
    assert report.before == pytest.approx(agreement(shallow_model(target, 1), samples[:4]))
    assert report.after == pytest.approx(agreement(shallow_model(target, 1, adapter), samples[:4]))
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in target.parameters())
    assert not any(p.requires_grad for p in adapter.parameters())
    assert adapter.config.about["agreement"] == [report.before, report.after]
    assert adapter.config.about["settings"]["soft"] == soft

    adapter.save(tmp_path / "exit")
    plain, trained = (
        Pair(target, draft, policy="static:tokens=3")
        for draft in ("early-exit:layers=1", f"early-exit:adapter={tmp_path / 'exit'}")
    )
    accepted = []
    for pair in (plain, trained):
        requests = [prompt(sample) for sample in samples[:4]]
        results = pair.generate(requests, temperature=0, max_new_tokens=12)
        assert [r.token_ids for r in results] == [sample.output for sample in samples[:4]]
        accepted.append(sum(result.stats.accepted for result in results))
    assert accepted[1] > accepted[0]


def prompt(sample: Sample) -> Any:
    if sample.source is None:
        return list(sample.prompt)
    return {"input_ids": torch.tensor([sample.source])}


def test_checkpoints_hold_the_exit_alone(
    target: Any, samples: list[Sample], tmp_path: Path
) -> None:
    adapter, _ = train(target, samples, tmp_path, dataclasses.replace(FAST, steps=2))
    kept = load_file(tmp_path / "checkpoints" / "checkpoint-2" / "model.safetensors")
    assert {*kept} == {f"exit.{name}" for name in adapter.state_dict()}


def test_stopped_and_gone_on_with_equals_uninterrupted(tmp_path: Path) -> None:
    target = simple("llama")
    samples = samples_of(target, 24)
    whole, wanted = train(target, samples, tmp_path / "whole")
    stop = threading.Event()

    def watch(done: int, total: int, agreement: float | None) -> None:
        if done == 7:
            stop.set()

    with pytest.raises(KeyboardInterrupt):
        train(target, samples, tmp_path / "part", progress=watch, stop=stop)
    assert all(p.requires_grad for p in target.parameters())
    part, found = train(target, samples, tmp_path / "part")
    assert found == wanted
    for one, other in zip(part.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, other)


def test_in_bfloat16_the_exit_is_trained_in_float32(tmp_path: Path) -> None:
    target = simple("llama")
    samples = samples_of(target, 24)
    adapter, report = train(target.to(torch.bfloat16), samples, tmp_path)
    assert adapter.map.weight.dtype == torch.float32
    assert report.after > report.before + 0.1


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "falcon", "t5", "bart"])
def test_all_exits_come_from_one_pass(name: str) -> None:
    model = simple(name)
    batch = batch_of(model, samples_of(model, 3))
    del batch["labels"]
    with torch.inference_mode():
        expected = [shallow_model(model, layers)(**batch).logits for layers in (1, 2)]
        last = model(**batch).logits
        passes: list[int] = []
        layers = decoder_layers(model)
        for index, layer in enumerate(layers):
            layer.register_forward_hook(lambda *_, index=index: passes.append(index))
        hooks = [len(layer._forward_hooks) for layer in layers]
        with _with_exits(model, [1, 2]):
            output = model(**batch)
    assert passes == [0, 1, 2, 0, 0]  # the first layer's code also runs the head, twice
    assert torch.equal(output.logits, last)
    for found, wanted in zip(output["exits"], expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)
    assert "forward" not in vars(model)
    assert [len(layer._forward_hooks) for layer in layers] == hooks


@pytest.mark.parametrize("name", KINDS)
def test_the_joint_loss_is_the_papers(name: str) -> None:
    model = build(name)
    batch = batch_of(model, samples_of(model, 3))
    labels = batch["labels"]
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    seen = labels != -100
    first, last = (
        functional.cross_entropy(m(**inputs).logits[:, -labels.shape[1] :][seen], labels[seen])
        for m in (shallow_model(model, 2), model)
    )
    wanted = gradients(model, (first + last) / 2)
    trainer: Any = SimpleNamespace(soft=0.0, smoothing=0.0, teacher=None)
    with _with_exits(model, [2]):
        loss = _Trainer.compute_loss(trainer, model, dict(batch))
    assert loss.item() == pytest.approx((first + last).item() / 2, rel=1e-5)
    for one, other in zip(gradients(model, loss), wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-3)


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_joint_training_makes_another_model(tmp_path: Path) -> None:
    model = simple("t5")
    samples = samples_of(model, 24)
    settings = dataclasses.replace(FAST, learning_rate=1e-3)
    before = agreement(shallow_model(model, 1), samples[:4])
    report = train_joint(model, [1], samples[4:], samples[:4], settings, tmp_path / "work")
    assert report.before == pytest.approx(before)
    assert report.after > before + 0.1
    assert agreement(shallow_model(model, 1), samples[:4]) == pytest.approx(report.after)
    model.save_pretrained(tmp_path / "model")
    loaded = type(model).from_pretrained(tmp_path / "model")
    pair = Pair(loaded, "early-exit:layers=1", policy="static:tokens=3")
    found = pair.generate({"input_ids": torch.tensor([[5, 6, 7]])}, max_new_tokens=12)
    assert found.stats.accepted > 0


def test_what_cannot_be_trained(tmp_path: Path) -> None:
    model = simple("llama")
    samples = samples_of(model, 4)
    parts = samples[1:], samples[:1]
    with pytest.raises(ParameterError, match="early exit after 3 layers"):
        train_exit(model, 3, *parts, FAST, tmp_path)
    with pytest.raises(ParameterError, match="early exit after 0 layers"):
        train_joint(model, [1, 0], *parts, FAST, tmp_path)
    with pytest.raises(ParameterError, match="needs an exit"):
        train_joint(model, [], *parts, FAST, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not can_pack(), reason="this CPU packs no weights")
def test_packed_weights(tmp_path: Path) -> None:
    model = simple("llama").to(torch.bfloat16)
    samples = samples_of(model, 8)
    layer = model.model.layers[0].mlp
    layer.down_proj = PackedLinear(layer.down_proj)  # a layer before the exit needs no gradient
    train(model, samples, tmp_path, dataclasses.replace(FAST, steps=1))
    with pytest.raises(ParameterError, match="load it with pack=False"):
        train_joint(model, [1], samples[4:], samples[:4], FAST, tmp_path)
    head = nn.Linear(32, 97, bias=False, dtype=torch.bfloat16)
    model.set_output_embeddings(PackedLinear(head))
    with pytest.raises(ParameterError, match="load it with pack=False"):
        train(model, samples, tmp_path)
