"""A trained exit: on the draft's path only, and only for the target that it was trained for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fakes import request
from tests.models import ALL, VOCAB, build, encoder_inputs
from torch import Tensor

import biglittle
from biglittle import IncompatiblePairError, LoadError, Pair, ParameterError
from biglittle.decoding import Row
from biglittle.drafters import EarlyExitDrafter
from biglittle.engines.base import Prompt
from biglittle.engines.transformers import make_runner
from biglittle.engines.transformers.capability import shallow_model
from biglittle.engines.transformers.exit_adapter import CONFIG, WEIGHTS, ExitAdapter, load_exit
from biglittle.lookahead import DraftStep


def made(model: Any, layers: int = 2, size: float = 0.0) -> ExitAdapter:
    """An exit; with a size, one that changes what it gets."""
    torch.manual_seed(5)
    adapter = ExitAdapter.of(model, layers).requires_grad_(False)
    if size:
        adapter.map.weight.normal_(0.0, size)
        adapter.map.bias.normal_(0.0, size)
    return adapter


def saved(folder: Path, model: Any, **settings: Any) -> str:
    made(model, **settings).save(folder)
    return str(folder)


def go_on(step: DraftStep) -> Tensor:
    return torch.zeros(len(step.tokens), dtype=torch.int8)


def test_what_it_computes() -> None:
    model = build("llama")
    adapter = made(model, size=1.0)
    hidden = torch.randn(2, 3, 32)
    expected = hidden @ adapter.map.weight.T + adapter.map.bias
    assert torch.allclose(adapter(hidden), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "falcon", "t5", "bart", "whisper"])
def test_a_new_one_is_the_plain_exit_and_a_changed_one_is_not(name: str) -> None:
    model = build(name)
    prompt = {"input_ids": torch.tensor([[3, 4, 5, 6]])}
    if (encoder := encoder_inputs(name, 5)) is not None:
        prompt = {**encoder, "decoder_input_ids": prompt["input_ids"]}
    with torch.inference_mode():
        plain, new, other = (
            shallow_model(model, 2, adapter)(**prompt, use_cache=False).logits
            for adapter in (None, made(model), made(model, size=20.0))
        )
    assert torch.equal(new, plain)
    assert not torch.allclose(other, plain, atol=0.1)


@pytest.mark.parametrize("name", [*ALL])
def test_the_output_and_the_cache_are_the_targets(name: str, tmp_path: Path) -> None:
    model = build(name)
    folder = saved(tmp_path, model, size=20.0)
    prompt: Any = encoder_inputs(name, 5) or [3, 4, 5]
    alone, drafted = (
        Pair(model, draft).generate(prompt, policy=policy, temperature=0, max_new_tokens=16)
        for draft, policy in ((None, "none"), (f"early-exit:adapter={folder}", "static:tokens=3"))
    )
    assert drafted.token_ids == alone.token_ids
    assert drafted.stats.drafted > 0


def test_it_drafts_what_the_adapted_layers_would_write() -> None:
    model = build("qwen2", seed=2)
    adapter = made(model, size=5.0)
    target = make_runner(model)
    drafter = EarlyExitDrafter(target, 2, VOCAB, adapter)
    rows = [Row(request(prompt), None) for prompt in ([3, 4, 5, 6], [7, 8])]
    for row in rows:
        target.admit(Prompt(tuple(row.tokens[:-1])))
        drafter.admit(row)
    draft = drafter.propose(rows, [4, 2], go_on)
    slow = shallow_model(model, 2, adapter)
    for row, part in zip(rows, draft.rows, strict=True):
        tokens = list(row.tokens)
        for token in part.ids:
            with torch.inference_mode():
                logits = slow(input_ids=torch.tensor([tokens]), use_cache=False).logits
            assert token == int(logits[0, -1].argmax())
            tokens.append(token)


def test_it_leaves_the_target_as_it_was() -> None:
    model = build("llama")
    names = [name for name, _ in model.named_modules()]
    make_runner(model).early_exit(2, made(model))
    assert [name for name, _ in model.named_modules()] == names
    assert not any(module._forward_hooks for module in model.modules())


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = build("llama")
    first = made(model, size=1.0)
    first.save(tmp_path / "new" / "folder")
    second = load_exit(tmp_path / "new" / "folder", model)
    assert second.config == first.config
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    assert not any(parameter.requires_grad for parameter in second.parameters())


def test_it_comes_in_the_targets_dtype(tmp_path: Path) -> None:
    folder = saved(tmp_path, build("llama"), size=1.0)
    model = build("llama").to(torch.bfloat16)  # its embedding is only nearly the same
    assert load_exit(folder, model).map.weight.dtype == torch.bfloat16
    pair = Pair(model, f"early-exit:adapter={folder}")
    assert pair.generate([3, 4, 5], max_new_tokens=8, temperature=0).token_ids


def test_how_a_draft_names_it(tmp_path: Path) -> None:
    model = build("llama")
    folder = saved(tmp_path / "an, exit", model, layers=1)
    for text in (
        f"early-exit:adapter={folder}",
        f"early-exit:layers=1,adapter={folder}",
        f"early-exit:adapter={folder},layers=1",
    ):
        assert Pair(model, text).draft_name == f"early-exit:layers=1,adapter={folder}"
    with pytest.raises(ParameterError, match="trained for the first 1 layers; leave layers out"):
        Pair(model, f"early-exit:layers=2,adapter={folder}")


def emptied(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def with_noise(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"noise")


def cut_short(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-10])


def rewritten(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**data, **changes}))

    return change


def no_json(folder: Path) -> None:
    (folder / CONFIG).write_text("{")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (emptied, "no exit adapter there"),
        (no_json, "is not JSON"),
        (rewritten(format="else"), "something else than an exit adapter"),
        (rewritten(version=2), "version 2"),
        (rewritten(layers="two"), "is damaged"),
        (rewritten(total=0), "is damaged"),
        (rewritten(more=1), "is damaged"),
        (rewritten(hidden=5), "not what exit_config.json says"),
        (rewritten(hidden=10**6), "not what exit_config.json says"),
        (without_weights, "cannot be read"),
        (with_noise, "is damaged"),
        (cut_short, "is damaged"),
    ],
)
def test_a_folder_that_holds_none(
    damage: Callable[[Path], None], word: str, tmp_path: Path
) -> None:
    model = build("llama")
    folder = saved(tmp_path, model)
    damage(tmp_path)
    with pytest.raises(LoadError, match=word) as caught:
        Pair(model, f"early-exit:adapter={folder}")
    assert "\n" not in str(caught.value)
    assert "biglittle align" in str(caught.value)


def two_layers() -> Any:
    model = shallow_model(build("llama"), 2)
    model.config.num_hidden_layers = 2
    return model


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (lambda: build("llama", seed=1), "has other weights"),
        (lambda: build("qwen2", seed=1), "has other weights"),
        (two_layers, "has 3 layers of 32, and LlamaForCausalLM has 2 of 32"),
    ],
)
def test_another_target(other: Callable[[], Any], word: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, build("llama"), layers=1)
    model = other()
    with pytest.raises(IncompatiblePairError, match=word) as caught:
        Pair(model, f"early-exit:adapter={folder}")
    assert str(caught.value).startswith("the exit was trained for LlamaForCausalLM")
    assert "\n" not in str(caught.value)


def test_too_many_layers() -> None:
    with pytest.raises(ParameterError, match="early exit after 3 layers"):
        ExitAdapter.of(build("llama"), 3)


def test_it_is_looked_at_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no exit adapter there"):
        biglittle.load("no/such-model", f"early-exit:adapter={tmp_path}")
