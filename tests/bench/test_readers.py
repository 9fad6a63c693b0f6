"""Every format is read as its authors mean it, and bad input is refused by file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from benchmarks.workloads import DATA

from biglittle import BiglittleError, LoadError, ParameterError
from biglittle.bench.metrics import score
from biglittle.bench.readers import read_tasks
from biglittle.bench.tasks import CodeTests, Example, Task

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the data folder")
needs_packages = pytest.mark.skipif(
    find_spec("sacrebleu") is None or find_spec("rouge_score") is None,
    reason="needs biglittle[bench]",
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file: text as it is, rows as JSON lines; compressed where its name says so."""

    def write(name: str, *content: Any) -> Path:
        lines = [part if isinstance(part, str) else json.dumps(part) for part in content]
        data = "".join(f"{line}\n" for line in lines).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def only(tasks: tuple[Task, ...]) -> Task:
    (task,) = tasks
    return task


# Plain text.


@pytest.mark.parametrize("name", ["my.prompts.txt", "my.txt.gz", "my"])
def test_text_is_a_prompt_a_line(write: Write, name: str) -> None:
    task = only(read_tasks(write(name, "one", "", "  two ", "{three}")))
    assert task.name == "my"
    assert [(e.id, e.turns) for e in task.examples] == [
        ("1", ("one",)),
        ("3", ("  two ",)),
        ("4", ("{three}",)),
    ]
    assert all(e.chat for e in task.examples)
    assert (task.metrics, task.stop) == ((), ())


def test_text_without_a_chat_template(write: Write) -> None:
    assert not only(read_tasks(write("a.txt", "one"), chat=False)).examples[0].chat


def test_windows_line_ends_and_byte_order_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one\r\ntwo\u2028too\r\n".encode("utf-8-sig"))
    assert [e.turns[0] for e in only(read_tasks(path)).examples] == ["one", "two\u2028too"]


# JSON lines.


def test_jsonl(write: Write) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "bye"},
    ]
    path = write(
        "mine.jsonl",
        {"prompt": "p", "reference": "r", "other": [1]},
        "",
        {"id": 7, "turns": ["a", "b"], "references": ["r", "s"]},
        {"id": "x", "messages": messages, "reference": ["r", "s"], "prompt": None},
    )
    assert only(read_tasks(path, metrics=["exact_match"])) == Task(
        "mine",
        (
            Example("1", ("p",), True, ("r",)),
            Example("7", ("a", "b"), True, ("r", "s")),
            Example("x", ("hi", "bye"), True, ("r", "s")),
        ),
        ("exact_match",),
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "is not JSON ("),
        ('["a"]', 'is ["a"], expected an object a line'),
        ({}, "has no 'prompt', expected a text"),
        ({"prompt": " "}, "'prompt' is \" \", expected a text that is not empty"),
        ({"prompt": 3}, "'prompt' is 3, expected a text"),
        ({"prompt": "a", "turns": ["b"]}, "has 'prompt' and 'turns'; leave one out"),
        ({"turns": []}, "'turns' is [], expected a list of texts"),
        ({"turns": "ab"}, "'turns' is \"ab\", expected a list of texts"),
        ({"turns": ["a", ""]}, '\'turns\' is ["a", ""], expected a list of texts'),
        ({"messages": "a"}, "'messages' is \"a\", expected a list like [{"),
        ({"messages": []}, "'messages' is [], expected a list like [{"),
        ({"messages": [{"role": "user"}]}, "a message has no 'content', expected a text"),
        (
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
            "has a 'system' message, but only a user's turns are sent",
        ),
        ({"prompt": "a", "id": [1]}, "'id' is [1], expected a text or a whole number"),
        ({"prompt": "a", "id": True}, "'id' is true, expected a text or a whole number"),
        ({"prompt": "a", "reference": 1}, "'reference' is 1, expected a text"),
        ({"prompt": "a", "references": "b"}, "'references' is \"b\", expected a list of texts"),
        ({"prompt": "a", "reference": "b", "references": ["c"]}, "leave one out"),
        ('{"prompt": "\\ud800"}', "is not valid Unicode text"),
    ],
)
def test_a_bad_line_is_named(write: Write, row: Any, message: str) -> None:
    path = write("mine.jsonl", {"prompt": "good"}, "", row)
    assert message in refused(path, f"{path}:3")


def refused(spec: Any, start: str = "", **options: Any) -> str:
    """The message of an error, in one line."""
    with pytest.raises(ParameterError) as caught:
        read_tasks(spec, **options)
    text = str(caught.value)
    assert text.startswith(start)
    assert "\n" not in text
    return text


def test_turns_need_a_chat_model(write: Write) -> None:
    path = write("mine.jsonl", {"turns": ["a", "b"]})
    assert (
        refused(path, chat=False) == f"{path}:1 has 2 turns, which need a chat model; expected one"
    )


def test_the_same_id_twice(write: Write) -> None:
    path = write("mine.jsonl", {"id": 2, "prompt": "a"}, {"prompt": "b"})
    assert "task 'mine' has 2 examples with id '2'" in refused(path)


# Spec-Bench.

QUESTIONS = (
    {"question_id": 81, "category": "writing", "turns": ["a", "b"]},
    {"question_id": 161, "category": "translation", "turns": ["t"], "reference": ["r"]},
    {"question_id": 82, "category": "math", "turns": ["c", "d"], "reference": ["one", "two"]},
    {"question_id": 241, "category": "summarization", "turns": ["s"], "reference": ["r"]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["m"], "reference": ["#### 3"]},
    {"question_id": 402, "category": "math_reasoning", "turns": ["n"], "reference": ["#### 4"]},
    {"question_id": 481, "category": "rag", "turns": ["g"], "reference": [["x", "y"]]},
    {"question_id": 321, "category": "qa", "turns": ["q"]},
)


@needs_packages
def test_spec_bench_is_a_task_a_group(write: Write) -> None:
    tasks = read_tasks(write("question.jsonl", *QUESTIONS))
    assert {task.name: task.metrics for task in tasks} == {
        "chat": (),
        "translation": ("bleu",),
        "summarization": ("rougeL",),
        "math": ("exact_match",),
        "rag": (),
        "qa": (),
    }
    assert tasks[0].name == "chat"
    assert tasks[0].examples == (
        Example("81", ("a", "b"), True),
        Example("82", ("c", "d"), True, ("one",)),
    )
    assert tasks[4].examples == (Example("481", ("g",), True, ("x", "y")),)


@pytest.mark.parametrize("missing", [(161, 241, 401, 402), (161, 241, 401)])
def test_spec_bench_without_all_references_has_no_metrics(
    write: Write, missing: tuple[int, ...]
) -> None:
    rows = [
        {**row, "reference": None} if row["question_id"] in missing else row for row in QUESTIONS
    ]
    assert all(task.metrics == () for task in read_tasks(write("question.jsonl", *rows)))


def test_spec_bench_without_a_chat_template_is_its_first_turns(write: Write) -> None:
    (task,) = read_tasks(write("question.jsonl", QUESTIONS[0]), chat=False)
    assert task.examples == (Example("81", ("a",), False),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turns": [1]}, "'turns' is [1], expected a list of texts"),
        ({"reference": "r"}, "'reference' is \"r\", expected a list"),
        ({"reference": [3]}, "'reference' is [3], expected a list"),
        ({"category": 4}, "'category' is 4, expected a text"),
    ],
)
def test_a_bad_question(write: Write, change: dict[str, Any], message: str) -> None:
    path = write("question.jsonl", QUESTIONS[0], {**QUESTIONS[1], **change})
    assert message in refused(path, f"{path}:2")


@needs_data
@needs_packages
def test_the_real_questions() -> None:
    tasks = read_tasks(DATA / "spec_bench" / "question-dev.jsonl")
    assert {task.name: len(task.examples) for task in tasks} == {
        "chat": 40,
        "translation": 40,
        "summarization": 40,
        "qa": 40,
        "math": 40,
        "rag": 40,
    }
    for task in tasks:
        for metric in task.metrics:
            perfect = {e.id: e.references[0] for e in task.examples}
            assert score(metric, task, perfect).value == pytest.approx(100)


# Parallel text.


@needs_packages
@pytest.mark.parametrize("names", [("test.de", "test.en"), ("test.de.gz", "test.en.gz")])
def test_parallel_text(write: Write, names: tuple[str, str]) -> None:
    source, reference = write(names[0], "Eins.", "Zwei {x}."), write(names[1], "One.", "Two {x}.")
    task = only(read_tasks(source, reference=reference))
    assert task == Task(
        "test",
        (
            Example("1", ("Translate German to English: Eins.",), True, ("One.",), None, "Eins."),
            Example(
                "2",
                ("Translate German to English: Zwei {x}.",),
                True,
                ("Two {x}.",),
                None,
                "Zwei {x}.",
            ),
        ),
        ("bleu", "chrf"),
    )


@needs_packages
@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"chat": False}, "Eins"),
        ({"chat": False, "template": "translate: {source}"}, "translate: Eins"),
        ({"template": "{source} in English, {please}"}, "Eins in English, {please}"),
    ],
)
def test_how_a_line_is_sent(write: Write, options: dict[str, Any], prompt: str) -> None:
    source, reference = write("a.source", "Eins"), write("a.target", "One")
    task = only(read_tasks(source, reference=reference, **options))
    assert task.examples[0].turns == (prompt,)


def test_lines_match_in_number(write: Write) -> None:
    source, reference = write("a.de", "Eins", "Zwei"), write("a.en", "One", "Two", "Three")
    message = refused(source, reference=reference, limit=1)
    assert message.startswith(f"{source} has 2 lines, but {reference} has 3; expected a reference")


@pytest.mark.parametrize("empty", [0, 1])
def test_no_line_is_empty(write: Write, empty: int) -> None:
    lines = [["Eins", "Zwei"], ["One", "Two"]]
    lines[empty][1] = " "
    files = write("a.de", *lines[0]), write("a.en", *lines[1])
    assert refused(files[0], f"{files[empty]}:2 is empty", reference=files[1])


def test_a_language_that_is_not_clear(write: Write) -> None:
    source, reference = write("source.txt", "Eins"), write("a.en", "One")
    message = refused(source, reference=reference)
    assert f"the language of {source} is not clear" in message
    assert "'Translate German to English: {source}'" in message


def test_parallel_text_needs_references(write: Write) -> None:
    assert "give reference=" in refused(write("a.de", "Eins"), format="parallel")


@needs_data
@needs_packages
def test_real_parallel_text() -> None:
    folder = DATA / "m30k"
    files = folder / "test_2016_flickr.de.gz", folder / "test_2016_flickr.en.gz"
    task = only(read_tasks(files[0], reference=files[1]))
    assert (task.name, len(task.examples)) == ("test_2016_flickr", 1000)


# Code.

FUNCTION = {
    "task_id": "HumanEval/0",
    "prompt": 'def one():\n    """One."""\n',
    "entry_point": "one",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
    "canonical_solution": "    return 1\n",
}


def test_human_eval(write: Write) -> None:
    task = only(read_tasks(write("any.jsonl", FUNCTION)))
    tests = CodeTests(FUNCTION["prompt"], f"{FUNCTION['test']}\ncheck(one)\n", "one")
    assert task.name == "humaneval"
    assert task.examples == (Example("HumanEval/0", (FUNCTION["prompt"],), False, tests=tests),)
    assert task.metrics == ("pass@1",)
    assert {"\ndef", "\nclass", "\nif", "\nprint"} < set(task.stop)
    outputs = {"HumanEval/0": "    return 1\n\ndef one():\n    return 2\n"}
    assert score("pass@1", task, outputs, run_code=True).value == 100
    assert score("pass@1", task, {"HumanEval/0": "    return 3"}, run_code=True).value == 0


def test_human_eval_for_a_chat_model(write: Write) -> None:
    task = only(read_tasks(write("any.jsonl", FUNCTION), chat=True))
    (example,) = task.examples
    assert example.chat
    assert f"```python\n{FUNCTION['prompt']}```" in example.turns[0]
    assert task.stop == ()
    answer = "Here:\n```python\ndef helper():\n    return 1\n\ndef one():\n    return helper()\n```"
    assert score("pass@1", task, {"HumanEval/0": answer}, run_code=True).value == 100


def test_human_eval_needs_its_fields(write: Write) -> None:
    path = write("any.jsonl", FUNCTION, {**FUNCTION, "test": None})
    assert refused(path, f"{path}:2: 'test' is null, expected a text")


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_reference_solutions_pass(chat: bool) -> None:
    path = DATA / "human_eval" / "HumanEval-dev.jsonl"
    rows = {row["task_id"]: row for row in map(json.loads, path.read_text().splitlines())}
    task = only(read_tasks(path, chat=chat))
    outputs = {
        name: f"```python\n{row['prompt']}{row['canonical_solution']}\n```"
        if chat
        else f"{row['canonical_solution']}\n\nprint('on it goes')"
        for name, row in rows.items()
    }
    assert len(task.examples) == 82
    judged = score("pass@1", task, outputs, run_code=True)
    assert [e.id for e, ok in zip(task.examples, judged.per_example, strict=True) if not ok] == []


FULL = {
    "task_id": 2,
    "text": "Write a function to add one.",
    "code": "def add(x): return x + 1",
    "test_list": ["assert add(1) == 2", "assert add(N) == 4"],
    "test_setup_code": "N = 3",
    "challenge_test_list": [],
}
SANITIZED = {
    "task_id": 2,
    "prompt": "Write a function to add one.",
    "code": "def add(x): return x + 1",
    "test_list": ["assert add(1) == 2", "assert add(int(math.sqrt(9))) == 4"],
    "test_imports": ["import math"],
    "source_file": "x",
}


@pytest.mark.parametrize("row", [FULL, SANITIZED])
def test_mbpp(write: Write, row: dict[str, Any]) -> None:
    task = only(read_tasks(write("any.jsonl", row)))
    (example,) = task.examples
    assert (task.name, task.metrics, task.stop) == ("mbpp", ("pass@1",), ())
    assert (example.id, example.chat) == ("2", True)
    assert all(text in example.turns[0] for text in ("add one.", *row["test_list"]))
    right, wrong = (f"```python\ndef add(x): return x + {n}\n```" for n in (1, 2))
    assert score("pass@1", task, {"2": right}, run_code=True).value == 100
    assert score("pass@1", task, {"2": wrong}, run_code=True).value == 0


def test_mbpp_as_a_completion(write: Write) -> None:
    task = only(read_tasks(write("any.jsonl", FULL), chat=False))
    (example,) = task.examples
    compile(example.turns[0], "prompt", "exec")  # a docstring
    assert "\nassert" in task.stop
    answer = "def plus(x):\n    return x + 1\n\ndef add(x):\n    return plus(x)\n\nassert False\n"
    assert score("pass@1", task, {"2": answer}, run_code=True).value == 100


# Files, formats and options.


def test_json_without_a_name_that_says_so(write: Write) -> None:
    assert only(read_tasks(write("a.txt", "", {"prompt": "p"}))).examples[0].turns == ("p",)
    assert only(read_tasks(write("b.txt", {"prompt": "p"}), format="text")).examples[0].turns == (
        '{"prompt": "p"}',
    )


def test_limit_is_of_each_task(write: Write) -> None:
    tasks = read_tasks(write("question.jsonl", *QUESTIONS), limit=1, metrics=[])
    assert {task.name: len(task.examples) for task in tasks} == dict.fromkeys(
        ("chat", "translation", "summarization", "math", "rag", "qa"), 1
    )


def test_metrics_in_place_of_the_format_s_own(write: Write) -> None:
    assert only(read_tasks(write("a.jsonl", FUNCTION), metrics=[])).metrics == ()
    message = refused(write("b.txt", "p"), metrics=["exact_match"])
    assert message == "metric 'exact_match' needs references, but example '1' of task 'b' has none"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0 leaves no example"),
        ({"format": "jsnl"}, "format='jsnl' is none of auto, text, jsonl, .*did you mean 'jsonl'"),
        ({"template": "x"}, "template='x' does not say where the text goes"),
        ({"template": "{source}"}, "takes no template"),
        ({"reference": "r", "format": "text"}, "format='text' takes no reference file"),
        ({"metrics": ["bleau"]}, "metric 'bleau' is none of bleu, .*did you mean 'bleu'"),
    ],
)
def test_options_that_cannot_be_used(write: Write, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        read_tasks(write("a.txt", "p"), **options)


@pytest.mark.parametrize("format", ["auto", "jsonl", "spec-bench", "humaneval", "mbpp", "text"])
def test_an_empty_file(write: Write, format: str) -> None:
    path = write("a.jsonl", "", " ")
    assert refused(path, format=format) == f"{path} is empty"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert refused(tmp_path, f"cannot read {tmp_path}: Is a directory")
    missing = tmp_path / "missing.txt"
    assert f"there is no file '{missing}'" in refused(missing)
    assert refused(missing, f"cannot read {missing}: No such file", format="text")
    latin = tmp_path / "latin.txt"
    latin.write_bytes("one\nzwölf\n".encode("latin-1"))
    assert refused(latin, f"{latin}:2 is not UTF-8 text")
    packed = tmp_path / "packed.gz"
    packed.write_bytes(b"plain")
    assert refused(packed, f"cannot decompress {packed}: ")
    packed.write_bytes(gzip.compress(b"one\n" * 1000)[:-20])
    assert refused(packed, f"cannot decompress {packed}: ")
    packed.write_bytes(gzip.compress("zwölf".encode("latin-1")))
    assert refused(packed, f"{packed} is not UTF-8 text")


# The hub.

ROWS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "wmt14": ("wmt/wmt14/de-en/test", [{"translation": {"de": "Eins", "en": "One"}}] * 2),
    "iwslt2017": (
        "IWSLT/iwslt2017/iwslt2017-de-en/test",
        [{"translation": {"de": "Eins", "en": "One"}}],
    ),
    "xsum": (
        "EdinburghNLP/xsum/default/test",
        [{"document": "Long.", "summary": "Short.", "id": "99"}],
    ),
    "cnn_dailymail": (
        "abisee/cnn_dailymail/3.0.0/test",
        [{"article": "Long.", "highlights": "Short.", "id": "ab"}],
    ),
    "mbpp": ("google-research-datasets/mbpp/full/test", [FULL]),
    "mbpp:sanitized": ("google-research-datasets/mbpp/sanitized/test", [SANITIZED]),
    "alpaca": (
        "tatsu-lab/alpaca/default/train",
        [
            {"instruction": "Sort.", "input": "b a", "output": "a b", "text": "…"},
            {"instruction": "Greet.", "input": "", "output": "", "text": "…"},
        ],
    ),
}


@dataclass(frozen=True, slots=True)
class Hub:
    """What stands in the hub's place."""

    folder: Path
    splits: list[str]
    """Those that were asked for."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A folder laid out as the hub's parquet branch, in the hub's place."""
    datasets = pytest.importorskip("datasets")
    load = datasets.load_dataset
    splits: list[str] = []
    for folder, rows in ROWS.values():
        (tmp_path / folder).mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / folder / "0000.parquet"))

    def local(repository: str, *, revision: str, **options: Any) -> Any:
        assert revision == "refs/convert/parquet"
        splits.append(options["split"])
        return load(str(tmp_path / repository), cache_dir=str(tmp_path / "cache"), **options)

    monkeypatch.setattr(datasets, "load_dataset", local)
    monkeypatch.chdir(tmp_path)
    return Hub(tmp_path, splits)


@needs_packages
def test_data_sets_of_the_hub(hub: Hub) -> None:
    turns = {}
    for name in ROWS:
        task = only(read_tasks(name))
        assert task.name == name.partition(":")[0]
        turns[name] = [(e.id, e.turns[0], e.references, e.source) for e in task.examples]
    translate = "Translate German to English: Eins"
    assert turns["wmt14"] == [(n, translate, ("One",), "Eins") for n in "12"]
    assert turns["iwslt2017"] == [("1", translate, ("One",), "Eins")]
    assert turns["xsum"] == [("99", "Summarize: Long.", ("Short.",), "Long.")]
    assert turns["cnn_dailymail"] == [("ab", "Summarize: Long.", ("Short.",), "Long.")]
    assert turns["alpaca"] == [
        ("1", "Sort.\n\nb a", ("a b",), None),
        ("2", "Greet.", (), None),
    ]
    for name, second in (("mbpp", "add(N)"), ("mbpp:sanitized", "add(int(math.sqrt(9)))")):
        ((number, turn, _, _),) = turns[name]
        assert number == "2"
        assert second in turn


@needs_packages
def test_languages_limits_and_templates(hub: Hub) -> None:
    task = only(read_tasks("wmt14:en-de", limit=1))
    assert task.examples == (
        Example("1", ("Translate English to German: One",), True, ("Eins",), None, "One"),
    )
    assert hub.splits == ["test[:1]"]  # no more is read than asked for
    plain = only(read_tasks("wmt14", limit=5, chat=False)).examples
    assert [e.turns for e in plain] == [("Eins",)] * 2
    asked = only(read_tasks("xsum", template="tl;dr of {source}")).examples
    assert asked[0].turns == ("tl;dr of Long.",)
    assert only(read_tasks("xsum")).metrics == ("rougeL",)


def test_what_the_hub_does_not_have(hub: Hub) -> None:
    with pytest.raises(LoadError, match="cannot load sv-en/test of the data set wmt/wmt14"):
        read_tasks("wmt14:sv-en")
    assert "'german' is no pair of languages, expected e.g. 'de-en'" in refused("wmt14:german")


def test_a_row_that_is_not_as_expected(hub: Hub) -> None:
    datasets = pytest.importorskip("datasets")
    folder = hub.folder / "wmt/wmt14/fr-en/test"
    folder.mkdir(parents=True)
    rows = [{"translation": {"fr": "Un", "en": "One"}}, {"translation": {"fr": "", "en": "Two"}}]
    datasets.Dataset.from_list(rows).to_parquet(str(folder / "0000.parquet"))
    assert "wmt/wmt14:2: 'fr' is \"\", expected a text that is not empty" in refused("wmt14:fr-en")


def test_a_data_set_that_is_not_known() -> None:
    message = refused("xsun")
    assert "no data set of that name; data sets are wmt14, iwslt2017, " in message
    assert "did you mean 'xsum'?" in message


def test_the_hub_needs_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("biglittle.bench.readers.hub.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert "pip install 'biglittle[hub]'" in refused("xsum")


def test_a_file_comes_before_a_data_set(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write("xsum", "my own").parent)
    assert only(read_tasks("xsum")).examples[0].turns == ("my own",)


def test_errors_are_the_library_s() -> None:
    with pytest.raises(BiglittleError):
        read_tasks("")
