"""The report: whole, self-contained, and with everything in it."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.bench.common import answer, record, recorded, task

from biglittle.bench.export import as_dict, write_csv, write_json
from biglittle.bench.operations import Shape, Shapes, Weights
from biglittle.bench.records import Difference
from biglittle.bench.report import Lookaheads, measured_lookaheads, plots, render, write_report
from biglittle.bench.summary import Summary, summarize
from biglittle.bench.tasks import Example, Task

ROUNDS = {"dynamic": [(4, 4), (2, 1)], "static:tokens=3": [(3, 3), (3, 0)], "bild": [(1, 1)]}
SUMS = Task(
    "sums & <more>",
    tuple(Example(str(i), (f"{i}?",), True, (str(i),)) for i in range(3)),
    ("exact_match",),
)


def made(tasks: tuple[Task, ...] = (SUMS, task())) -> Summary:
    systems = ["none", *ROUNDS, "transformers plain"]
    records = [
        record(
            of.name,
            example.id,
            system,
            answer(1.0 + 0.1 * place, rounds=ROUNDS.get(system, ()), text=example.id),
        )
        for of in tasks
        for example in of.examples
        for place, system in enumerate(systems)
    ]
    run = recorded(*records)
    found = Difference("words", "2", "dynamic", 0, 3, ("<b>", "a"), (float("inf"), 1.0), False)
    shape = Shape(Weights(10**9, 2 * 10**9), Weights(10**8, 2 * 10**8), (0,) * 4, 64, 256)
    return summarize(replace(run, differences=(found,)), list(tasks), shapes=Shapes(shape, shape))


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids[value] += 1
            if name in ("href", "src", "xlink:href"):
                self.links.append(value)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@cache
def page() -> str:
    return render(made())


def test_the_page_needs_nothing_else() -> None:
    html = page()
    found = Page(html)
    assert found.open == []
    assert found.tags["script"] == found.tags["link"] == found.tags["img"] == 0
    assert all(link.startswith("#") for link in found.links)
    assert "@import" not in html
    assert all(part.startswith("#") for part in re.findall(r"url\(['\"]?([^)]*)", html))
    assert set(re.findall(r"https?://[^\"'<> ]+", html)) <= {
        "http://www.w3.org/2000/svg",  # names, which nobody fetches
        "http://www.w3.org/1999/xlink",
    }


def test_ids_are_unique_and_links_lead_somewhere() -> None:
    found = Page(page())
    assert [name for name, count in found.ids.items() if count > 1] == []
    assert {link[1:] for link in found.links} <= found.ids.keys()


def test_light_dark_and_phones() -> None:
    html = page()
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html
    assert "currentColor" in html
    assert plots.INK not in html
    assert "data-label" in html


def test_everything_is_in_it() -> None:
    found = Page(page())
    for system in made().systems[1:]:
        assert system in found.text
    for heading in (
        "all tasks", "sums & <more>", "words", "Lookahead, round by round",
        "Acceptance by position", "Quality against latency", "Where the time goes",
        "What a token costs", "Where lossless outputs differ", "How it was measured",
    ):  # fmt: skip
        assert heading in found.text
    for fact in ("biglittle bench --out here", "abacus", "float32 on cpu", "big with little"):
        assert fact in found.text
    assert "exact_match|numbers" in found.text
    assert found.tags["svg"] == found.tags["figure"] == 4
    assert '"<b>"' in found.text or "\\u003cb\\u003e" in found.text
    assert "fault" in found.text


def test_pictures_without_anything_to_show_are_left_out() -> None:
    plain = recorded(*(record("words", str(i), "none", answer(1.0)) for i in range(2)))
    found = Page(render(summarize(plain, [task(count=2)])))
    assert found.tags["svg"] == 1
    assert "What a token costs" not in found.text
    assert "fallback" not in found.text
    assert measured_lookaheads(summarize(plain, [task(count=2)])) is None


def test_lookahead_of_the_longest_answer_and_of_one_that_is_named() -> None:
    summary = made()
    found = measured_lookaheads(summary)
    assert found is not None
    assert (found.task, found.example) == ("sums & <more>", "0")
    assert found.rounds == {"dynamic": [4, 2], "static:tokens=3": [3, 3], "bild": [1]}
    named = measured_lookaheads(summary, "words", "1")
    assert named is not None
    assert (named.task, named.example) == ("words", "1")
    assert measured_lookaheads(summary, "words", "nobody") is None


def test_an_oracle_can_be_drawn_beside() -> None:
    rounds = {"oracle": [7, 0, 9], "static": [5] * 6}
    html = render(made((task(),)), lookaheads=Lookaheads("code", "$3$", rounds))
    assert "oracle: 3 rounds, 16 drafted tokens" in html
    assert "static: 6 rounds, 30 drafted tokens" in html
    assert "every round of code, example $3$" in html


def test_the_same_numbers_make_the_same_page() -> None:
    assert render(made()) == page()


def test_a_task_alone_has_one_table() -> None:
    assert "all tasks" not in Page(render(made((task(),)))).text


# As data.


def test_json_is_strict_and_whole(tmp_path: Path) -> None:
    summary = made()
    write_json(summary, tmp_path / "summary.json")
    text = (tmp_path / "summary.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found == json.loads(json.dumps(as_dict(summary)))
    assert found["format"] == "biglittle bench summary"
    assert found["header"]["command"] == "biglittle bench --out here"
    assert len(found["rows"]) == len(summary.rows) == 3 * 5
    assert found["differences"][0]["logits"] == [None, 1.0]
    dynamic = next(r for r in found["rows"] if (r["task"], r["system"]) == ("words", "dynamic"))
    assert dynamic["speedup"] == pytest.approx(1 / 1.1)
    assert dynamic["bytes_ratio"] > 0
    assert dynamic["intensity_ratio"] == pytest.approx(
        dynamic["flops_ratio"] / dynamic["bytes_ratio"]
    )
    example = found["examples"][0]
    assert set(example) == {"task", "example", "system", "prompt", "seconds", "tokens"}


def test_csv_has_a_column_for_everything(tmp_path: Path) -> None:
    summary = made()
    write_csv(summary, tmp_path / "summary.csv")
    with (tmp_path / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(summary.rows)
    assert rows[0]["exact_match"] == "100.0"
    assert [r["exact_match"] for r in rows if r["task"] == "words"] == [""] * 5
    assert {r["system"] for r in rows} == set(summary.systems)


def test_the_file_is_written(tmp_path: Path) -> None:
    write_report(made(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf8").startswith("<!doctype html>")
