"""Bad input is one line that names the thing, exit code 2, and no text on standard output."""

from __future__ import annotations

import io
import json
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import transformers as tf
from tests.models import build

from biglittle import pair as pair_module
from biglittle.cli import prompts

if TYPE_CHECKING:
    from tests.cli.conftest import Run

Folders = dict[str, str]


def refused(done: Any, *words: str) -> str:
    """Assert that a run was refused in a line with these words in it."""
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
    assert done.exit_code == 2
    return str(lines[0])


LONG = "x" * 300  # more than a file's name may have

OPTIONS: list[tuple[list[str], list[str]]] = [
    (["-p", "dinamic"], ["dinamic", "did you mean 'dynamic'?"]),
    (["-p", "bild:falback=0.6"], ["falback", "did you mean 'fallback'?"]),
    (["-p", "dynamic:threshold=1.5"], ["threshold", "1.5"]),
    (["-p", "bild:rollback=lots"], ["rollback=lots", "number"]),
    (["-p", "static:tokens=0"], ["tokens", "0"]),
    (["-p", ""], ["policy"]),
    (["-p", f"disco:path={LONG}"], ["disco", "is not there"]),
    (["-t", LONG], ["File name too long", "give a hub id"]),
    (["-d", LONG], ["File name too long", "give a hub id"]),
    (["-t", "~no-such-user/model"], ["home directory"]),
    (["--temperature", "-1"], ["--temperature -1", "at least 0"]),
    (["--temperature", "hot"], ["--temperature"]),
    (["--top-p", "1.5", "--temperature", "1"], ["--top-p 1.5", "at most 1"]),
    (["--top-p", "0.9"], ["--top-p 0.9", "temperature above 0"]),
    (["--top-k", "-3", "--temperature", "1"], ["--top-k -3"]),
    (["--min-p", "2", "--temperature", "1"], ["--min-p 2"]),
    (["--repetition-penalty", "0"], ["--repetition-penalty 0"]),
    (["--max-new-tokens", "0"], ["--max-new-tokens 0", "at least 1"]),
    (["-m", "many"], ["--max-new-tokens", "-m"]),
    (["--min-new-tokens", "5", "-m", "4"], ["--min-new-tokens", "--max-new-tokens"]),
    (["--seed", "-1"], ["seed"]),
    (["-n", "0"], ["-n 0"]),
    (["-n", "2"], ["-n 2", "temperature above 0"]),
    (["--stop", ""], ["stop", "at least one character"]),
    (["--bad-word", ""], ["--bad-word"]),
    (["--eos-token-id", "99999"], ["--eos-token-id", "99999"]),
    (["--batch-size", "0"], ["--batch-size"]),
    (["--logprobs", "1"], ["--json"]),
    (["--trace"], ["--json"]),
    (["--dtype", "float31"], ["float31", "did you mean 'float32'?"]),
    (["--device", "cuda:77"], ["cuda:77", "cpu"]),
    (["--draft-device", "cuda:77"], ["cuda:77", "cpu"]),
    (["--device", "toaster"], ["toaster", "cpu"]),
    (["-d", "early-exit"], ["early-exit:layers=3"]),
    (["-d", "early-exit:layers=7"], ["7", "layers"]),
    (["-d", "prompt-lookup:ngrm=3"], ["prompt-lookup:ngram"]),
    (["-d", "promt-lookup"], ["promt-lookup", "did you mean 'prompt-lookup'?"]),
    (["-d", "earlyexit:layers=1"], ["earlyexit", "did you mean 'early-exit'?"]),
    (["--draft-quantize", "int5"], ["--draft-quantize", "did you mean 'int4'?"]),
    (["-d", "prompt-lookup", "--draft-quantize", "int4"], ["--draft-quantize int4 needs"]),
    (["-d", "none", "--draft-dtype", "float32"], ["--draft-dtype float32 needs a draft"]),
    (["-d", "early-exit:layers=1", "--draft-device", "cpu"], ["--draft-device cpu needs"]),
    (["--engine", "lama.cpp"], ["lama.cpp", "did you mean 'llama.cpp'?"]),
    (["--engine", "llama.cpp"], ["runs GGUF files"]),
    (["--n-ctx", "0"], ["--n-ctx 0"]),
    (["--n-ctx", "64"], ["--n-ctx is for the llama.cpp engine", "--engine llama.cpp"]),
    (["--type-v", "q8_0", "--no-flash-attn"], ["--no-flash-attn is not for --type-v q8_0"]),
    (["--mmap"], ["--mmap is for the llama.cpp engine"]),
    (["--type-k", "f17"], ["--type-k f17", "did you mean 'f16'?"]),
    (["--adapter", "./nowhere"], ["nowhere"]),
    (["--polcy", "dynamic"], ["--polcy", "--policy"]),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=[" ".join(o) for o, _ in OPTIONS])
def test_bad_option(run: Run, folders: Folders, options: list[str], words: list[str]) -> None:
    models = ["-t", folders["target"]] + (["-d", folders["draft"]] if "-d" not in options else [])
    refused(run("generate", *models, "The little", *options), *words)


@pytest.mark.parametrize(
    "options", [["-p", "dinamic"], ["--stop", ""], ["-m", "0"], ["-d", "early-exit"]]
)
def test_refused_before_anything_is_loaded(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(pair_module, "load", lambda *a, **k: pytest.fail("it was loaded"))
    refused(run("generate", "-t", folders["target"], "The", *options))


def test_no_prompt_at_all(run: Run, folders: Folders) -> None:
    for stdin in ("", "\n"):
        refused(run("generate", "-t", folders["target"], stdin=stdin), "empty", "standard input")
        refused(run("generate", "-t", folders["target"], "-", stdin=stdin), "standard input")


@pytest.mark.parametrize("prompts", [[""], ["The", ""]])
def test_empty_argument(run: Run, folders: Folders, prompts: list[str]) -> None:
    refused(run("generate", "-t", folders["target"], *prompts), f"argument {len(prompts)}")


def test_prompt_longer_than_the_context(run: Run, folders: Folders) -> None:
    long = "little " * 300
    refused(run("generate", "-t", folders["target"], long), "tokens", "context of 256")
    refused(run("generate", "-t", folders["target"], "The", long), "argument 2: ", "context of 256")


CONTENTS: list[tuple[bytes, list[str]]] = [
    (b"", ["no prompt"]),
    (b"\n \n", ["no prompt"]),
    (b'{"prompt": "a"}\nhello\n', [":2 is not JSON"]),
    (b'{"prompt": "a"}\n\n{"promt": "b"}\n', [":3 holds no prompt", '"messages"']),
    (b'{"prompt": ""}\n', ["empty", ":1"]),
    (b'{"prompt": 3}\n', [":1 holds no prompt"]),
    (b'["a"]\n', [":1 holds no prompt"]),
    (b'{"messages": []}\n', [":1 holds no prompt"]),
    (b'{"messages": [{"role": "user"}]}\n', [":1 holds no prompt"]),
    (b'{"messages": ["hello"]}\n', [":1 holds no prompt"]),
    (b'{"prompt": "\\ud800"}\n', ["Unicode", ":1"]),
    (b'{"messages": [{"role": "user", "content": "\\udfff"}]}\n', ["Unicode", ":1"]),
    (b'{"prompt": "\xe4"}\n', ["UTF-8"]),
]


@pytest.mark.parametrize(("content", "words"), CONTENTS)
def test_bad_lines_of_json(
    run: Run, folders: Folders, tmp_path: Path, content: bytes, words: list[str]
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    refused(run("generate", "-t", folders["target"], "--jsonl", str(path)), str(path), *words)


def test_files_that_cannot_be_read(run: Run, folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "empty").touch()
    for name, word in (
        ("missing", "No such file"),
        (".", "directory"),
        ("latin", "UTF-8"),
        ("empty", "empty"),
    ):
        path = str(tmp_path / name)
        refused(run("generate", "-t", folders["target"], "--file", path), path, word)


def broken(name: str, change: Callable[[Path], object]) -> Any:
    return pytest.param(name, change, id=name)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        broken("no config", lambda f: (f / "config.json").unlink()),
        broken("config is no JSON", lambda f: (f / "config.json").write_text("{")),
        broken("no weights", lambda f: (f / "model.safetensors").unlink()),
        broken("broken weights", lambda f: (f / "model.safetensors").write_bytes(b"\x01" * 999)),
        broken(
            "truncated weights",
            lambda f: (f / "model.safetensors").write_bytes(
                (f / "model.safetensors").read_bytes()[:-500]
            ),
        ),
        broken("broken tokenizer", lambda f: (f / "tokenizer.json").write_text("{}")),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_broken_model(
    run: Run,
    folders: Folders,
    tmp_path: Path,
    role: str,
    name: str,
    change: Callable[[Path], object],
) -> None:
    folder = Path(shutil.copytree(folders[role], tmp_path / "broken"))
    change(folder)
    models = {**folders, role: str(folder)}
    refused(run("generate", "-t", models["target"], "-d", models["draft"], "The"), str(folder))


def test_models_that_are_not_there(run: Run, folders: Folders, tmp_path: Path) -> None:
    for name in (str(tmp_path / "missing"), "./missing.gguf", "nobody/nothing", "smollm2-135m"):
        refused(run("generate", "-t", name, "The"), name)
        refused(run("generate", "-t", folders["target"], "-d", name, "The"), name)


def test_file_that_is_no_gguf(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"?")
    (tmp_path / "model.gguf").write_bytes(b"?" * 100)
    for name in ("model.bin", "model.gguf"):
        refused(run("generate", "-t", str(tmp_path / name), "The"), name)


def test_pair_that_does_not_fit(run: Run, folders: Folders) -> None:
    done = run("generate", "-t", folders["target"], "-d", folders["foreign"], "The")
    refused(done, folders["target"], folders["foreign"], "different tokenizers", "prompt-lookup")


def test_model_whose_state_cannot_be_rolled_back(
    run: Run, folders: Folders, tmp_path: Path
) -> None:
    config = tf.MambaConfig(vocab_size=340, hidden_size=16, num_hidden_layers=1, state_size=4)
    tf.MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    shutil.copy(Path(folders["target"]) / "tokenizer.json", tmp_path / "mamba")
    shutil.copy(Path(folders["target"]) / "tokenizer_config.json", tmp_path / "mamba")
    refused(run("generate", "-t", str(tmp_path / "mamba"), "The"), "mamba", "state")


def test_audio_model_reads_no_text(run: Run, folders: Folders, tmp_path: Path) -> None:
    build("whisper").save_pretrained(tmp_path / "whisper")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(folders["bare"]) / name, tmp_path / "whisper")
    refused(run("generate", "-t", str(tmp_path / "whisper"), "The"), "input_features")


@pytest.mark.parametrize("stdin", [None, "a terminal"])
def test_no_prompt_and_nobody_to_ask(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch, stdin: str | None
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    patched = types.SimpleNamespace(stdin=None if stdin is None else Terminal())
    monkeypatch.setattr(prompts, "sys", patched)
    refused(run("generate", "-t", folders["target"]), "no prompt", "--file", "standard input")


def test_chat_without_a_template(run: Run, folders: Folders) -> None:
    refused(run("generate", "-t", folders["bare"], "--chat", "The"), "chat template")
    refused(run("chat", "-t", folders["bare"]), "chat template", "--raw")


def test_policy_that_drafts_needs_a_draft(run: Run, folders: Folders) -> None:
    refused(run("generate", "-t", folders["target"], "-p", "dynamic", "The"), "dynamic", "draft")
    refused(run("demo", "-t", folders["target"]), "--draft")


def test_template_that_refuses_the_roles(run: Run, folders: Folders, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["target"], tmp_path / "strict"))
    (folder / "chat_template.jinja").write_text("{{ raise_exception('only users may speak') }}")
    refused(run("generate", "-t", str(folder), "The"), "only users may speak")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generat"], ["generat", "'generate'", "--help"]),
        (["--nonsense"], ["--nonsense", "--help"]),
        (["models", "fetch"], ["NAME"]),
        (["models", "fetch", "smollm2-135m"], ["smollm2-135m", "did you mean"]),
        (["demo", "-p", "dinamic"], ["did you mean 'dynamic'?"]),
        (["demo", "-p", "none"], ["nothing to compare"]),
        (["demo", "--prompt", ""], ["the prompt is empty (argument 1)"]),
        (["demo", "-m", "0"], ["--max-new-tokens 0"]),
        (["chat", "-p", "dinamic"], ["did you mean 'dynamic'?"]),
        (["chat", "--stop", ""], ["stop"]),
        (["doctor", "now"], ["now"]),
    ],
)
def test_bad_command_line(run: Run, arguments: list[str], words: list[str]) -> None:
    refused(run(*arguments), *words)


def test_unexpected_error_is_a_line_and_exit_code_1(
    run: Run, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise ZeroDivisionError("the impossible\nhappened")

    monkeypatch.setattr(pair_module, "load", fail)
    arguments = ("generate", "-t", folders["target"], "The")
    done = run(*arguments)
    assert done.exit_code == 1
    assert done.stderr == (
        "error: ZeroDivisionError: the impossible happened (--debug shows where)\n"
    )
    monkeypatch.setenv("BIGLITTLE_DEBUG", "1")
    for traced in (run(*arguments), run("--debug", *arguments)):
        assert traced.exit_code == 1
        assert "Traceback" in traced.stderr
        assert traced.stderr.splitlines()[-1].startswith("error: ZeroDivisionError")


def test_debug_shows_where_bad_input_was_refused(run: Run, folders: Folders) -> None:
    done = run("--debug", "generate", "-t", folders["target"], "-p", "dinamic", "The")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert "did you mean" in done.stderr.splitlines()[-1]


def test_long_messages_are_not_wrapped(run: Run, folders: Folders, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200)
    path.write_text(json.dumps({"promt": "a"}))
    refused(run("generate", "-t", folders["target"], "--jsonl", str(path)), str(path))
