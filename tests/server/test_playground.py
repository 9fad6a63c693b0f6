"""The page at `/`, in a real browser, and what the server tells it."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.server.conftest import NAME, Running, make_service, wait_for

from biglittle import Pair, __version__, parse_policy
from biglittle.server.playground import describe_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KEY = "sesame"
SECONDS = 60  # a busy machine
REFUSED = "Failed to load resource: the server responded with a status of 4"

Open = Callable[..., Page]


def get(server: Running, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


# What the server tells it.


def test_facts(pair: Pair, server: Running) -> None:
    status, _, raw = get(server, "/v1/playground")
    facts = json.loads(raw)
    policies = facts.pop("policies")
    assert status == 200
    assert facts == {
        "version": __version__,
        "model": NAME,
        "chat": True,
        "policy": str(pair.policy),
        "lossless": True,
        "allow_lossy": True,
        "max_tokens": 256,
    }
    names = [policy["name"] for policy in policies]
    assert {"cost-aware", "dynamic", "static", "heuristic", "fallback", "bild"} <= set(names)
    assert "disco" not in names  # it reads a file
    for policy in policies:
        assert policy["about"]
        for end in ("least", "most", "default"):
            options = ",".join(f"{o['name']}={o[end]:g}" for o in policy["options"])
            assert parse_policy(f"{policy['name']}:{options}").lossless == policy["lossless"]
        for option in policy["options"]:
            assert option["least"] <= option["default"] <= option["most"]
            assert parse_policy(f"{policy['name']}:{option['name']}={option['default']:g}") == (
                parse_policy(policy["name"])
            )
    assert [p["name"] for p in policies if not p["lossless"]] == ["bild"]


def test_without_a_draft_there_is_nothing_to_choose(alone: Pair) -> None:
    facts = describe_server(make_service(alone))
    assert facts.policies == []
    assert facts.policy == "none"
    assert not facts.allow_lossy


def test_the_key_guards_the_facts_and_not_the_page(pair: Pair) -> None:
    with Running(make_service(pair), api_key=KEY) as running:
        assert get(running, "/v1/playground")[0] == 401
        assert get(running, "/v1/playground", Authorization=f"Bearer {KEY}")[0] == 200
        assert get(running, "/")[0] == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/playground/page.js", "text/javascript"),
        ("/playground/style.css", "text/css"),
        ("/playground/icon.svg", "image/svg+xml"),
    ],
)
def test_files_load_nothing_from_elsewhere(server: Running, path: str, kind: str) -> None:
    status, headers, body = get(server, path)
    assert status == 200
    assert headers["content-type"].startswith(kind)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert b"innerHTML" not in body
    assert b"https://" not in body


def test_without_javascript_it_points_to_the_api(server: Running) -> None:
    page = get(server, "/")[2].decode()
    line = page[page.index("<noscript>") : page.index("</noscript>")]
    assert "/v1" in line
    assert "openapi.json" in line


@pytest.mark.parametrize("name", ["", "none.js", "../facts.py", "..%2ffacts.py", "__init__.py"])
def test_no_other_file_is_served(server: Running, name: str) -> None:
    assert get(server, f"/playground/{name}")[0] == 404


# In a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium, which apt-get install chromium gives")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a server's page; it may ask nobody else, and complain of nothing unexpected."""
    pages: list[Page] = []
    troubles: list[str] = []

    def open_page(running: Running, *, width: int = 1280, **options: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 800}, **options)
        pages.append(page)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(running.url) else troubles.append(request.url)
            ),
        )
        page.set_default_timeout(1000 * SECONDS)
        page.goto(running.url)
        return page

    expect.set_options(timeout=1000 * SECONDS)
    yield open_page
    for page in pages:
        page.close()
    assert [text for text in troubles if not text.startswith(REFUSED)] == []


def tokens(page: Page, side: str) -> list[dict[str, Any]]:
    """What is shown of every token."""
    found: list[dict[str, Any]] = page.locator(f"#{side} .text .token").evaluate_all(
        "parts => parts.map(part => ({ text: part.textContent, kind: part.classList[1] }))"
    )
    return found


def run_both(page: Page, **fields: str) -> None:
    for name, value in fields.items():
        page.locator(f"#{name}").fill(value)
    page.get_by_role("button", name="Run both").click()
    expect(page.locator("#verdict")).to_contain_text("the target's speed")


def test_both_sides(server: Running, pair: Pair, open_page: Open) -> None:
    page = open_page(server)
    page.get_by_label("Completion").check()
    run_both(page, prompt="The little model", tokens="24")
    result = pair.generate("The little model", max_new_tokens=24, trace=True)
    alone, chosen = tokens(page, "alone"), tokens(page, "chosen")
    assert "".join(token["text"] for token in alone) == result.text
    assert "".join(token["text"] for token in chosen) == result.text
    assert {token["kind"] for token in alone} == {"target"}
    assert [token["kind"] for token in chosen] == [str(origin) for origin in result.origins]
    expect(page.locator("#verdict")).to_contain_text("Both texts are equal")
    expect(page.locator("#chosen [data-number=passes]")).to_have_text(
        str(result.stats.target_passes)
    )
    expect(page.locator("#chosen [data-number=acceptance]")).to_contain_text("%")
    assert result.rounds is not None
    expect(page.locator("#chosen .summary")).to_contain_text(f"{len(result.rounds)} rounds")
    assert page.locator("#chosen svg .kept").count() == sum(
        seen.accepted > 0 for seen in result.rounds
    )


def test_a_chat_and_a_difference(server: Running, pair: Pair, open_page: Open) -> None:
    page = open_page(server)
    page.locator("#policy").select_option("bild")
    assert page.locator("#string").input_value().startswith("bild:fallback=0.6,rollback=3")
    page.locator("#option-fallback").fill("0")
    page.locator("#option-rollback").fill("10")
    policy = page.locator("#string").input_value()
    assert policy.startswith("bild:fallback=0,rollback=10")
    run_both(page, prompt="Who writes?", tokens="24")
    messages: Any = [{"role": "user", "content": "Who writes?"}]
    result = pair.generate(messages, policy=policy, max_new_tokens=24)
    other = pair.generate(messages, policy="none", max_new_tokens=24)
    assert "".join(token["text"] for token in tokens(page, "chosen")) == result.text != other.text
    expect(page.locator("#verdict")).to_contain_text("The texts differ from token")
    assert page.locator(".differs").count() == 2
    expect(page.locator("#chosen-title")).to_contain_text("lossy")


def test_the_string_and_the_sliders_move_each_other(server: Running, open_page: Open) -> None:
    page = open_page(server)
    string, policy = page.locator("#string"), page.locator("#policy")
    string.fill("dynamic:threshold=0.7")
    expect(policy).to_have_value("dynamic")
    expect(page.locator("#option-threshold")).to_have_value("0.7")
    page.locator("#option-tokens").fill("7")
    expect(string).to_have_value("dynamic:threshold=0.7,tokens=7")
    string.fill("cost-aware:verify=1/1/1/2")
    page.locator("#option-draft").fill("0.2")
    expect(string).to_have_value("cost-aware:draft=0.2,verify=1/1/1/2")
    string.fill("static+bild:rollback=2")
    expect(policy).to_have_value("")
    expect(page.locator("#lossy")).to_be_visible()


def test_the_tooltip_by_keyboard_and_pointer(server: Running, open_page: Open) -> None:
    page = open_page(server)
    run_both(page, tokens="12")
    tip = page.get_by_role("tooltip")
    page.locator("#chosen .token").first.focus()
    expect(tip).to_contain_text("written by the target")
    page.keyboard.press("End")
    expect(page.locator("#chosen .token").last).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#chosen .token").nth(-2)).to_be_focused()
    expect(tip).to_contain_text("target's probability")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.locator("#chosen .token.accepted").first.hover()
    expect(tip).to_contain_text("accepted by the target")
    expect(tip).to_contain_text("draft's probability")


def test_by_keyboard_alone(server: Running, open_page: Open) -> None:
    page = open_page(server)
    page.locator("#prompt").focus()
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("() => document.activeElement.id"))
        if seen[-1] == "run":
            break
    assert seen[:3] == ["tokens", "temperature", "policy"]
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_contain_text("equal")


CANCEL_AT_ONCE = """() => new MutationObserver((_, observer) => {
    observer.disconnect();
    document.getElementById("cancel").click();
}).observe(document.querySelector("#alone .text"), { childList: true })"""
"""When the first token comes: a tiny model is done before a pointer gets there."""


def test_cancel_frees_the_row(pair: Pair, open_page: Open) -> None:
    with Running(make_service(pair, new_tokens=450)) as running:
        page = open_page(running)
        page.locator("#tokens").fill("400")
        page.evaluate(CANCEL_AT_ONCE)
        page.get_by_role("button", name="Run both").click()
        expect(page.locator("#verdict")).to_have_text("Cancelled.")
        scheduler = running.service.scheduler
        wait_for(lambda: scheduler.running + scheduler.waiting == 0)
        assert len(tokens(page, "alone")) < 400
        assert tokens(page, "chosen") == []
        expect(page.get_by_role("button", name="Run both")).to_be_enabled()


def test_lossy_policies_are_refused(pair: Pair, open_page: Open) -> None:
    with Running(make_service(pair)) as running:
        page = open_page(running)
        expect(page.locator("#policy option[value=bild]")).to_be_disabled()
        expect(page.locator("#lossy")).to_contain_text("--allow-lossy")
        page.locator("#string").fill("bild")
        page.get_by_role("button", name="Run both").click()
        assert page.locator("#string").evaluate("field => field.validity.customError")
        expect(page.locator("#verdict")).to_be_empty()


def test_what_the_server_refuses_is_told(server: Running, open_page: Open) -> None:
    page = open_page(server)
    page.locator("#string").fill("no-such-policy")
    page.locator("#tokens").fill("4")
    with page.expect_response(lambda answer: answer.status == 400):
        page.get_by_role("button", name="Run both").click()
    expect(page.locator("#chosen .state")).to_contain_text("unknown policy")
    expect(page.get_by_role("button", name="Run both")).to_be_enabled()


def test_a_body_that_is_too_large_is_told(pair: Pair, open_page: Open) -> None:
    with Running(make_service(pair, body_bytes=1000)) as running:
        page = open_page(running)
        page.locator("#prompt").fill("x" * 1000)
        page.get_by_role("button", name="Run both").click()
        expect(page.locator("#alone .state")).to_contain_text("larger than 1000 bytes")


def test_a_key_is_asked_for(pair: Pair, open_page: Open) -> None:
    with Running(make_service(pair), api_key=KEY) as running:
        page = open_page(running)
        field = page.get_by_label("This server wants an API key")
        field.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not the server's")
        field.fill(KEY)
        page.keyboard.press("Enter")
        run_both(page, tokens="8")
        page.reload()
        expect(page.get_by_role("button", name="Run both")).to_be_visible()


@pytest.mark.parametrize("width", [320, 390, 800])
def test_nothing_scrolls_sideways(server: Running, open_page: Open, width: int) -> None:
    page = open_page(server, width=width)
    run_both(page, tokens="40")
    for part in (page.locator("#chosen .token").first, page.locator("#chosen .token").last):
        part.focus()
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        box = page.get_by_role("tooltip").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert 0 <= box["y"] <= 800 - box["height"]


def test_the_tooltip_follows_a_window_that_shrinks(server: Running, open_page: Open) -> None:
    page = open_page(server)
    run_both(page, tokens="12")
    page.locator("#chosen .token").last.focus()
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("#chosen .token").first.focus()
    box = page.get_by_role("tooltip").bounding_box()
    assert box is not None
    assert box["width"] > 150
    assert 0 <= box["y"] <= 800 - box["height"]


def test_without_a_draft_there_is_one_side(alone: Pair, open_page: Open) -> None:
    with Running(make_service(alone)) as running:
        page = open_page(running)
        page.locator("#tokens").fill("8")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#verdict")).to_have_text("Done.")
        assert len(tokens(page, "alone")) == 8
        expect(page.locator("#chosen")).to_be_hidden()


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (...colours) => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(value => value / 255);
  };
  const light = colour => colour
    .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = part => {
    const found = [];
    for (let here = part; here; here = here.parentElement)
      found.unshift(getComputedStyle(here).backgroundColor);
    return found;
  };
  const said = [...document.querySelectorAll("body *")].filter(part =>
    part.checkVisibility() && !part.matches(":disabled, option, script, svg *") &&
    [...part.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  return said.map(part => {
    const under = behind(part);
    const [a, b] = [light(paint(...under, getComputedStyle(part).color)), light(paint(...under))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [part.id || part.className || part.tagName, ratio];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough(server: Running, open_page: Open, scheme: str) -> None:
    """4.5 to 1 for every text (WCAG 2.2 AA)."""
    page = open_page(server, color_scheme=scheme)
    run_both(page, tokens="24")
    page.locator("#chosen .token").first.focus()
    found = page.evaluate(CONTRASTS)
    assert len(found) > 40
    assert [pair for pair in found if pair[1] < 4.5] == []
