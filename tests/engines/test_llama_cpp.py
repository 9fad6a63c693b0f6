"""The llama.cpp engine: greedy output is llama.cpp's own, memory is flat, and what it refuses."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tests.engines.llama_greedy import own_greedy
from tests.models import build
from tests.reports.helpers import bytes_tokenizer
from tests.tiny_gguf import EXACT, made_up, tokens_of, write_gguf

import biglittle
from biglittle import LlamaModel, LlamaOptions, Pair, ParameterError
from biglittle.audit import audit
from biglittle.engines import Prompt
from biglittle.engines.llama_cpp import context as contexts
from biglittle.engines.llama_cpp.binding import has_amx, library
from biglittle.engines.llama_cpp.convert import convert

pytest.importorskip("llama_cpp")

TOKENIZER = bytes_tokenizer(merges=[("t", "h")])
PROMPTS = [[3, 4, 5, 3, 4], [9, 9], [11, 12, 13, 11, 12, 13, 11], [80, 70, 80]]
POLICIES = ("none", "dynamic", "static:tokens=3", "heuristic")
NEW = 24
ROOM = 256  # tokens: the smallest context that llama.cpp makes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A big model and a little one."""
    from tests.identity.more_models import build as build_more

    folder = tmp_path_factory.mktemp("gguf")
    for seed, name in enumerate(("big", "little")):
        torch.manual_seed(seed)
        model = build_more("LlamaForCausalLM", vocab_size=len(TOKENIZER))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 0.3)
        write_gguf(model, tokens_of(TOKENIZER), folder / f"{name}.gguf")
    return folder / "big.gguf", folder / "little.gguf"


@pytest.fixture(scope="module")
def big(files: tuple[Path, Path]) -> LlamaModel:
    return LlamaModel(files[0], EXACT)


@pytest.fixture(scope="module")
def little(files: tuple[Path, Path]) -> LlamaModel:
    return LlamaModel(files[1], EXACT)


@pytest.mark.parametrize("draft", ["little", "itself", "prompt-lookup"])
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_output_is_llama_cpps_own(
    big: LlamaModel, little: LlamaModel, draft: str, policy: str
) -> None:
    drafts: dict[str, Any] = {"little": little, "itself": big, "prompt-lookup": "prompt-lookup"}
    pair = Pair(big, drafts[draft])
    wanted = [own_greedy(big, prompt, NEW) for prompt in PROMPTS]
    options: dict[str, Any] = {"policy": policy, "max_new_tokens": NEW, "ignore_eos": True}
    alone = [list(pair.generate(prompt, **options).token_ids) for prompt in PROMPTS]
    together = [list(row.token_ids) for row in pair.generate(PROMPTS, **options)]
    assert alone == wanted
    assert together == wanted


def test_drafting_for_itself_is_always_right(big: LlamaModel) -> None:
    result = Pair(big, big).generate(PROMPTS[0], policy="static", max_new_tokens=NEW)
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.target_passes < NEW / 3


def test_models_of_both_engines_work_together(files: tuple[Path, Path], big: LlamaModel) -> None:
    """The same weights in either engine, as target and as draft."""
    torch_model = biglittle.load(files[0], engine="transformers", dtype="float32").target
    wanted = own_greedy(big, PROMPTS[0], NEW)
    for target, draft in ((torch_model, big), (big, torch_model)):
        result = Pair(target, draft).generate(
            PROMPTS[0], policy="static", max_new_tokens=NEW, ignore_eos=True
        )
        assert list(result.token_ids) == wanted
        assert result.stats.acceptance_rate == 1.0


def test_load_runs_gguf_files_as_they_are(files: tuple[Path, Path]) -> None:
    pair = biglittle.load(*files, llama=EXACT)
    assert isinstance(pair.target, LlamaModel)
    assert isinstance(pair.draft, LlamaModel)
    assert pair.tokenizer.get_vocab() == TOKENIZER.get_vocab()
    text = "the thing, then"
    assert pair.tokenizer(text).input_ids == TOKENIZER(text).input_ids
    result = pair.generate(text, max_new_tokens=6, ignore_eos=True)
    assert list(result.token_ids) == own_greedy(pair.target, TOKENIZER(text).input_ids, 6)
    assert result.text == TOKENIZER.decode(list(result.token_ids), skip_special_tokens=True)


def test_everything_of_the_core_runs_on_it(files: tuple[Path, Path]) -> None:
    pair = biglittle.load(*files, llama=EXACT)
    options: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    plain = pair.generate(PROMPTS[0], policy="none", logprobs=2, **options)
    fast = pair.generate(PROMPTS[0], policy="static", logprobs=2, trace=True, **options)
    for one, other in zip(plain.logprobs, fast.logprobs, strict=True):
        assert one.token == other.token
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert fast.rounds
    penalised = [
        pair.generate(PROMPTS[0], policy=policy, repetition_penalty=1.4, **options).token_ids
        for policy in ("none", "static")
    ]
    assert penalised[0] == penalised[1] != plain.token_ids
    samples = pair.generate(PROMPTS[0], temperature=0.9, n=3, seed=5, **options)
    again = pair.generate(PROMPTS[0], temperature=0.9, n=3, seed=5, **options)
    assert [s.token_ids for s in samples] == [s.token_ids for s in again]
    assert samples[1].stats.reused_tokens == len(PROMPTS[0])  # the prompt was read once
    lossy = pair.generate(PROMPTS[0], policy="bild:fallback=0,rollback=99", **options)
    assert lossy.stats.acceptance_rate == 1.0
    assert not lossy.lossless
    assert "".join(chunk.text for chunk in pair.stream(PROMPTS[0], **options)) == plain.text
    assert all(found.difference is None for found in audit(pair, PROMPTS, **options))


def test_a_next_turn_goes_on_from_the_last_ones_state(big: LlamaModel, little: LlamaModel) -> None:
    from biglittle.decoding import Engine

    pair = Pair(big, little)
    saved = None
    tokens = list(PROMPTS[0])
    for _ in range(3):
        (request,) = pair.requests(tokens, policy="static", max_new_tokens=7, ignore_eos=True)
        request.keep_state, request.saved = True, saved
        engine: Engine = pair.engine()
        row = engine.admit(request)
        while engine.busy:
            engine.step()
        assert row.new_tokens == own_greedy(big, tokens, 7)
        if saved is not None:
            assert row.stats.reused_tokens >= len(tokens) - 4
        saved = row.saved
        tokens = [*row.tokens, 21, 22, 23]
        del engine


def test_a_state_that_another_model_left_is_not_counted(files: tuple[Path, Path]) -> None:
    """It lies in a context of that model's: the prompt is read anew."""
    first, second = (LlamaModel(files[0], EXACT) for _ in range(2))
    row = first.runner()
    row.admit(Prompt((3, 4, 5)))
    saved = row.save(0, (3, 4, 5))
    del row  # gives its context back
    for model, reused in ((first, 3), (second, 0)):
        (request,) = Pair(model).requests([3, 4, 5, 6], max_new_tokens=2)
        request.saved = (saved, None)
        (result,) = Pair(model).run([request])
        assert result.stats.reused_tokens == reused


def test_defaults_are_the_files_own(tmp_path: Path) -> None:
    defaults: dict[str, Any] = {"temp": 0.7, "top_p": 0.8, "penalty_repeat": 1.1}
    write_gguf(build("llama"), made_up(97), tmp_path / "own.gguf", **defaults)
    model = LlamaModel(tmp_path / "own.gguf", EXACT)
    config = model.generation_config
    assert config.do_sample
    assert config.temperature == pytest.approx(0.7)
    assert config.top_p == pytest.approx(0.8)
    assert config.repetition_penalty == pytest.approx(1.1)
    assert config.eos_token_id == [2]
    model.tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    messages = [{"role": "user", "content": "hi"}]
    assert model.tokenizer.apply_chat_template(messages) == "<1>hi<2>"
    assert "bfloat16" not in model.summary
    assert model.summary.endswith("in llama.cpp")


def test_defaults_that_mean_nothing(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"temp": 0.5, "top_k": -1, "top_p": 2.0, "min_p": -0.5}
    odd["penalty_repeat"] = float("nan")
    write_gguf(build("llama"), made_up(97), tmp_path / "odd.gguf", **odd)
    model = LlamaModel(tmp_path / "odd.gguf", EXACT)
    config = model.generation_config
    assert (config.temperature, config.top_k, config.top_p, config.min_p) == (0.5, 0, 1.0, 0.0)
    assert config.repetition_penalty == 1.0
    assert len(Pair(model).generate([5, 6], max_new_tokens=2, ignore_eos=True).token_ids) == 2
    for temp, words in ((-1.0, None), ("hot", "its general.sampling.temp is 'hot', not a number")):
        write_gguf(build("llama"), made_up(97), tmp_path / "odd.gguf", temp=temp)
        model = LlamaModel(tmp_path / "odd.gguf", EXACT)
        if words is None:
            assert not model.generation_config.do_sample
        else:
            with pytest.raises(biglittle.LoadError, match=words):
                Pair(model).generate([5, 6])


def test_ids_that_are_no_tokens_have_no_text(files: tuple[Path, Path]) -> None:
    tokenizer = biglittle.load(files[0], llama=EXACT).tokenizer
    ids = tokenizer("ab").input_ids
    assert tokenizer.decode([*ids, len(TOKENIZER), -1, 2**40]) == "ab"
    assert tokenizer.decode(torch.tensor(ids)) == "ab"


def test_text_may_end_inside_a_character(files: tuple[Path, Path]) -> None:
    tokenizer = biglittle.load(files[0], llama=EXACT).tokenizer
    ids = tokenizer("naïve 🙂 日本").input_ids
    assert ids == TOKENIZER("naïve 🙂 日本").input_ids
    assert tokenizer.decode(ids) == "naïve 🙂 日本"
    for cut in range(len(ids)):
        assert tokenizer.decode(ids[:cut]) == TOKENIZER.decode(ids[:cut])


def resident() -> int:
    """Bytes of this process in memory."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf8").split()[1])
    except OSError:
        pytest.skip("this system does not tell")
    return pages * mmap.PAGESIZE


def test_rows_coming_and_going_leave_memory_flat(big: LlamaModel, little: LlamaModel) -> None:
    pair = Pair(big, little)
    sizes = []
    options: dict[str, Any] = {"policy": "static", "max_new_tokens": 3, "ignore_eos": True}
    for number in range(1000):
        pair.generate(PROMPTS[: 1 + number % 4], **options)
        if number in (199, 999):
            gc.collect()
            sizes.append(resident())
    assert sizes[1] - sizes[0] < 2**20
    assert len(big._idle) <= 2
    assert all(len(idle._free) == idle.sequences for idle in big._idle)


def test_contexts_and_models_are_freed(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []
    binding = library()

    def watch(name: str) -> None:
        function = getattr(binding, name)

        def call(pointer: Any) -> None:
            freed.append(name)
            function(pointer)

        monkeypatch.setattr(binding, name, call)

    watch("llama_free")
    watch("llama_model_free")
    model = LlamaModel(files[0], EXACT)
    pair = Pair(model, "prompt-lookup")
    kept = pair.stream(PROMPTS[0], max_new_tokens=4)
    next(kept)
    pair.generate(PROMPTS, max_new_tokens=4)
    del pair, model, kept
    gc.collect()
    assert freed.count("llama_free") == 2  # one for each of two generations at the same time
    assert freed[-1] == "llama_model_free"  # the weights go last


def test_a_context_that_is_full_is_left_for_a_larger_one(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "FIRST_CELLS", ROOM)
    model = LlamaModel(files[0], EXACT)
    options: dict[str, Any] = {"max_new_tokens": 80, "ignore_eos": True}
    found = Pair(model, model).generate(PROMPTS, policy="static", **options)
    assert model._idle[0].cells > ROOM
    for row, prompt in zip(found, PROMPTS, strict=True):
        assert list(row.token_ids) == own_greedy(model, prompt, 80)


def test_samples_go_on_sharing_their_prompt_in_a_larger_context(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "FIRST_CELLS", ROOM)
    model = LlamaModel(files[0], EXACT)
    prompt = [3 + index % 90 for index in range(90)]
    options: dict[str, Any] = {"temperature": 1e-9, "max_new_tokens": 30, "ignore_eos": True}
    samples = Pair(model).generate(prompt, n=8, **options)
    assert all(list(found.token_ids) == own_greedy(model, prompt, 30) for found in samples)
    assert model._idle[0].cells == 2 * ROOM  # of 8 · 120 tokens, 90 + 8 · 30 have their own cells


@pytest.mark.parametrize("refuses", ["llama.cpp", "memory", "move"])
def test_a_context_that_cannot_grow_stays_as_it_was(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    monkeypatch.setattr(contexts, "FIRST_CELLS", ROOM)
    model = LlamaModel(files[0], EXACT)
    options: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}
    with monkeypatch.context() as patch:
        if refuses == "llama.cpp":
            patch.setattr(library(), "llama_init_from_model", lambda *_: None)
        elif refuses == "memory":
            patch.setattr(contexts, "available_memory", lambda: 1000)
        else:
            patch.setattr(library(), "llama_state_set_data", lambda *_: 0)
        for prompts in ([[5] * 70] * 4, [[5, 6]] * 5):  # too many tokens, and too many rows
            with pytest.raises(biglittle.BiglittleError, match="room for|need|could not move"):
                Pair(model).generate(prompts, **options)
    for prompts in (PROMPTS, [[5] * 70] * 4, [[5, 6]] * 5):
        for prompt, found in zip(prompts, Pair(model).generate(prompts, **options), strict=True):
            assert list(found.token_ids) == own_greedy(model, prompt, 8)


def test_what_is_kept_leaves_room_for_rows(
    big: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = big.runner()
    with torch.inference_mode():
        runner.admit(Prompt((3, 4, 5)))
        monkeypatch.setattr(contexts, "ROWS", contexts.SEQUENCES - 2)
        kept = [runner.save(0, [3, 4, 5]) for _ in range(4)]
        assert [saved is not None for saved in kept] == [True, True, False, False]
        kept.clear()
        assert runner.save(0, [3, 4, 5]) is not None


def test_a_runner_takes_the_context_where_its_saved_state_lies(big: LlamaModel) -> None:
    def saved_by(runner: Any) -> Any:
        runner.admit(Prompt((3, 4, 5)))
        return runner.save(0, [3, 4, 5])

    with torch.inference_mode():
        runners = [big.runner() for _ in range(4)]  # more than are kept idle
        saved = [saved_by(runner) for runner in runners]
        del runners
        found = []
        for state in saved:
            found.append(big.runner())
            found[-1].admit(Prompt((3, 4, 5, 6)), state)
            assert found[-1]._context is state.state.context
        other = big.runner()
        other.admit(Prompt((3, 4, 5, 6)), saved[0])  # it is taken: another one serves, too
        assert other._context is not saved[0].state.context


def test_a_finalizer_may_come_at_any_time(big: LlamaModel) -> None:
    runner = big.runner()
    runner.admit(Prompt((3, 4)))
    cycle = [runner]
    cycle.append(cycle)  # type: ignore[arg-type]
    with big._lock:
        del runner, cycle
        gc.collect()  # must not wait for the lock
    assert not any(context.lent for context in big._idle)


LEFT_OPEN = """
import sys
from biglittle import LlamaModel, Pair
stream = Pair(LlamaModel(sys.argv[1])).stream([[5] * 40] * 6, max_new_tokens=9, ignore_eos=True)
next(stream)
"""


@pytest.mark.slow
def test_a_stream_that_is_open_when_the_program_ends(files: tuple[Path, Path]) -> None:
    subprocess.run([sys.executable, "-c", LEFT_OPEN, files[0]], check=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_ctx": 0}, "n_ctx=0 must be a whole number"),
        ({"n_ctx": 10**9}, "is more than the .* tokens that .* was trained for"),
        ({"n_gpu_layers": -2}, "or -1 for all layers"),
        ({"type_v": "f17"}, "type_v='f17' is no type of cache; .*; did you mean 'f16'"),
        ({"use_mmap": 1}, "use_mmap=1 must be True or False"),
        ({"flash_attn": "on"}, "flash_attn='on' must be"),
        ({"type_k": ["f16"]}, "type_k=\\['f16'\\] is no type of cache"),
        ({"type_v": "q8_0", "flash_attn": False}, "flash_attn=False is not for type_v='q8_0'"),
        ({"type_k": "q8_0"}, "type_k='q8_0' takes 32 values at a time, and every key of .* has 8"),
        ({1: 1}, "unknown option 1 of llama.cpp"),
        ("n_ctx=64", "options of llama.cpp are a mapping, .* not 'n_ctx=64'"),
        ({"n_thread": 1}, "unknown option 'n_thread' of llama.cpp; .*; did you mean 'n_threads'"),
    ],
)
def test_options_that_cannot_be_used(files: tuple[Path, Path], options: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        LlamaModel(files[0], options)


def test_a_draft_does_without_the_fused_kernel_on_a_cpu(files: tuple[Path, Path]) -> None:
    pair = biglittle.load(*files, llama={"n_threads": 1, "n_gpu_layers": 0})
    assert pair.target.options.flash_attn is None
    assert pair.draft.options.flash_attn is False
    quantized = LlamaOptions(type_v="q8_0", n_gpu_layers=0)
    assert quantized.for_draft() == quantized  # which the fused kernel alone can read
    chosen = LlamaOptions(flash_attn=True, n_gpu_layers=0)
    assert chosen.for_draft() == chosen


def test_a_context_that_memory_cannot_hold(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("biglittle.engines.llama_cpp.model.available_memory", lambda: 1000)
    with pytest.raises(ParameterError, match="n_ctx=64 needs .* GiB for keys and values"):
        LlamaModel(files[0], {"n_ctx": 64})


def test_a_prompt_longer_than_the_context(files: tuple[Path, Path]) -> None:
    pair = Pair(LlamaModel(files[0], {**EXACT, "n_ctx": 32}))
    assert len(pair.generate([5] * 20, max_new_tokens=64, ignore_eos=True).token_ids) == 12
    with pytest.raises(biglittle.ContextError, match="40 tokens, .* a context of 32"):
        pair.generate([5] * 40)


def test_early_exit_is_refused_with_its_reason(big: LlamaModel) -> None:
    with pytest.raises(biglittle.UnsupportedModelError, match="llama.cpp runs a model whole"):
        Pair(big, "early-exit:layers=1")


def test_a_draft_of_another_vocabulary(files: tuple[Path, Path], tmp_path: Path) -> None:
    write_gguf(build("llama"), [f"w{index}" for index in range(97)], tmp_path / "other.gguf")
    with pytest.raises(biglittle.IncompatiblePairError, match="different tokenizers"):
        biglittle.load(files[0], tmp_path / "other.gguf")


def test_options_are_made_from_a_mapping() -> None:
    assert LlamaOptions.make({"n_threads": 3}) == LlamaOptions(n_threads=3)
    options = LlamaOptions(n_ctx=64)
    assert LlamaOptions.make(options) is options
    assert LlamaOptions.make(None) == LlamaOptions()


def test_without_the_extra_a_file_goes_through_transformers(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("biglittle.engines.llama_cpp.available", lambda: False)
    pair = biglittle.load(files[0])
    assert type(pair.target).__name__ == "LlamaForCausalLM"
    assert "pip install 'biglittle[llama]' runs it as it is" in caplog.text


def test_a_file_that_is_cut_off_or_foreign(files: tuple[Path, Path], tmp_path: Path) -> None:
    whole = files[0].read_bytes()
    for name, content, words in (
        ("cut.gguf", whole[: len(whole) // 2], "cut.gguf: llama.cpp cannot load it: .*"),
        ("foreign.gguf", b"GGUF" + bytes(range(200)), "foreign.gguf: llama.cpp cannot load it"),
        ("text.gguf", b"hello", "not a GGUF file"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(biglittle.LoadError, match=words):
            biglittle.load(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda writer: writer.add_causal_attention(False), "is not a decoder-only model"),
        (lambda writer: writer.add_context_length(0), "says that its context is 0 tokens"),
        (lambda writer: writer.add_tokenizer_model("no_vocab"), "the file has no tokenizer"),
    ],
)
def test_files_of_models_that_cannot_take_part(
    tmp_path: Path, change: Callable[[gguf.GGUFWriter], None], words: str
) -> None:
    write_gguf(build("llama"), made_up(97), tmp_path / "odd.gguf", change)
    with pytest.raises(biglittle.BiglittleError, match=words):
        biglittle.load(tmp_path / "odd.gguf")


def test_a_name_that_is_no_unicode(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf"))
    path.symlink_to(files[0])
    assert len(Pair(LlamaModel(path, EXACT)).generate([5, 6], max_new_tokens=2).token_ids) == 2


@pytest.mark.parametrize("built", [0, 1])
def test_amx_kernels_are_left_unused(
    built: int, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a build has them is its own word; the loading of a model asks for none."""
    has_amx.cache_clear()
    said = f"CPU : AVX2 = 1 | AMX_INT8 = {built} | ".encode()
    monkeypatch.setattr(library(), "llama_print_system_info", lambda: said)
    load, asked = library().llama_model_load_from_file, []

    def watch(path: bytes, settings: Any) -> Any:
        asked.append(settings.use_extra_bufts)
        return load(path, settings)

    monkeypatch.setattr(library(), "llama_model_load_from_file", watch)
    try:
        LlamaModel(files[0])
        assert asked == [not built]
    finally:
        has_amx.cache_clear()


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="a CPU without AMX")
def test_torch_may_use_amx_between_passes(tmp_path: Path) -> None:
    """Its tiles are the thread's, and so would llama.cpp's be."""
    from tests.identity.more_models import build as build_more

    model = build_more(
        "LlamaForCausalLM", vocab_size=len(TOKENIZER), hidden_size=256, intermediate_size=256
    )
    model.bfloat16().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a.gguf", "q8_0")
    little = LlamaModel(tmp_path / "a.gguf", {"n_threads": 1})
    prompt = [3, 4, 5] * 20
    first = Pair(little).generate(prompt, max_new_tokens=NEW)
    torch.ones(256, 512).bfloat16() @ torch.ones(512, 512).bfloat16()
    assert Pair(little).generate(prompt, max_new_tokens=NEW).token_ids == first.token_ids
