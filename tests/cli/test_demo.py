from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import biglittle
from biglittle.audit import Difference
from biglittle.cli.demo import POLICIES, PROMPTS

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def rows(output: str) -> dict[str, list[str]]:
    """The table's lines by their first column."""
    names = ["the target alone", *POLICIES]
    found = {}
    for line in output.splitlines():
        for name in names:
            if re.match(rf"{re.escape(name)} +[\d.]+ ", line):
                found[name] = line.removeprefix(name).split()
    return found


@pytest.fixture
def models(folders: dict[str, str]) -> list[str]:
    return ["-t", folders["target"], "-d", folders["draft"], "-m", "10"]


def test_texts_and_table(run: Run, folders: dict[str, str], models: list[str]) -> None:
    done = run("demo", *models)
    assert done.exit_code == 0
    alone = biglittle.load(folders["target"])
    spent = []
    for prompt in PROMPTS:
        chat = [{"role": "user", "content": prompt}]
        answer = alone.generate(chat, max_new_tokens=10, temperature=0.0)
        spent.append(answer.stats)
        assert f"▌ {prompt}\n{answer.text}\n→ cost-aware: the same text\n" in done.stdout
    table = rows(done.stdout)
    assert list(table) == ["the target alone", *POLICIES]
    passes = str(sum(stats.target_passes for stats in spent))
    assert table["the target alone"][1:] == ["1.00", "–", passes, "0", "–"]
    assert table["cost-aware"][-3:] == ["3", "of", "3"]
    words = " ".join(done.stdout.split())
    assert (
        "Compared with the target alone, cost-aware wrote the same text for 3 of 3 prompts" in words
    )
    for part in (folders["target"], "float32 on cpu, 1 thread", "torch 2", "transformers 5"):
        assert part in words


def test_a_text_that_differs_is_shown(run: Run, folders: dict[str, str]) -> None:
    """With fallback 0 and rollback ∞ BiLD writes what the draft does."""
    policy = "bild:fallback=0,rollback=1e9"
    options = ["--prompt", "The little", "-p", policy, "-m", "10"]
    done = run("demo", "-t", folders["target"], "-d", folders["draft"], *options)
    chat = [{"role": "user", "content": "The little"}]
    pair = biglittle.load(folders["target"], folders["draft"])
    lossy = pair.generate(chat, policy=policy, max_new_tokens=10)
    assert re.search(r"→ bild:\S+: another text from token \d+ of 10 on\n", done.stdout)
    assert f"\n{lossy.text}\n" in done.stdout
    assert "wrote the same text for 0 of 1 prompt " in " ".join(done.stdout.split())


def test_a_lossless_policy_that_differs_is_looked_into(
    run: Run, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding is played by a processor, which no audit takes for rounding."""
    stream = biglittle.Pair.stream

    def rounded(self: Any, prompt: Any, *, policy: Any = None, **options: Any) -> Any:
        def flip(ids: Any, scores: Any) -> Any:
            best = scores.argmax(-1)
            if ids.shape[1] == start + 3:  # the fourth token becomes the second choice
                scores[0, best] = float("-inf")
            return scores

        start = len(self.requests(prompt)[0].prompt.tokens)
        extra: Any = {"logits_processors": [flip]} if policy == "dynamic" else {}
        return stream(self, prompt, policy=policy, **options, **extra)

    monkeypatch.setattr(biglittle.Pair, "stream", rounded)
    done = run("demo", *models, "--prompt", "The little", "-p", "dynamic")
    verdict = "→ dynamic: another text from token 4 of 10 on: "
    assert f"{verdict}rounding does not explain it; please report this\n" in done.stdout
    monkeypatch.setattr(Difference, "near_tie", True)
    done = run("demo", *models, "--prompt", "The little", "-p", "dynamic")
    assert f"{verdict}a near-tie of two tokens, " in done.stdout


def test_policies_prompts_and_target_alone_once(run: Run, models: list[str]) -> None:
    done = run("demo", *models, "-p", "none", "-p", "heuristic", "--prompt", "A", "--prompt", "B")
    assert done.stdout.count("→ heuristic:") == 2
    assert "→ none" not in done.stdout
    assert "▌ A\n" in done.stdout
    progress = [line.split(":")[0] for line in done.stderr.splitlines()]
    assert progress == ["none", "heuristic", "heuristic", "none"]  # another one first each time


def test_a_second_draft_is_compared(run: Run, folders: dict[str, str], models: list[str]) -> None:
    """One that is the target's own copy is always accepted."""
    second = ["--second-draft", folders["target"], "-p", "dynamic", "--prompt", "The little"]
    done = run("demo", *models, *second)
    assert done.exit_code == 0
    label = f"dynamic, {Path(folders['target']).name}"
    assert f"→ {label}: the same text\n" in done.stdout
    (row,) = re.findall(rf"^{label} +(.*)$", done.stdout, re.MULTILINE)
    assert row.split()[2:4] == ["100", "%"]
    words = " ".join(done.stdout.split())
    assert f"with {folders['draft']} and {folders['target']}, float32" in words
    progress = [line.split(":")[0] for line in done.stderr.splitlines()]
    assert progress == ["none", "dynamic", label]


def test_a_second_draft_that_is_no_model(run: Run, models: list[str]) -> None:
    asked = ["--dtype", "float32", "-p", "dynamic", "--prompt", "A"]
    done = run("demo", *models, "--second-draft", "prompt-lookup", *asked)
    assert done.exit_code == 0
    assert "→ dynamic, prompt-lookup: the same text\n" in done.stdout


def test_a_second_draft_that_is_not_there(run: Run, models: list[str]) -> None:
    done = run("demo", *models, "--second-draft", "./nowhere")
    assert done.exit_code == 2
    assert "./nowhere" in done.stderr
    assert "loading" not in done.stderr
