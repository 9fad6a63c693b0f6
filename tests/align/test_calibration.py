"""What the target answers: its own greedy text, kept as it comes, gone on with after a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import biglittle
from biglittle import Pair, ParameterError
from biglittle.align import Answer, Calibration
from biglittle.bench.tasks import Example, Task

TEXTS = ["The little", "A drafter proposes", "def add", "the big model", "every byte"]


def task(*turns: Sequence[str], chat: bool = True, stop: tuple[str, ...] = ()) -> Task:
    examples = [Example(str(i), tuple(texts), chat) for i, texts in enumerate(turns)]
    return Task("own", tuple(examples), stop=stop)


ONE_TURN = task(*[[text] for text in TEXTS])


@pytest.fixture(scope="module")
def pair(folders: dict[str, str]) -> Pair:
    return biglittle.load(folders["target"], folders["draft"])


def calibrate(
    pair: Pair, tasks: Sequence[Task], path: Path, *, new: int = 8, rows: int = 3
) -> list[Answer]:
    return Calibration(pair, tasks, max_new_tokens=new, rows=rows).run(path)


@pytest.mark.parametrize("draft", ["draft", None])
@pytest.mark.parametrize(
    "rows", [1, 3]
)  # of 5 texts, the first tries speculation, and goes without
def test_answers_are_the_targets_own(
    folders: dict[str, str], tmp_path: Path, draft: str | None, rows: int
) -> None:
    little = None if draft is None else folders[draft]
    policy = None if draft is None else "static:tokens=3"
    pair = biglittle.load(folders["target"], little, policy=policy)
    found = calibrate(pair, [ONE_TURN], tmp_path / "a.jsonl", rows=rows)
    assert [answer.example for answer in found] == ["0", "1", "2", "3", "4"]
    for answer, text in zip(found, TEXTS, strict=True):
        asked = [{"role": "user", "content": text}]
        plain = pair.generate(asked, policy="none", temperature=0.0, max_new_tokens=8)
        assert answer.sample.output == plain.token_ids
        assert answer.text == plain.text
        assert pair.tokenizer.decode(answer.sample.prompt) == f"<|user|>{text}<|end|><|assistant|>"


def test_a_conversation_goes_on_from_the_targets_answers(pair: Pair, tmp_path: Path) -> None:
    tasks = [task(["The little", "and then", "at last"], ["A drafter"])]
    found = calibrate(pair, tasks, tmp_path / "a.jsonl")
    assert [(answer.example, answer.turn) for answer in found] == [
        ("0", 0),
        ("0", 1),
        ("0", 2),
        ("1", 0),
    ]
    said = pair.tokenizer.decode(found[2].sample.prompt)
    for part in ("The little", found[0].text, "and then", found[1].text, "at last"):
        assert part in said


def test_text_without_a_template_is_gone_on_with(pair: Pair, tmp_path: Path) -> None:
    found = calibrate(pair, [task(["def add"], chat=False)], tmp_path / "a.jsonl")
    assert pair.tokenizer.decode(found[0].sample.prompt) == "def add"


def test_what_is_asked_twice_is_answered_once(pair: Pair, tmp_path: Path) -> None:
    other = Task("other", ONE_TURN.examples[:2])
    assert len(calibrate(pair, [ONE_TURN, other], tmp_path / "a.jsonl")) == len(TEXTS)


def test_a_text_that_ends_an_answer(pair: Pair, tmp_path: Path) -> None:
    whole = calibrate(pair, [ONE_TURN], tmp_path / "a.jsonl")[0]
    end = pair.tokenizer.decode(whole.sample.output[2:3])
    stopped = task(["The little"], stop=(end,))
    cut = calibrate(pair, [stopped], tmp_path / "b.jsonl")[0]
    assert len(cut.sample.output) <= 3
    assert cut.sample.output == whole.sample.output[: len(cut.sample.output)]


def test_going_on_after_a_kill(pair: Pair, tmp_path: Path) -> None:
    tasks = [task(["The little", "and then"], *[[text] for text in TEXTS[1:]])]
    wanted = calibrate(pair, tasks, tmp_path / "whole.jsonl")
    path = tmp_path / "part.jsonl"

    def kill(done: int, total: int, tokens: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    calibration = Calibration(pair, tasks, max_new_tokens=8, rows=2)
    with pytest.raises(KeyboardInterrupt):
        calibration.run(path, kill)
    path.write_bytes(path.read_bytes() + b'{"key":"unfin')
    seen: list[tuple[int, int, int]] = []
    found = Calibration(pair, tasks, max_new_tokens=8, rows=2).run(
        path, lambda *at: seen.append(at)
    )
    assert found == wanted
    assert seen[0] == (3, 6, 0)
    assert seen[-1][:2] == (6, 6)
    assert len(path.read_text().splitlines()) == 7


def test_a_shared_file_counts_what_is_asked(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    calibrate(pair, [task(*[[text] for text in TEXTS])], path)
    seen: list[tuple[int, int, int]] = []
    few = Calibration(pair, [task([TEXTS[0]], ["A drafter"])], max_new_tokens=8)
    few.run(path, lambda *at: seen.append(at))
    assert [at[:2] for at in seen] == [(1, 2), (2, 2)]


def test_what_is_too_long_is_left_out(pair: Pair, tmp_path: Path) -> None:
    long = "The little model writes. " * 60
    tasks = [task(["The little"], [long], ["A drafter", long])]
    calibration = Calibration(pair, tasks, max_new_tokens=8)
    assert calibration.too_long == 1
    assert len(calibration.run(tmp_path / "a.jsonl")) == 2
    assert calibration.too_long == 2  # the second conversation, after its first turn
    with pytest.raises(ParameterError, match="no prompt fits"):
        Calibration(pair, [task([long])])


def test_what_is_refused(pair: Pair, folders: dict[str, str], tmp_path: Path) -> None:
    lossy = biglittle.load(folders["target"], folders["draft"], policy="bild")
    with pytest.raises(ParameterError, match="bild.* is lossy"):
        Calibration(lossy, [ONE_TURN])
    path = tmp_path / "a.jsonl"
    calibrate(pair, [ONE_TURN], path)
    with pytest.raises(ParameterError, match="max_new_tokens 8, and now it is 9"):
        calibrate(pair, [ONE_TURN], path, new=9)
    with pytest.raises(ParameterError, match="target"):
        calibrate(biglittle.load(folders["foreign"]), [ONE_TURN], path)
    retrained = biglittle.load(folders["target"])
    with torch.no_grad():
        next(retrained.target.parameters()).mul_(1.01)
    with pytest.raises(ParameterError, match="was written with target weights"):
        calibrate(retrained, [ONE_TURN], path)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"format": "something"}) + "\n")
    with pytest.raises(ParameterError, match="is no file of answers"):
        calibrate(pair, [ONE_TURN], other)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{broken", *lines[2:]]) + "\n")
    with pytest.raises(ParameterError, match="a.jsonl:2 is damaged"):
        calibrate(pair, [ONE_TURN], path)


def test_a_full_disk_loses_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = calibrate(pair, [ONE_TURN], tmp_path / "whole.jsonl")
    path, opened, left = tmp_path / "part.jsonl", Path.open, [4]

    def full(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        left[0] -= mode == "ab"
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return opened(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ParameterError, match=r"part.jsonl cannot be written \(No space left"):
        calibrate(pair, [ONE_TURN], path)
    left[0] = 2
    assert len(path.read_text().splitlines()) == 4
    assert calibrate(pair, [ONE_TURN], path) == wanted
