from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import biglittle
from biglittle import pair as pair_module

if TYPE_CHECKING:
    from tests.cli.conftest import Run

GREETING = [{"role": "user", "content": "The little"}]


@pytest.fixture
def models(folders: dict[str, str]) -> list[str]:
    return ["-t", folders["target"], "-d", folders["draft"], "-m", "12"]


@pytest.fixture
def expected(folders: dict[str, str]) -> Any:
    """What the library itself answers."""
    loaded = biglittle.load(folders["target"], folders["draft"])

    def answer(prompt: Any, **options: Any) -> str:
        text: str = loaded.generate(prompt, **{"max_new_tokens": 12, **options}).text
        return text

    return answer


def objects(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_argument_is_answered_in_the_chat_template(run: Run, models: Any, expected: Any) -> None:
    done = run("generate", *models, "The little")
    assert done.exit_code == 0
    assert done.stdout == expected(GREETING) + "\n"
    assert "12 tokens in" in done.stderr
    assert "ended by length" in done.stderr


def test_raw_goes_on_from_the_text(run: Run, models: Any, expected: Any) -> None:
    text = run("generate", *models, "--raw", "The little").stdout
    assert text == expected("The little") + "\n"
    assert text != expected(GREETING) + "\n"


def test_a_model_without_a_template_goes_on_from_the_text(
    run: Run, folders: dict[str, str], expected: Any
) -> None:
    done = run("generate", "-t", folders["bare"], "-d", folders["draft"], "-m", "12", "The little")
    assert done.stdout == expected("The little") + "\n"


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_standard_input_is_a_prompt(run: Run, models: Any, expected: Any, ending: str) -> None:
    assert run("generate", *models, stdin="The little" + ending).stdout == expected(GREETING) + "\n"


def test_file_is_a_prompt(run: Run, models: Any, expected: Any, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("The little\n", encoding="utf-8")
    for name, stdin in ((str(path), None), ("-", "The little\n")):
        done = run("generate", *models, "--file", name, stdin=stdin)
        assert done.stdout == expected(GREETING) + "\n"


def test_lines_of_json_are_prompts(run: Run, models: Any, expected: Any, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}]
    lines = [{"prompt": "The little", "id": 7}, {"messages": system}]
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    done = run("generate", *models, "--jsonl", str(path), "--json")
    assert [one["text"] for one in objects(done.stdout)] == [expected(GREETING), expected(system)]


def test_several_prompts_come_in_order_under_headings(
    run: Run, models: Any, expected: Any, tmp_path: Path
) -> None:
    path = tmp_path / "b.txt"
    path.write_text("def add", encoding="utf-8")
    for size in ("1", "2", "16"):
        done = run(
            "generate", *models, "--raw", "The", "A drafter", "-f", str(path), "--batch-size", size
        )
        texts = [expected(prompt) for prompt in ("The", "A drafter", "def add")]
        names = ["argument 1", "argument 2", str(path)]
        blocks = [f"==> {n} <==\n{text}\n" for n, text in zip(names, texts, strict=True)]
        assert done.stdout == "\n".join(blocks)
        assert "3 texts · 36 tokens" in done.stderr


def test_json_is_all_that_standard_output_holds(run: Run, models: Any, expected: Any) -> None:
    options = ["--json", "--logprobs", "2", "--trace"]
    done = run("generate", *models, "The little", "def", *options)
    first, second = objects(done.stdout)
    assert (first["index"], second["index"], first["sample"]) == (0, 1, 0)
    assert first["text"] == expected(GREETING)
    assert len(first["token_ids"]) == len(first["origins"]) == len(first["logprobs"]) == 12
    assert len(first["logprobs"][0]["top"]) == 2
    assert first["rounds"][0].keys() == {
        "drafted", "accepted", "confidence", "fallback", "rows"
    }  # fmt: skip
    assert first["policy"] == "cost-aware"
    assert first["lossless"] is True
    assert first["stats"]["new_tokens"] == 12


def test_samples_differ_and_repeat_with_their_seed(run: Run, models: Any) -> None:
    options = ["--temperature", "1", "--seed", "3", "-n", "3", "--json"]
    one, other = (run("generate", *models, "The", *options).stdout for _ in range(2))
    texts = [item["text"] for item in objects(one)]
    assert [item["sample"] for item in objects(one)] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [item["text"] for item in objects(other)]


def test_generation_options_reach_the_parameters(
    run: Run, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[biglittle.GenerationParams] = []
    requests = biglittle.Pair.requests

    def spy(self: Any, prompt: Any, **options: Any) -> Any:
        seen.append(options["params"])
        return requests(self, prompt, **options)

    monkeypatch.setattr(biglittle.Pair, "requests", spy)
    given = [
        *("--max-new-tokens", "9", "--min-new-tokens", "2", "--temperature", "0.7"),
        *("--top-p", "0.9", "--top-k", "50", "--min-p", "0.05", "--repetition-penalty", "1.1"),
        *("--no-repeat-ngram-size", "3", "--bad-word", "zz", "--bad-word", "yy", "--seed", "5"),
        *("--stop", "one", "--stop", "two", "--eos-token-id", "7", "--ignore-eos"),
        *("-n", "2", "--logprobs", "1", "--trace", "--json"),
    ]
    assert run("generate", "-t", folders["target"], "The", *given).exit_code == 0
    assert seen[0] == biglittle.GenerationParams(
        max_new_tokens=9,
        min_new_tokens=2,
        temperature=0.7,
        top_p=0.9,
        top_k=50,
        min_p=0.05,
        repetition_penalty=1.1,
        no_repeat_ngram_size=3,
        bad_words=["zz", "yy"],
        seed=5,
        stop=["one", "two"],
        eos_token_ids=[7],
        ignore_eos=True,
        n=2,
        logprobs=1,
        trace=True,
    )


def test_stop_string_ends_the_text(run: Run, models: Any, expected: Any) -> None:
    whole = expected("The little")
    done = run("generate", *models, "--raw", "The little", "--stop", whole[4:6])
    assert done.stdout == whole[: whole.index(whole[4:6])] + "\n"
    assert "ended by stop" in done.stderr


def test_loading_options_reach_the_models(
    run: Run, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    load = pair_module.load

    def spy(*arguments: Any, **options: Any) -> Any:
        loaded.append(load(*arguments, **options))
        return loaded[-1]

    monkeypatch.setattr(pair_module, "load", spy)
    options = ["--dtype", "bfloat16", "--draft-dtype", "float32", "--device", "cpu"]
    models = ["-t", folders["target"], "-d", folders["draft"], "-p", "static:tokens=3"]
    assert run("generate", *models, *options, "-m", "4", "The").exit_code == 0
    assert loaded[0].target.dtype == torch.bfloat16
    assert loaded[0].draft.dtype == torch.float32
    assert str(loaded[0].policy) == "static:tokens=3"


@pytest.mark.parametrize("draft", ["prompt-lookup", "early-exit:layers=1", "none"])
def test_drafts_that_are_no_models(
    run: Run, folders: dict[str, str], expected: Any, draft: str
) -> None:
    done = run("generate", "-t", folders["target"], "-d", draft, "-m", "12", "The little")
    assert done.stdout == expected(GREETING) + "\n"


def test_lossy_policy_says_so(run: Run, models: Any) -> None:
    lossy = run("generate", *models, "The", "-p", "bild:fallback=0.1,rollback=9", "--no-stats")
    assert lossy.stderr.splitlines() == [
        "bild:fallback=0.1,rollback=9 is lossy: the text may differ from the target's own"
    ]
    assert "lossy" not in run("generate", *models, "The").stderr


@pytest.mark.parametrize("option", ["--quiet", "-q", "--no-stats"])
def test_standard_error_can_be_silent(run: Run, models: Any, option: str) -> None:
    done = run("generate", *models, "The", option)
    assert done.exit_code == 0
    assert done.stderr == ""
    assert done.stdout


def test_a_failing_row_leaves_the_others_and_exits_with_1(
    run: Run, models: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(ids: Any, scores: Any) -> Any:
        raise ValueError("a processor of one's own")

    requests = biglittle.Pair.requests

    def sabotage(self: Any, prompt: Any, **options: Any) -> Any:
        found = requests(self, prompt, **options)
        broken = requests(self, prompt, logits_processors=[fail])[1]
        return [found[0], broken, found[2]]

    monkeypatch.setattr(biglittle.Pair, "requests", sabotage)
    done = run("generate", *models, "--json", "-q", "The", "The little", "def")
    assert done.exit_code == 1
    results = objects(done.stdout)
    assert [one["finish_reason"] for one in results] == ["length", "error", "length"]
    assert done.stderr == "error: ValueError: a processor of one's own\n"
