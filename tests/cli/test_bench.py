"""`biglittle bench`, in this process, on tiny models."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import transformers as tf
from tests.cli.conftest import make_tokenizer
from tests.models import T5

if TYPE_CHECKING:
    from tests.cli.conftest import Run
    from typer.testing import Result

QUICK = ("--dtype", "float32", "-m", "8")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("The little model\nThe big model\nA drafter\n")
    return str(path)


@pytest.fixture
def bench(run: Run, folders: dict[str, str], prompts: str, tmp_path: Path) -> Any:
    """Run it on the tiny pair; `out` is a folder's name."""

    def bench(*arguments: str, out: str = "out") -> Result:
        models = ("-t", folders["target"], "-d", folders["draft"])
        asked = () if "--task" in arguments or "--source" in arguments else ("--task", prompts)
        return run("bench", *models, *QUICK, *asked, "--out", str(tmp_path / out), *arguments)

    return bench


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_the_whole_way(bench: Any, tmp_path: Path) -> None:
    result = bench("-p", "dynamic", "-p", "bild:rollback=1", "--peers")
    assert result.exit_code == 0, result.stderr
    systems = [
        "none", "dynamic", "bild:fallback=0.6,rollback=1",
        *(f"transformers {name}" for name in ("plain", "constant", "heuristic", "dynamic")),
        "transformers prompt lookup",
    ]  # fmt: skip
    found = summary(tmp_path / "out")
    assert [row["system"] for row in found["rows"]] == systems
    assert all(row["examples"] == 3 for row in found["rows"])
    assert [row["identical"] for row in found["rows"]] == [1.0, 1.0, None, *[1.0] * 5]
    assert found["header"]["settings"]["max_new_tokens"] == 8
    assert {"oracle.jsonl", "report.html", "results.jsonl", "summary.csv", "summary.json"} == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    lines = result.stdout.splitlines()
    assert lines[0].startswith("prompts, 3 examples")
    assert lines[1].split()[:3] == ["system", "speed-up", "95"]
    assert lines[2].split()[:2] == ["plain", "1.00×"]
    assert "target alone" in lines[-1]
    assert "bild:fallback=0.6,rollback=1 is lossy" in result.stderr
    assert f"the report: {tmp_path / 'out' / 'report.html'}" in result.stderr


def test_the_default_is_the_lossless_policies(bench: Any, tmp_path: Path) -> None:
    result = bench("--limit", "1", "-q")
    assert result.exit_code == 0
    assert result.stderr == ""
    systems = [row["system"] for row in summary(tmp_path / "out")["rows"]]
    assert systems == ["none", "cost-aware", "dynamic", "static", "heuristic"]


def test_the_same_command_goes_on(bench: Any, tmp_path: Path) -> None:
    assert bench("-p", "dynamic").exit_code == 0
    results = tmp_path / "out" / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:3]))
    again = bench("-p", "dynamic")
    assert again.exit_code == 0
    assert "going on: 2 of 6 generations are there already" in again.stderr
    assert len(results.read_text().splitlines()) == len(lines) == 7
    other = bench("-p", "static")
    assert other.exit_code == 2
    assert other.stderr.count("\n") == 1
    assert "its numbers could not be compared; give another folder with --out" in other.stderr


def test_two_runs_side_by_side(bench: Any, run: Run, tmp_path: Path) -> None:
    assert bench("-p", "dynamic", out="a").exit_code == 0
    assert bench("-p", "dynamic", "--limit", "2", "--seed", "1", out="b").exit_code == 0
    files = [str(tmp_path / name / "summary.json") for name in "ab"]
    result = run("bench", "--compare", *files)
    assert result.exit_code == 0
    assert "settings differ: seed is 0 and 1" in result.stderr
    rows = result.stdout.splitlines()[2:]
    assert [row.split()[:3] for row in rows] == [
        ["plain", "prompts", "2"],
        ["dynamic", "prompts", "2"],
    ]
    assert "→" in rows[1]
    assert run("bench", "--compare", files[0], str(tmp_path / "c.json")).exit_code == 2


def test_parallel_text(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "t.de").write_text("Das Modell\nDer Text\n")
    (tmp_path / "t.en").write_text("The model\nThe text\n")
    files = ("--source", str(tmp_path / "t.de"), "--reference", str(tmp_path / "t.en"))
    result = bench(*files, "--raw", "-p", "dynamic", "--template", "In English: {source} =")
    assert result.exit_code == 0, result.stderr
    row = summary(tmp_path / "out")["rows"][0]
    assert "bleu" in row
    assert row["chrf_signature"].startswith("nrefs:1")
    alone = bench(*files[:2])
    assert alone.exit_code == 2
    assert alone.stderr.startswith("error: --source and --reference go together")


def test_a_metric_in_place_of_the_formats_own(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "The little", "reference": "4"}\n')
    assert bench("--task", str(path), "-p", "dynamic", "--metric", "exact_match").exit_code == 0
    assert summary(tmp_path / "out")["rows"][0]["exact_match"] == 0.0
    wrong = bench("--task", str(path), "--metric", "blue")
    assert wrong.exit_code == 2
    assert "blue" in wrong.stderr


def test_programs_run_only_when_asked(bench: Any, tmp_path: Path) -> None:
    problem = {
        "task_id": "HumanEval/0", "prompt": "def one():\n", "entry_point": "one",
        "canonical_solution": "    return 1\n", "test": "def check(f):\n    assert f() == 1\n",
    }  # fmt: skip
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(problem) + "\n")
    result = bench("--task", str(path), "-p", "dynamic")
    assert result.exit_code == 0
    assert "pass@1 is left out: --run-code runs the programs" in result.stderr
    assert "pass@1" not in summary(tmp_path / "out")["rows"][0]
    assert bench("--task", str(path), "-p", "dynamic", "--run-code").exit_code == 0
    assert summary(tmp_path / "out")["rows"][0]["pass@1"] == 0.0


def test_built_in_prompts(run: Run, folders: dict[str, str], tmp_path: Path) -> None:
    models = ("-t", folders["long"], "-d", folders["draft"])
    result = run(
        "bench", *models, *QUICK, "--limit", "1", "-p", "dynamic", "--out", str(tmp_path / "out")
    )
    assert result.exit_code == 0, result.stderr
    tasks = {row["task"] for row in summary(tmp_path / "out")["rows"]}
    assert tasks == {"all", "chat", "code", "summarization", "translation", "extraction"}


def test_models_in_llama_cpp_have_no_peers(
    run: Run, folders: dict[str, str], prompts: str, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    from biglittle.engines.llama_cpp.convert import convert

    files = [tmp_path / f"{name}.gguf" for name in ("target", "draft")]
    for name, file in zip(("target", "draft"), files, strict=True):
        convert(folders[name], file, "f32", check=False)
    models = ("-t", str(files[0]), "-d", str(files[1]), "-m", "8", "--task", prompts)
    result = run("bench", *models, "-p", "dynamic", "--peers", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    assert "no peers: the target runs in llama.cpp" in result.stderr
    rows = summary(tmp_path / "out")["rows"]
    assert [row["system"] for row in rows] == ["none", "dynamic"]
    assert rows[1]["bytes_ratio"] > 0


def refused(result: Result, beginning: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {beginning}"), result.stderr
    assert result.stderr.count("\n") == 1


def test_what_is_wrong_is_said_before_models_are_loaded(
    bench: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr("biglittle.cli.bench.load_pair", load)
    refused(bench("-p", "dynamc"), "unknown policy 'dynamc'")
    refused(bench("--task", "nowhere.txt"), "there is no file 'nowhere.txt'")
    twice = str(tmp_path / "prompts.txt")
    refused(bench("--task", twice, "--task", twice), "two tasks are called 'prompts'")
    refused(run("bench", "-t", "x", "-p", "dynamic"), "policy 'dynamic' needs a draft: give one")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else found(name)
    )
    refused(bench(), "bench needs jinja2: pip install 'biglittle[bench]'")


def test_a_prompt_that_does_not_fit(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("word " * 400)
    refused(bench("--task", str(path), "-p", "dynamic"), "long, example 1: the prompt has")
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_target_alone(run: Run, folders: dict[str, str], prompts: str, tmp_path: Path) -> None:
    out = ("--task", prompts, "--out", str(tmp_path / "out"))
    result = run("bench", "-t", folders["target"], *QUICK, *out)
    assert result.exit_code == 0, result.stderr
    assert [row["system"] for row in summary(tmp_path / "out")["rows"]] == ["none"]


def test_calm_beside_plain_decoding(run: Run, prompts: str, tmp_path: Path) -> None:
    model: Any = tf.T5ForConditionalGeneration(tf.T5Config(**{**T5, "vocab_size": 340}))
    model.save_pretrained(tmp_path / "t5")
    make_tokenizer().save_pretrained(tmp_path / "t5")
    arguments = ("--calm", "1", "--calm", "0,decay=4", "--task", prompts)
    out = tmp_path / "out"
    result = run("bench", "-t", str(tmp_path / "t5"), *QUICK, *arguments, "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert "calm:threshold=1 is lossy" in result.stderr
    rows = {row["system"]: row for row in summary(out)["rows"]}
    assert [*rows] == ["none", "calm:threshold=1", "calm:threshold=0,decay=4"]
    assert rows["none"]["layers"] is None
    assert rows["calm:threshold=1"]["layers"] == 3.0
    assert 1.0 < rows["calm:threshold=0,decay=4"]["layers"] <= 3.0
    assert result.stdout.splitlines()[1].split()[-2:] == ["layers", "output"]
    assert "layers a token" in (out / "report.html").read_text()
    again = run("bench", "-t", str(tmp_path / "t5"), *QUICK, *arguments, "--out", str(out))
    assert "going on: 9 of 9 generations are there already" in again.stderr
    assert again.stdout == result.stdout


def test_where_calm_cannot_run(bench: Any, folders: dict[str, str]) -> None:
    refused(bench("--calm", "0.9"), f"{folders['target']}: CALM runs T5-like models (t5, mt5), and")
    refused(bench("--calm", "2"), "calm: threshold=2.0 must be between 0 and 1")
    refused(bench("--calm", "0.9", "--temperature", "1"), "--calm is for greedy decoding")


def test_as_much_as_there_is_time_for(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=5)
    monkeypatch.setattr("biglittle.cli.bench.monotonic", lambda: next(clock))
    result = bench("-p", "dynamic", "--time", "2s")
    assert result.exit_code == 0, result.stderr
    assert "time is up; 5 generations left: the same command goes on" in result.stderr
    assert "nothing to report" in result.stderr
    assert not (tmp_path / "out" / "summary.json").exists()
    clock = itertools.count()
    result = bench("-p", "dynamic", "--time", "2s")
    assert "time is up; 2 generations left" in result.stderr
    assert [row["examples"] for row in summary(tmp_path / "out")["rows"]] == [2, 2]
    again = bench("-p", "dynamic")
    assert "4 of 6 generations are there already" in again.stderr
    assert [row["examples"] for row in summary(tmp_path / "out")["rows"]] == [3, 3]


def test_a_time_that_is_none(bench: Any, tmp_path: Path) -> None:
    result = bench("--time", "soon")
    assert result.exit_code == 2
    assert "--time soon is no time" in result.stderr
    assert not (tmp_path / "out").exists()
