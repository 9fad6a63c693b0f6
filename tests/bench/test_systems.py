"""What a system says of its own work must be so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from tests.bench.common import pair
from tests.cli.conftest import make_tokenizer
from tests.models import T5

from biglittle import Pair
from biglittle.bench.systems import Answer, Ours, Peer, as_loaded, peer_names, why_no_peers
from biglittle.engines.transformers.packing import can_pack, pack_linears
from biglittle.engines.transformers.quantizing import can_quantize
from biglittle.params import make_params
from biglittle.policy import parse_policy

PROMPT = "The little model writes"
PEERS = peer_names(pair())


def ask(system: Any, of: Pair, **params: Any) -> Answer:
    settings = make_params(None, {"temperature": 0.0, "max_new_tokens": 20, "seed": 3, **params})
    answer = system.answer(of.requests(PROMPT, policy="none", params=settings)[0], settings)
    assert isinstance(answer, Answer)
    return answer


def plain(of: Pair, **params: Any) -> Answer:
    return ask(Ours(of, parse_policy("none")), of, **params)


@pytest.mark.parametrize("policy", ["none", "dynamic", "static:tokens=3", "bild:rollback=1"])
def test_ours_is_what_the_pair_generates(policy: str) -> None:
    found = ask(Ours(pair(), parse_policy(policy)), pair())
    expected = pair().generate(PROMPT, policy=policy, temperature=0, max_new_tokens=20, trace=True)
    assert (found.text, found.tokens) == (expected.text, expected.token_ids)
    assert expected.rounds is not None
    assert found.rounds == tuple((part.drafted, part.accepted) for part in expected.rounds)
    assert found.seconds >= found.stats.total_seconds > 0


def test_the_peers_of_a_pair() -> None:
    names = ["plain", "constant", "heuristic", "dynamic", "prompt lookup"]
    assert [f"transformers {name}" for name in names] == PEERS
    assert peer_names(pair("prompt-lookup")) == ["transformers plain", "transformers prompt lookup"]


@pytest.mark.parametrize("draft", ["draft", "target"])
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_writes_what_we_do_and_its_rounds_add_up(name: str, draft: str) -> None:
    of = pair(draft)
    found = ask(Peer(of, name), of)
    assert found.tokens == plain(of).tokens
    assert found.text == plain(of).text
    stats = found.stats
    assert stats.new_tokens == len(found.tokens) == 20
    assert stats.target_passes == stats.rounds == len(found.rounds)
    assert sum(accepted + 1 for _, accepted in found.rounds) == 20
    assert stats.drafted == sum(drafted for drafted, _ in found.rounds)
    assert 0 < stats.first_token_seconds < found.seconds
    assert stats.target_seconds + stats.draft_seconds < found.seconds


def test_a_peer_with_a_draft_that_is_always_right() -> None:
    of = pair("target")
    found = ask(Peer(of, "transformers constant"), of)
    assert found.rounds == ((5, 5), (5, 5), (5, 5), (1, 1))
    assert found.stats.draft_passes >= 16
    assert found.stats.acceptance_rate == 1.0
    assert found.stats.rollbacks == 0


def test_a_peer_leaves_the_models_as_they_were() -> None:
    of = pair()
    before = of.draft.generation_config.to_dict()
    for name in PEERS:
        ask(Peer(of, name), of)
    assert of.draft.generation_config.to_dict() == before
    for model in (of.target, of.draft):
        assert not model._forward_hooks
        assert not model._forward_pre_hooks


@pytest.mark.parametrize("name", PEERS)
def test_stop_strings_end_a_peers_answer_where_they_end_ours(name: str) -> None:
    of = pair("target")
    stop = plain(of).text[6:9]
    expected = plain(of, stop=stop)
    assert 0 < len(expected.tokens) < 20
    found = ask(Peer(of, name), of, stop=stop)
    assert (found.text, found.tokens) == (expected.text, expected.tokens)
    assert found.stats.new_tokens == len(expected.tokens)


def test_a_peer_samples_with_the_same_seed_alike() -> None:
    of, name = pair(), "transformers dynamic"
    first, second, other = (ask(Peer(of, name), of, temperature=1.5, seed=s) for s in (1, 1, 2))
    assert first.tokens == second.tokens
    assert first.tokens != other.tokens


def test_the_smallest_nucleus_is_greedy() -> None:
    of = pair()
    for system in (Peer(of, "transformers plain"), Ours(of, parse_policy("dynamic"))):
        assert ask(system, of, temperature=1.5, top_p=1e-6).tokens == plain(of).tokens


def test_an_encoder_decoder_pair() -> None:
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = tf.T5Config(**{**T5, "vocab_size": 340})
        model = tf.T5ForConditionalGeneration(config).eval()
        assert model.generation_config is not None
        model.generation_config.eos_token_id = None
        models.append(model)
    of = Pair(models[0], models[1], make_tokenizer())
    assert "transformers prompt lookup" not in peer_names(of)
    for name in peer_names(of):
        found = ask(Peer(of, name), of)
        assert found.tokens == plain(of).tokens
        assert sum(accepted + 1 for _, accepted in found.rounds) == 20


def test_only_transformers_models_have_peers() -> None:
    assert why_no_peers(pair()) is None
    foreign: Any = SimpleNamespace(target=pair().target, draft=object())
    reason = why_no_peers(foreign)
    assert reason is not None
    assert reason.startswith("no peers: the draft runs in llama.cpp")
    assert peer_names(foreign) == []
    itself = Pair(pair().target, pair().target, pair().tokenizer)
    assert str(why_no_peers(itself)).startswith("no peers: target and draft are one object")


def test_models_that_are_not_as_loaded() -> None:
    assert as_loaded(pair())
    if can_quantize():
        assert not as_loaded(pair(draft_quantize="int4"))
    if can_pack():
        packed: Any = SimpleNamespace(target=pair().target, draft=torch.nn.Sequential())
        packed.draft.append(torch.nn.Linear(32, 32, dtype=torch.bfloat16))
        assert as_loaded(packed)
        pack_linears(packed.draft)
        assert not as_loaded(packed)
