"""GGUF headers: what they say, and files that llama.cpp would end the process over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.models import VOCAB, build
from tests.tiny_gguf import made_up, write_gguf

from biglittle import LoadError
from biglittle.engines.llama_cpp.header import check_header, read_header

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
Change = Callable[[gguf.GGUFWriter], None]


def written(folder: Path, tokens: list[str], change: Change | None = None) -> Path:
    write_gguf(build("llama"), tokens, folder / "m.gguf", change)
    return folder / "m.gguf"


def says(key: str, value: Any) -> Change:
    """Something else than what the writer said before."""

    def change(writer: gguf.GGUFWriter) -> None:
        for part in writer.kv_data:
            part.pop(key, None)
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))

    return change


def test_what_a_header_says(tmp_path: Path) -> None:
    found = read_header(written(tmp_path, made_up(VOCAB), says("general.sampling.temp", 0.5)))
    assert found.values["general.architecture"] == "llama"
    assert found.values["llama.block_count"] == 3
    assert found.values["general.sampling.temp"] == 0.5
    assert found.values["tokenizer.ggml.tokens"] == [text.encode() for text in made_up(VOCAB)]
    assert found.values["tokenizer.ggml.token_type"] == [3] * 3 + [1] * (VOCAB - 3)
    head = found.tensors["output.weight"]
    assert (head.count, head.bytes) == (VOCAB * 32, 4 * VOCAB * 32)
    assert len(found.tensors) == len(build("llama").state_dict())


def test_sound_files(tmp_path: Path) -> None:
    check_header(written(tmp_path, made_up(VOCAB)))
    unnamed = ["", "", *made_up(VOCAB)[2:]]  # llama.cpp gives them names
    check_header(written(tmp_path, unnamed))
    sentences = says("tokenizer.ggml.model", "llama")
    check_header(written(tmp_path, [*made_up(3), *BYTES], sentences))
    characters = [chr(byte) if byte < 128 else text for byte, text in enumerate(BYTES)]
    check_header(written(tmp_path, [*made_up(3), *characters], sentences))


@pytest.mark.parametrize(
    ("tokens", "change", "message"),
    [
        ([*made_up(9), "w4"], None, "tokens 4 and 9 are the same, 'w4'"),
        (made_up(9), says("llama.block_count", 0), "it has 0 layers, and 1 to 512"),
        (made_up(9), says("llama.block_count", 513), "it has 513 layers, and 1 to 512"),
        (made_up(9), says("tokenizer.ggml.model", "llama"), "no token for the byte 0x00"),
        (BYTES[:-1], says("tokenizer.ggml.model", "llama"), "no token for the byte 0xFF"),
    ],
)
def test_files_that_would_end_the_process(
    tmp_path: Path, tokens: list[str], change: Change | None, message: str
) -> None:
    with pytest.raises(LoadError, match=f"{message}.*; llama.cpp cannot run it"):
        check_header(written(tmp_path, tokens, change))


def test_is_asked_before_a_file_is_loaded(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from biglittle.engines.llama_cpp import LlamaModel
    from biglittle.engines.llama_cpp.model import read_tokenizer

    path = written(tmp_path, made_up(VOCAB), says("llama.block_count", 0))
    for load in (LlamaModel, read_tokenizer):
        with pytest.raises(LoadError, match="0 layers"):
            load(path)


def test_what_llama_cpp_refuses_is_left_to_it(tmp_path: Path) -> None:
    path = written(tmp_path, made_up(VOCAB), says("llama.block_count", 0))
    whole = path.read_bytes()
    for length in (4, 8, 20, 60, 700):
        path.write_bytes(whole[:length])
        check_header(path)
    path.write_bytes(whole[:4] + b"\x09" + whole[5:])  # a version of the future
    check_header(path)
