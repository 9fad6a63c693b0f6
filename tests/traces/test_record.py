"""Trace files: written as they come, gone on with, and refused when they are something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models import build
from tests.traces.conftest import PROMPTS

from biglittle import BiglittleError, Pair, ParameterError
from biglittle.traces import Traces, read_traces, record
from biglittle.traces.file import Writer

NEW = 10


def arrays(traces: Traces) -> list[Any]:
    return [
        array
        for trace in traces
        for part in (trace.chain, *trace.branches.values())
        for array in (part.tokens, part.confidence, part.top, part.entropy)
    ]


def same(first: Traces, second: Traces) -> bool:
    return (
        first.header == second.header
        and [(t.key, t.prompt, t.tokens, t.limit) for t in first]
        == [(t.key, t.prompt, t.tokens, t.limit) for t in second]
        and all(map(np.array_equal, arrays(first), arrays(second)))
    )


def test_what_is_recorded_is_read_back(pair: Pair, tmp_path: Path) -> None:
    recorded = record(pair, PROMPTS, tmp_path / "t.jsonl", max_new_tokens=NEW)
    assert same(recorded, read_traces(tmp_path / "t.jsonl"))
    recorded.check(pair)
    assert [list(trace.prompt) for trace in recorded][-1] == (
        [0] if pair.draft_name.startswith("T5") else PROMPTS[-1]
    )


def test_confidence_is_the_largest_probability(near: Pair, tmp_path: Path) -> None:
    for trace in record(near, PROMPTS, tmp_path / "t", max_new_tokens=NEW, top=3):
        chain = trace.chain
        assert chain.top.shape == (NEW - 1, 3)
        assert np.allclose(chain.top[:, 0], chain.confidence, rtol=1e-5)
        assert (chain.top[:, 0] >= chain.top[:, 1]).all()
        assert (chain.entropy > 0).all()
        assert all(len(branch) < 20 for branch in trace.branches.values())
        differs = chain.tokens != np.array(trace.tokens[1:])
        assert set(trace.branches) == set(np.flatnonzero(differs) + 1)


@pytest.mark.parametrize("cut", [1, 7, 400, -1])
def test_a_killed_run_goes_on(near: Pair, tmp_path: Path, cut: int) -> None:
    """The last line is cut somewhere; what was whole is kept and not computed again."""
    whole = record(near, PROMPTS, tmp_path / "whole", max_new_tokens=NEW)
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + len(PROMPTS)
    killed = tmp_path / "killed"
    killed.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
    assert len(read_traces(killed)) == len(PROMPTS) - 1
    asked: list[tuple[int, int]] = []
    found = record(
        near, PROMPTS, killed, max_new_tokens=NEW, progress=lambda *done: asked.append(done)
    )
    assert same(found, whole)
    assert killed.read_bytes() == (tmp_path / "whole").read_bytes()
    assert asked == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_prompts_may_be_added(near: Pair, tmp_path: Path) -> None:
    path = tmp_path / "t"
    record(near, PROMPTS[:1], path, max_new_tokens=NEW)
    assert len(record(near, PROMPTS, path, max_new_tokens=NEW)) == len(PROMPTS)
    assert len(record(near, PROMPTS[1:2], path, max_new_tokens=NEW)) == 1
    assert len(read_traces(path)) == len(PROMPTS)


def test_other_settings_are_refused(near: Pair, tmp_path: Path) -> None:
    path = tmp_path / "t"
    record(near, PROMPTS[:1], path, max_new_tokens=NEW)
    before = path.read_bytes()
    for changes in ({"cap": 3}, {"top": 2}, {"repetition_penalty": 1.2}):
        options: dict[str, Any] = {"max_new_tokens": NEW, **changes}
        with pytest.raises(ParameterError, match="was recorded with .*give another name"):
            record(near, PROMPTS[:1], path, **options)
    assert path.read_bytes() == before


def test_another_pairs_trace_is_refused(near: Pair, tmp_path: Path) -> None:
    traces = record(near, PROMPTS[:1], tmp_path / "t", max_new_tokens=NEW)
    other = Pair(near.target, "prompt-lookup")
    with pytest.raises(ParameterError, match="of another draft"):
        traces.check(other)
    with pytest.raises(ParameterError, match="was recorded with"):
        record(other, PROMPTS[:1], tmp_path / "t", max_new_tokens=NEW)


HEADER = {"format": "biglittle-traces", "version": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "no trace file"),
        (b"no newline", "no trace file"),
        (b"\x00\xff\x00\n", "no trace file"),
        (b"[1, 2]\n", "no trace file"),
        (b'{"format": "another"}\n', "no trace file"),
        (b'{"format": "biglittle-traces", "version": 99}\n', "version 99"),
        (json.dumps(HEADER).encode() + b"\n", "line 1: damaged"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ParameterError, match=message):
        read_traces(path)


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b"[]\n", b"{\n", b'{"key": 1}\n', b"\n", ("branches", []), ("chain", ["AAAA"] * 4)],
)
def test_damaged_lines(near: Pair, tmp_path: Path, line: Any) -> None:
    path = tmp_path / "t"
    record(near, PROMPTS[:1], path, max_new_tokens=NEW)
    if not isinstance(line, bytes):  # a whole line with one thing wrong
        good = json.loads(path.read_text().splitlines()[1])
        line = json.dumps({**good, line[0]: line[1]}).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line)
    with pytest.raises(ParameterError, match="line 3: damaged"):
        read_traces(path)


def test_a_full_disk(near: Pair, tmp_path: Path) -> None:
    """Linux has a file that is always full."""
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(ParameterError, match="full: cannot be written .No space left"):
        record(near, PROMPTS[:1], full, max_new_tokens=NEW)
    path = tmp_path / "t.jsonl"
    known = record(near, PROMPTS[:1], path, max_new_tokens=NEW)
    writer = Writer(path, known.header)
    path.rename(tmp_path / "kept")
    path.symlink_to("/dev/full")
    with pytest.raises(BiglittleError, match="No space left .*the same call goes on"):
        writer.add(known.traces[0])


def test_a_file_with_something_else_in_it_is_left_alone(near: Pair, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for content in (b"notes", b"notes\n"):
        path.write_bytes(content)
        with pytest.raises(ParameterError, match="no trace file"):
            record(near, PROMPTS[:1], path, max_new_tokens=NEW)
        assert path.read_bytes() == content
    with pytest.raises(ParameterError, match="cannot be written"):
        record(near, PROMPTS[:1], path / "t", max_new_tokens=NEW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.7}, "greedy"),
        ({"stop": "x"}, "no stop strings"),
        ({"cap": 0}, "cap=0"),
        ({"top": True}, "top=True"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_bad_options(near: Pair, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        record(near, PROMPTS, tmp_path / "t", **options)
    assert not (tmp_path / "t").exists()


def test_a_pair_without_a_draft(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="needs a draft"):
        record(Pair(build("llama")), PROMPTS, tmp_path / "t")


def test_what_a_draft_cannot_read(tmp_path: Path) -> None:
    """A draft with a short context: it drafts as far as it goes, in a real run and in replay."""
    from biglittle.traces import replay

    target, little = build("llama"), build("llama", seed=5)
    little.config.max_position_embeddings = 14
    pair = Pair(target, little)
    found = replay(record(pair, PROMPTS, tmp_path / "t", max_new_tokens=20), "static:tokens=4")
    for i, prompt in enumerate(PROMPTS):
        real = pair.generate(prompt, policy="static:tokens=4", max_new_tokens=20, trace=True)
        assert found.rounds(i) == [(r.drafted, r.accepted, r.fallback) for r in real.rounds]
    assert (found.drafted[found.start > 14] == 0).all()
