"""What is counted is what happened; the dashboard asks for what there is."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import wait_for

from biglittle import Pair, Result, Stats, parse_policy
from biglittle.server import Scheduler, ServerLimits
from biglittle.server.metrics import Metrics, family

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana.json"
PROMPTS = ["The little model", "the big model corrects", "A drafter proposes"]


def values(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Samples by name and last label."""
    found: dict[tuple[str, str], float] = {}
    for kind in text_string_to_metric_families(metrics.text().decode()):
        for sample in kind.samples:
            labels = [v for k, v in sample.labels.items() if k != "model_name"]
            found[sample.name, ",".join(labels)] = sample.value
    return found


@pytest.fixture(params=["static:tokens=3", "bild:fallback=0.4,rollback=4", "none"])
def run(
    pair: Pair, request: pytest.FixtureRequest
) -> tuple[list[Result], dict[tuple[str, str], float]]:
    """Results of a few requests, and what was counted meanwhile."""
    requests = pair.requests(PROMPTS, policy=request.param, max_new_tokens=12, trace=True)
    scheduler = Scheduler(pair, ServerLimits(rows=2))
    scheduler.start()

    async def work() -> list[Result]:
        return [c.result async for c in scheduler.submit(requests) if c.result is not None]

    try:
        results = asyncio.run(work())
        wait_for(lambda: scheduler.running == 0)
        return results, values(scheduler.metrics)
    finally:
        scheduler.stop()


def test_counters_are_the_sum_of_the_rows(run: Any) -> None:
    results, found = run
    total = Stats.total(result.stats for result in results)
    assert found["vllm:generation_tokens_total", ""] == total.new_tokens
    assert found["vllm:prompt_tokens_total", ""] == total.prompt_tokens
    assert found["vllm:spec_decode_num_draft_tokens_total", ""] == total.drafted
    assert found["vllm:spec_decode_num_accepted_tokens_total", ""] == total.accepted
    assert found["biglittle:fallbacks_total", ""] == total.fallbacks
    assert found["biglittle:rollbacks_total", ""] == total.rollbacks
    assert found["vllm:time_to_first_token_seconds_count", ""] == 3
    assert found["vllm:e2e_request_latency_seconds_count", ""] == 3
    assert found["vllm:request_queue_time_seconds_count", ""] == 3
    assert found["vllm:request_success_total", "length"] == 3
    assert found["vllm:num_requests_running", ""] == found["vllm:num_requests_waiting", ""] == 0


def test_positions_and_decisions_are_those_of_the_rounds(run: Any) -> None:
    results, found = run
    rounds = [seen for result in results for seen in result.rounds or ()]
    name = family(parse_policy(results[0].policy))
    assert found["biglittle:rounds_total", name] == len(rounds)
    for position in range(max(seen.accepted for seen in rounds)):
        accepted = sum(seen.accepted > position for seen in rounds)
        key = "vllm:spec_decode_num_accepted_tokens_per_pos_total", str(position)
        assert accepted - 3 <= found[key] <= accepted  # an accepted token after the end is cut
    decisions = {
        "drop": sum(seen.fallback for seen in rounds),
        "keep": sum(seen.drafted > 0 and not seen.fallback for seen in rounds),
        "none": sum(not seen.predicted for seen in rounds),
    }
    for decision, count in decisions.items():
        counted = [
            v
            for (n, labels), v in found.items()
            if n == "biglittle:lookahead_decisions_total"
            and set(labels.split(",")) == {name, decision}
        ]
        assert sum(counted) == count


def test_time_is_all_accounted_for(run: Any) -> None:
    results, found = run
    seconds = {
        part: found["biglittle:engine_seconds_total", part] for part in ("target", "outside")
    }
    assert min(seconds.values()) > 0
    assert sum(seconds.values()) < sum(result.stats.total_seconds for result in results)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        ("none", "none"),
        ("static:tokens=7", "static"),
        ("bild:fallback=0.5,rollback=2", "bild"),
        ("dynamic:threshold=0.5+bild:rollback=2", "dynamic+bild"),
    ],
)
def test_a_policys_label_has_no_numbers(policy: str, name: str) -> None:
    assert family(parse_policy(policy)) == name


def test_the_dashboard_asks_for_what_there_is() -> None:
    metrics = Metrics("m")
    for counter in vars(metrics).values():
        if getattr(counter, "_labelnames", None):
            counter.labels(*("x" for _ in counter._labelnames))
    known = {name for name, _ in values(metrics)} | set(metrics.gauges)
    asked = set(re.findall(r"\b(?:vllm|biglittle):\w+", DASHBOARD.read_text(encoding="utf8")))
    assert asked <= known
    assert len(asked) > 15
    panels = json.loads(DASHBOARD.read_text(encoding="utf8"))["panels"]
    assert len({panel["title"] for panel in panels}) == len(panels)
