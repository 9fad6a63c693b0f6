"""A run: whose turn it is, what is kept, and how it goes on."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.bench.common import header, pair, task

from biglittle import Pair
from biglittle.bench.records import Header, Log, Record, read_log
from biglittle.bench.runner import Bench, data_hash
from biglittle.bench.systems import Answer, Ours, System
from biglittle.bench.tasks import Example, Task
from biglittle.decoding import Request
from biglittle.errors import ContextError, ParameterError
from biglittle.params import GenerationParams, make_params
from biglittle.policy import parse_policy

PARAMS = make_params(None, {"temperature": 0.0, "max_new_tokens": 6, "seed": 5})


@dataclass
class Listening:
    """Plain decoding under a name, with its last token changed if it is asked to lie."""

    of: Pair
    name: str
    lies: bool = False
    lossless: bool = True
    heard: list[tuple[int, ...]] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)

    def answer(self, request: Request, params: GenerationParams) -> Answer:
        self.heard.append(request.prompt.tokens)
        self.seeds.append(params.seed)
        made = Ours(self.of, parse_policy("none")).answer(request, params)
        if not self.lies:
            return made
        return replace(made, tokens=(*made.tokens[:-1], (made.tokens[-1] + 1) % 300))


def bench(
    path: Path, systems: Sequence[System], tasks: Sequence[Task], of: Pair | None = None
) -> Bench:
    found = header({system.name: system.lossless for system in systems})
    return Bench(of or pair(), systems, tasks, PARAMS, Log(path / "results.jsonl", found))


def two(*, lies: bool = False, lossless: bool = True) -> tuple[Listening, Listening]:
    return Listening(pair(), "none"), Listening(pair(), "other", lies, lossless)


def test_tasks_take_turns_and_systems_in_turning_order(tmp_path: Path) -> None:
    systems = [Listening(pair(), name) for name in ("none", "a", "b")]
    run = bench(tmp_path, systems, [task("first", 3), task("second", 1)])
    records = list(run.run())
    assert [(record.task, record.example) for record in records] == [
        (name, example)
        for name, example in (("first", "0"), ("second", "0"), ("first", "1"), ("first", "2"))
        for _ in range(3)
    ]
    assert [record.system for record in records] == [
        *("none", "a", "b"), *("a", "b", "none"), *("b", "none", "a"), *("none", "a", "b"),
    ]  # fmt: skip


def test_every_system_is_warmed_up_on_a_prompt_of_its_own(tmp_path: Path) -> None:
    systems = two()
    list(bench(tmp_path, systems, [task(count=3)]).run())
    for system in systems:
        assert len(system.heard) == len(set(system.heard)) == 4
    assert systems[0].heard[0] == systems[1].heard[0]


def test_examples_have_seeds_of_their_own_that_systems_share(tmp_path: Path) -> None:
    systems = two()
    list(bench(tmp_path, systems, [task(count=3)]).run())
    asked = [dict(zip(s.heard[1:], s.seeds[1:], strict=True)) for s in systems]
    assert asked[0] == asked[1]
    assert len(set(asked[0].values())) == 3


def test_a_prompt_that_was_asked_before_is_left_out(tmp_path: Path) -> None:
    again = replace(task("words", 2), name="again")
    run = bench(tmp_path, two(), [task("words", 3), again])
    assert run.repeated == 2
    assert {step.task.name for step in run.steps} == {"words"}


def test_a_conversation_goes_on_from_the_systems_own_answers(tmp_path: Path) -> None:
    turns = ("What is big?", "And what is little?")
    systems = two()
    run = bench(tmp_path, systems, [Task("chat", (Example("0", turns, chat=True),))])
    records = list(run.run())
    assert [len(record.answers) for record in records] == [2, 2]
    said = records[0].answers[0].text
    messages = [
        {"role": "user", "content": turns[0]},
        {"role": "assistant", "content": said},
        {"role": "user", "content": turns[1]},
    ]
    expected = pair().requests(messages)[0].prompt.tokens
    assert systems[0].heard[-1] == expected


def test_completions_and_models_without_a_template_get_the_text(tmp_path: Path) -> None:
    of = pair("draft", "bare")
    system = Listening(of, "none")
    list(bench(tmp_path, [system], [task(count=2)], of).run())
    texts = [of.tokenizer.decode(tokens) for tokens in system.heard[1:]]
    assert texts == ["words: the big model, 0", "words: the big model, 1"]


def test_conversations_need_a_template(tmp_path: Path) -> None:
    of = pair("draft", "bare")
    chat = Task("chat", (Example("q7", ("One?", "Two?"), chat=True),))
    with pytest.raises(ParameterError, match=r"^chat, example q7: it has 2 turns, and .*template"):
        bench(tmp_path, [Listening(of, "none")], [chat], of)


def test_a_prompt_that_does_not_fit_is_named_before_anything_runs(tmp_path: Path) -> None:
    long = Task("long", (Example("big one", ("word " * 400,), chat=False),))
    systems = two()
    with pytest.raises(ContextError, match=r"^long, example big one: the prompt has \d+ tokens"):
        bench(tmp_path, systems, [task(), long])
    assert systems[0].heard == []
    assert not (tmp_path / "results.jsonl").exists()


# The file.


def test_what_was_measured_is_read_back(tmp_path: Path) -> None:
    run = bench(tmp_path, two(), [task(count=2)])
    records = list(run.run())
    found = read_log(tmp_path / "results.jsonl")
    assert found.records == tuple(records)
    assert found.header == header({"none": True, "other": True})
    assert found.differences == ()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    first = list(itertools.islice(bench(tmp_path, two(), [task()]).run(), 3))
    path = tmp_path / "results.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"kind": "record", "task": "wor')  # killed while it wrote
    run = bench(tmp_path, two(), [task()])
    assert len(run.steps) == 6
    rest = list(run.run())
    assert len(rest) == 3
    keys = [record.key for record in (*first, *rest)]
    assert keys == [step.key for step in run.steps]
    assert len(read_log(path).records) == 6
    assert path.read_text().startswith(whole)
    assert run.left == []
    assert list(run.run()) == []


def refuse(path: Path, found: Header) -> str:
    with pytest.raises(ParameterError) as refused:
        Log(path / "results.jsonl", found)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_a_run_with_other_settings_does_not_go_on(tmp_path: Path) -> None:
    log = Log(tmp_path / "results.jsonl", header())
    log.add(Record("words", "0", "none", (), "asked"))
    assert "settings target='big', and this one has 'huge'" in refuse(
        tmp_path, header(target="huge")
    )
    changed = replace(header(), data={"words": "9999"})
    assert "data words='1234'" in refuse(tmp_path, changed)
    changed = replace(header(), hardware={"processor": "abacus", "cores": 4})
    assert "hardware cores=2, and this one has 4" in refuse(tmp_path, changed)
    changed = replace(header(), versions={"biglittle": "0"})
    assert "versions torch='1', and this one has None" in refuse(tmp_path, changed)
    again = Log(tmp_path / "results.jsonl", replace(header(), command="biglittle bench again"))
    assert list(again.records) == [("words", "0", "none")]


def test_a_file_that_is_no_runs(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("precious\n")
    assert "results.jsonl:1 is not JSON" in refuse(tmp_path, header())
    path.write_text('{"prompt": "Hello"}\n')
    assert "is not the results file of a bench" in refuse(tmp_path, header())
    path.write_text("[1]\n")
    assert "is not an object" in refuse(tmp_path, header())
    path.write_text('{"format": "biglittle bench", "version": 99}\n')
    assert "is of version 99" in refuse(tmp_path, header())
    path.unlink()
    Log(path, header()).add(Record("words", "0", "none", (), "asked"))
    path.write_text(path.read_text() + '{"kind": "record", "task": "words"}\n')
    assert "is damaged" in refuse(tmp_path, header())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ParameterError, match="cannot write .*file/results.jsonl: "):
        Log(tmp_path / "file" / "results.jsonl", header())


def test_the_hash_of_data() -> None:
    assert data_hash(task()) == data_hash(task())
    assert data_hash(task()) != data_hash(task(count=2))
    assert data_hash(task()) != data_hash(task(stop=("\n",)))


# Exactness.


def test_outputs_that_are_the_same_need_no_explaining(tmp_path: Path) -> None:
    run = bench(tmp_path, two(), [task()])
    list(run.run())
    assert run.unexplained == []


def test_a_difference_is_explained_once_and_kept(tmp_path: Path) -> None:
    run = bench(tmp_path, two(lies=True), [task(count=2)])
    list(run.run())
    assert [step.key for step in run.unexplained] == [("words", e, "other") for e in "01"]
    found = [run.explain(step) for step in run.unexplained]
    assert run.unexplained == []
    assert read_log(tmp_path / "results.jsonl").differences == tuple(found)
    plain = run.log.records["words", "0", "none"].tokens[0]
    assert (found[0].turn, found[0].position) == (0, len(plain) - 1)
    assert found[0].tokens[0] == pair().tokenizer.decode([plain[-1]])
    assert found[0].margin == abs(found[0].logits[0] - found[0].logits[1]) > 0
    assert math.isfinite(found[0].margin)
    assert not found[0].near_tie  # float32, and logits far apart


def test_lossy_systems_and_samples_may_differ(tmp_path: Path) -> None:
    run = bench(tmp_path, two(lies=True, lossless=False), [task()])
    list(run.run())
    assert run.unexplained == []
    run = bench(tmp_path / "sampled", two(lies=True), [task()])
    run.params = dataclasses.replace(PARAMS, temperature=1.0)
    list(run.run())
    assert run.unexplained == []
