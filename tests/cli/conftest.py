"""Tiny models on disk with a real tokenizer, and ways to run the program on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from typer.testing import CliRunner, Result

from biglittle.cli.main import app

CORPUS = [
    "The little model writes and the big model corrects what it wrote.",
    "A drafter proposes, a lookahead says when to stop, the target scores.",
    "def add(first, second):\n    return first + second\n",
    "Größe, naïve, 東京, 🙂: every byte has a token of its own.",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def make_tokenizer(extra: str = "", template: str | None = CHAT_TEMPLATE) -> Any:
    """A byte-level BPE tokenizer trained on a few sentences; `extra` makes it another one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*CORPUS, extra * 50], trainer)
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.chat_template = template
    return fast


def make_model(tokenizer: Any, *, seed: int, layers: int = 2, context: int = 256) -> Any:
    """A random Llama whose logits are spread enough to be unambiguous."""
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = tf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    return model


def save_model(
    folder: Path, tokenizer: Any, *, seed: int, layers: int = 2, context: int = 256
) -> str:
    """Write a random model and its tokenizer to a folder; the folder."""
    make_model(tokenizer, seed=seed, layers=layers, context=context).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A target, a draft, one without a chat template, one with room for a long text, and one with
    other tokens."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = make_tokenizer()
    return {
        "target": save_model(root / "target", tokenizer, seed=0),
        "draft": save_model(root / "draft", tokenizer, seed=1, layers=1),
        "bare": save_model(root / "bare", make_tokenizer(template=None), seed=0),
        "long": save_model(root / "long", tokenizer, seed=0, context=1 << 20),
        "foreign": save_model(root / "foreign", make_tokenizer("quixotic zephyr jumps"), seed=2),
    }


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub, an empty cache, a wide terminal without colours."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # for other processes; this one has read it
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("BIGLITTLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BIGLITTLE_DEBUG", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """One thread, and what the program changes in its process is put back."""
    threads, verbosity = torch.get_num_threads(), tf.logging.get_verbosity()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    tf.logging.set_verbosity(verbosity)
    tf.logging.enable_progress_bar()


Run = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> Run:
    """Run the program in this process."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return run


# A parent may run in the background and ignore Ctrl-C, which its children inherit; and a terminal
# sends Ctrl-C to the session that it controls.
BOOT = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.isatty(0):
    os.login_tty(os.dup(0))
runpy.run_module("biglittle.cli", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def start() -> Start:
    """Start the program in a process of its own."""

    def start(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-c", BOOT, *arguments],
            bufsize=0,  # a reader of the first byte leaves the rest to `communicate`
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"},
            **{**pipes, **streams},
        )

    return start
