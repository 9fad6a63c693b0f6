"""What every engine's runner promises: whatever happened to its rows before, logits are those of
a fresh run over the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models import VOCAB, build, encoder_inputs
from tests.tiny_gguf import EXACT, made_up, write_gguf
from torch import Tensor

from biglittle.engines import Prompt, Runner, Saved, llama_cpp, open_model
from biglittle.engines.llama_cpp import LlamaModel, context
from biglittle.engines.transformers import runner, slot_cache

MODELS = {name: build(name) for name in ("llama", "mistral", "t5")}
ENGINES = [*MODELS, "llama.cpp"]
MOST_ROWS, LONGEST = 4, 24
TOLERANCE = {"llama.cpp": 1e-3}


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Storage that grows often, and prompts that are read in pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot_cache, "BLOCK", 8)
        patch.setattr(runner, "CHUNK", 3)
        patch.setattr(context, "FIRST_CELLS", 1)
        patch.setattr(context, "STEP", 8)
        patch.setattr(context, "FIRST_SEQUENCES", 2)
        patch.setattr(context, "OUTPUTS", 1)
        yield


@pytest.fixture(scope="module")
def llama_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "llama.gguf"
    write_gguf(MODELS["llama"], made_up(VOCAB), path)
    return path


@dataclass
class Twin:
    """A runner, and beside it what its rows ought to hold."""

    name: str
    opened: Any
    runner: Runner = field(init=False)
    rows: list[list[int]] = field(default_factory=list)
    encoders: list[dict[str, Tensor] | None] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def __post_init__(self) -> None:
        self.runner = open_model(self.opened).runner()

    def tokens(self, count: int) -> list[int]:
        ids: list[int] = torch.randint(3, VOCAB, (count,), generator=self.random).tolist()
        return ids

    def fresh(self, row: int) -> Tensor:
        """Logits of all positions of a row, from one forward without a cache: [length, vocab]."""
        model: Any = MODELS[architecture(self.name)]
        ids = torch.tensor([self.rows[row]])
        encoder = self.encoders[row]
        inputs = {"input_ids": ids} if encoder is None else {"decoder_input_ids": ids, **encoder}
        logits: Tensor = model(use_cache=False, **inputs).logits[0]
        return logits

    def check(self, row: int, logits: Tensor) -> None:
        """Compare logits [count, vocab] of a row's last positions."""
        expected = self.fresh(row)[len(self.rows[row]) - len(logits) :]
        assert torch.allclose(logits, expected, rtol=0, atol=TOLERANCE.get(self.name, 1e-4))

    # What may happen. `a` and `b` are any numbers.

    def admit(self, a: int, b: int) -> None:
        if len(self.rows) == MOST_ROWS:
            return
        # From time to time, a prompt that begins like a row that was.
        saved = self.saved[b % len(self.saved)] if self.saved and b % 2 else None
        begun = list(saved.tokens[: 1 + b % LONGEST]) if saved else []
        self.rows.append([*begun, *self.tokens(1 + a % 7)])
        self.encoders.append(encoder_inputs(architecture(self.name), 3 + a % 5, seed=b))
        prompt = Prompt(tuple(self.rows[-1]), self.encoders[-1])
        most = 1 + a % 3 if a % 2 else None
        logits = self.runner.admit(prompt, saved, most=most)
        assert 0 <= self.runner.reused <= (saved.shared(prompt.tokens) if saved else 0)
        length = self.runner.lengths[-1]
        assert length == len(prompt.tokens) or most is not None
        rest, self.rows[-1] = self.rows[-1][length:], self.rows[-1][:length]
        self.check(len(self.rows) - 1, logits)
        if rest and b % 3:  # or the row stays as it is
            self.read_on(len(self.rows) - 1, rest)

    def read(self, a: int, b: int) -> None:
        if self.rows:
            self.read_on(a % len(self.rows), self.tokens(1 + b % 7))

    def read_on(self, row: int, tokens: list[int]) -> None:
        self.rows[row] += tokens
        self.check(row, self.runner.read(row, tokens))

    def append(self, a: int, b: int) -> None:
        if not self.rows:
            return
        same = a % 3 == 0  # now and then the same number for all rows, the uniform path
        first = self.rows[: 1 + a % len(self.rows)] if a % 5 == 0 else self.rows
        counts = [1 + b % 4 if same else (b >> (2 * row)) % 5 for row in range(len(first))]
        counts = [min(c, LONGEST + 10 - len(row)) for c, row in zip(counts, first, strict=True)]
        width = max(counts) + (a % 2 if not same else 0)  # padding wider than any row, too
        if not max(counts):
            return
        new = [self.tokens(count) for count in counts]
        block = torch.tensor([ids + self.tokens(width - len(ids)) for ids in new])
        logits = self.runner.forward(block, counts)
        for row, (ids, count) in enumerate(zip(new, counts, strict=True)):
            self.rows[row] += ids
            if count:
                self.check(row, logits[row, :count])

    def rollback(self, a: int, b: int) -> None:
        lengths = [max(1, len(t) - (b >> (2 * r)) % 4) for r, t in enumerate(self.rows)]
        lengths = lengths[: a % 5] if a % 7 == 0 else lengths
        self.runner.truncate([n + (a % 2) * 3 * (r % 2) for r, n in enumerate(lengths)])
        for row, length in enumerate(lengths):
            del self.rows[row][length + (a % 2) * 3 * (row % 2) :]

    def release(self, a: int, b: int) -> None:
        if not self.rows:
            return
        row = a % len(self.rows)
        self.runner.release(row)
        for held in (self.rows, self.encoders):
            last: Any = held.pop()
            if row < len(held):
                held[row] = last

    def fork(self, a: int, b: int) -> None:
        if not self.rows or len(self.rows) == MOST_ROWS:
            return
        row = a % len(self.rows)
        whole = len(self.rows[row])
        length = whole if b % 2 else 1 + b % whole
        assert self.runner.fork(row, length if b % 4 else None) == (length if b % 4 else whole)
        self.rows.append(self.rows[row][: self.runner.lengths[-1]])
        self.encoders.append(self.encoders[row])

    def swap(self, a: int, b: int) -> None:
        if not self.rows:
            return
        a, b = a % len(self.rows), b % len(self.rows)
        self.runner.swap(a, b)
        for held in (self.rows, self.encoders):
            own: Any = held
            own[a], own[b] = own[b], own[a]

    def save(self, a: int, b: int) -> None:
        if not self.rows:
            return
        row = a % len(self.rows)
        saved = self.runner.save(row, self.rows[row])
        if saved is not None:
            assert list(saved.tokens) == self.rows[row]
            self.saved.append(saved)


def architecture(name: str) -> str:
    """The transformers model that says what is right."""
    return "llama" if name == "llama.cpp" else name


EVENTS = st.sampled_from(
    ["admit", "append", "append", "rollback", "release", "fork", "save", "read", "swap"]
)
EVENT = st.tuples(EVENTS, st.integers(0, 255), st.integers(0, 255))


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, llama_file: Path) -> tuple[str, Any]:
    """A model in its engine, by the engine's or the architecture's name."""
    if request.param != "llama.cpp":
        return request.param, MODELS[request.param]
    if not llama_cpp.available():
        pytest.skip("llama-cpp-python is not installed")
    return request.param, LlamaModel(llama_file, EXACT)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENT, min_size=4, max_size=14))
def test_any_history_leaves_logits_as_a_fresh_run(
    opened: tuple[str, Any], events: list[tuple[str, int, int]]
) -> None:
    twin = Twin(*opened)
    with torch.inference_mode():
        twin.admit(3, 0)
        for event, a, b in events:
            getattr(twin, event)(a, b)
            assert twin.runner.lengths == [len(tokens) for tokens in twin.rows]
        twin.append(1, 0b01100111)


def test_the_last_logits_alone(opened: tuple[str, Any]) -> None:
    twin = Twin(*opened)
    with torch.inference_mode():
        for length in (3, 5, 2):
            twin.admit(length, 0)
        for counts in ([2, 2, 2], [3, 1, 2], [1, 0, 2]):
            new = [twin.tokens(count) for count in counts]
            block = torch.tensor([ids + [0] * (max(counts) - len(ids)) for ids in new])
            logits = twin.runner.forward(block, counts, last=True)
            assert logits.shape == (3, 1, twin.runner.vocab)
            for row, ids in enumerate(new):
                twin.rows[row] += ids
                if ids:
                    twin.check(row, logits[row])


def test_what_a_runner_says_of_itself(opened: tuple[str, Any]) -> None:
    found = open_model(opened[1]).runner()
    assert found.vocab == VOCAB
    assert found.lengths == []
    assert found.limits.context is None or found.limits.context > 0
    assert found.limits.rows is None or found.limits.rows > 1
    assert found.stopwatch.seconds == 0
    found.admit(Prompt((3, 4), encoder_inputs(architecture(opened[0]), 3)))
    assert found.stopwatch.seconds > 0


def test_runners_of_one_model_do_not_disturb_each_other(opened: tuple[str, Any]) -> None:
    twins = [Twin(*opened) for _ in range(3)]
    with torch.inference_mode():
        for number, twin in enumerate(twins):
            twin.admit(3 + number, number)
        for twin in twins:
            twin.append(0, 3)
