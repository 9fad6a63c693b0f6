"""Chi-square through the whole engine: what sampling rows emit follows the target's distribution.

The target is a Markov chain, so every token's distribution given the one before it is known. Seeds
are fixed: a test that passes once always does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import transformers as tf
from scipy import stats  # type: ignore[import-untyped]
from tests.fakes import Markov, ScriptedRunner, engine_of, request
from torch import Tensor

from biglittle import Policy, parse_policy
from biglittle.acceptance import Acceptance, Exact
from biglittle.acceptance.base import sample
from biglittle.decoding.sampling import Pipeline
from biglittle.drafters import Drafter, ModelDrafter, PromptLookupDrafter
from biglittle.lookahead import Constant

VOCAB, NEW, ROWS, BATCH = 5, 12, 2000, 100  # 24 000 draws a case
PROMPT = [0, 1, 2, 3, 4, 4, 0, 2, 1, 0]  # every token has a past, for lookups


def chain(seed: int, scale: float = 0.9) -> Markov:
    generator = torch.Generator().manual_seed(seed)
    return Markov(scale * torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))


BIG = chain(0)
DRAFTS = {
    "warmer": Markov(BIG.logits / 1.5),
    "colder": Markov(BIG.logits / 0.5),
    "unrelated": chain(1),
    "small-vocabulary": Markov(chain(2).logits[:, :4]),
}


def make_drafter(name: str) -> Drafter:
    if name == "prompt-lookup":
        return PromptLookupDrafter(vocab=VOCAB)
    script = DRAFTS[name]
    known = script.logits.shape[1]
    # Reads every token, predicts those that it knows.
    wide = torch.full((VOCAB, VOCAB), -torch.inf, dtype=torch.float64)
    wide[:, :known] = script.logits
    return ModelDrafter(ScriptedRunner(Markov(wide), VOCAB), known)


def draws(
    policy: Policy, draft: str, pipeline: Pipeline, rows: int = ROWS, new: int = NEW
) -> Tensor:
    """Generated tokens, [rows, new]."""
    found: list[tuple[int, ...]] = []
    for start in range(0, rows, BATCH):
        engine = engine_of(ScriptedRunner(BIG, VOCAB), make_drafter(draft))
        batch = [
            engine.admit(request(PROMPT, policy, new=new, pipeline=pipeline, seed=seed))
            for seed in range(start, start + BATCH)
        ]
        while engine.busy:
            engine.step()
        found += [row.result().token_ids for row in batch]
    return torch.tensor(found)


def transitions(warpers: tuple[tf.LogitsProcessor, ...]) -> Tensor:
    """The target's processed distribution after every token, [vocab, vocab]."""
    scores = BIG.logits.clone()
    for warper in warpers:
        scores = warper(torch.zeros(VOCAB, 1, dtype=torch.long), scores)
    return scores.softmax(-1)


def p_value(before: Tensor, after: Tensor, expected: Tensor) -> float:
    """Of transitions `before` → `after` under the rows of `expected`; 0 if one is impossible."""
    statistic, freedom = 0.0, 0
    for token in range(VOCAB):
        counts = torch.bincount(after[before == token], minlength=VOCAB).double()
        wanted = counts.sum() * expected[token]
        if counts[wanted == 0].any():
            return 0.0
        rare = wanted < 5  # too rare for the test: one cell of its own, if that is enough
        counts = torch.stack([*counts[~rare], counts[rare].sum()])
        wanted = torch.stack([*wanted[~rare], wanted[rare].sum()])
        tested = wanted >= 5
        if tested.sum() > 1:
            statistic += float(((counts - wanted) ** 2 / wanted)[tested].sum())
            freedom += int(tested.sum()) - 1
    assert freedom > 0
    return float(stats.chi2.sf(statistic, freedom))


def p_values(tokens: Tensor, expected: Tensor) -> Iterator[tuple[str, float]]:
    """For the first token, the second, and all later ones."""
    first = torch.full((len(tokens),), PROMPT[-1])
    yield "first", p_value(first, tokens[:, 0], expected)
    yield "second", p_value(tokens[:, 0], tokens[:, 1], expected)
    yield "later", p_value(tokens[:, 1:-1].flatten(), tokens[:, 2:].flatten(), expected)


@dataclass
class Case:
    policy: str
    draft: str
    warpers: tuple[tf.LogitsProcessor, ...] = ()
    custom: bool = False

    def __str__(self) -> str:
        warpers = [type(w).__name__.removesuffix("LogitsWarper") for w in self.warpers]
        return "-".join([self.policy, self.draft, *warpers, *["custom"] * self.custom])


COLD, WARM = tf.TemperatureLogitsWarper(0.6), tf.TemperatureLogitsWarper(1.4)
CASES = [
    Case("none", "unrelated"),
    Case("static:tokens=3", "warmer"),
    Case("static:tokens=3", "colder"),
    Case("static:tokens=1", "unrelated"),
    Case("static:tokens=4", "unrelated", (COLD,)),
    Case("static:tokens=3", "small-vocabulary"),
    Case("dynamic:threshold=0.5,tokens=4", "warmer", (WARM,)),
    Case("dynamic:threshold=0.4,tokens=4", "unrelated"),
    Case("heuristic:start=2", "warmer"),
    Case("heuristic:start=2,threshold=0.4", "unrelated"),
    Case("fallback:threshold=0.5,tokens=4", "unrelated"),
    Case("static:tokens=3", "prompt-lookup"),
    Case("dynamic", "prompt-lookup", (COLD,)),
    Case("static:tokens=3", "warmer", (tf.TopKLogitsWarper(3),)),
    Case("static:tokens=3", "unrelated", (WARM, tf.TopPLogitsWarper(0.8))),
    Case("static:tokens=3", "prompt-lookup", (tf.TopKLogitsWarper(2),)),
    Case("static:tokens=3", "warmer", custom=True),
    Case("static:tokens=3", "prompt-lookup", custom=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_samples_follow_the_target(case: Case) -> None:
    custom = (lambda ids, scores: scores,) if case.custom else ()
    pipeline = Pipeline(True, custom=custom, pointwise=case.warpers)
    rows = ROWS // 2 if case.custom else ROWS  # those are judged one at a time
    tokens = draws(parse_policy(case.policy), case.draft, pipeline, rows)
    for which, value in p_values(tokens, transitions(case.warpers)):
        assert value > 0.002, which


# The same test has to notice what is wrong.


class AcceptAll(Exact):
    """The draft's own distribution."""

    def accepts(
        self, tokens: Tensor, logits: Tensor, q: Tensor | None, uniforms: Tensor | None
    ) -> Tensor:
        return torch.ones_like(tokens, dtype=torch.bool)


class ReplaceFromTarget(Exact):
    """After a rejection, p itself instead of what q leaves of it."""

    def replace(
        self, logits: Tensor, q: Tensor | None, rejected: Tensor, uniforms: Tensor | None
    ) -> Tensor:
        assert uniforms is not None
        return sample(logits.softmax(-1), uniforms)


class SoftQ(Exact):
    """A q that the tokens were not drawn from: flatter than it was."""

    def accepts(
        self, tokens: Tensor, logits: Tensor, q: Tensor | None, uniforms: Tensor | None
    ) -> Tensor:
        assert q is not None
        return Exact.accepts(self, tokens, logits, (q + 0.2) / 2, uniforms)


@pytest.mark.parametrize("rule", [AcceptAll(), ReplaceFromTarget(), SoftQ()])
@pytest.mark.parametrize("draft", ["unrelated", "prompt-lookup"])
def test_the_test_notices_wrong_rules(rule: Acceptance, draft: str) -> None:
    tokens = draws(Policy(Constant(3), rule), draft, Pipeline(sampling=True), rows=1500)
    found = dict(p_values(tokens, transitions(())))
    assert found["first"] > 0.002  # written by the target alone
    assert found["second"] < 1e-6
    assert found["later"] < 1e-6


# Processors that read the prefix: the joint distribution of the first tokens.


@pytest.mark.parametrize("draft", ["warmer", "prompt-lookup"])
def test_processors_that_read_the_prefix(draft: str) -> None:
    rules = (tf.RepetitionPenaltyLogitsProcessor(1.6), tf.NoRepeatNGramLogitsProcessor(3))
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for written, probability in expected.items():
            ids = torch.tensor([[*PROMPT, *written]])
            scores = BIG.logits[ids[0, -1]][None]
            for rule in rules:
                scores = rule(ids, scores)
            for token, p in enumerate(scores[0].softmax(-1).tolist()):
                longer[(*written, token)] = probability * p
        expected = longer
    pipeline = Pipeline(True, prefix=rules)
    tokens = draws(parse_policy("static:tokens=2"), draft, pipeline, 4000, new=3).tolist()
    common = [key for key, p in expected.items() if p * len(tokens) >= 5]
    seen = Counter(tuple(row) for row in tokens)
    assert all(expected[key] > 0 for key in seen)
    counts = [seen[key] for key in common]
    wanted = [expected[key] * len(tokens) for key in common]
    rest = len(tokens) - sum(wanted)
    result = stats.chisquare([*counts, len(tokens) - sum(counts)], [*wanted, rest])
    assert len(common) > 25
    assert result.pvalue > 0.002


# BiLD: lossy, but in a known way.


@pytest.mark.parametrize(
    ("fallback", "rollback"), [(0.0, 1.5), (0.0, 0.5), (0.45, 1.5), (1.1, 1.5), (0.0, 50.0)]
)
def test_bild_samples_as_its_rules_say(fallback: float, rollback: float) -> None:
    """A draft's token stays where −ln p ≤ α_RB or it is the target's favourite, else p decides;
    and where the draft's largest probability is below α_FB, p decides at once."""
    p, q = BIG.logits.softmax(-1), DRAFTS["unrelated"].logits.softmax(-1)
    favourite = torch.nn.functional.one_hot(p.argmax(-1), VOCAB).bool()
    kept = q * ((-p.log() <= rollback) | favourite)
    expected = kept + (1 - kept.sum(-1, keepdim=True)) * p
    expected = torch.where(q.amax(-1, keepdim=True) < fallback, p, expected)
    policy = Policy.bild(fallback, rollback, tokens=1)
    tokens = draws(policy, "unrelated", Pipeline(sampling=True), new=4)
    before = torch.full((ROWS,), PROMPT[-1])
    assert p_value(before, tokens[:, 0], expected) > 0.002
    if fallback == 0 and rollback > 40:  # a window of one: every second token is the target's
        assert p_value(tokens[:, 0], tokens[:, 1], p) > 0.002
        assert p_value(before, tokens[:, 0], p) < 1e-6
    if fallback > 1:
        assert p_value(tokens[:, 0], tokens[:, 1], p) > 0.002
