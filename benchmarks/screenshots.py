"""The playground's pictures in docs/images/, of a server that runs.

    biglittle serve --allow-lossy                # in another terminal
    python -m benchmarks.screenshots http://127.0.0.1:8000

Needs Playwright and a Chromium of the system's own, as the page's tests do.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer
from playwright.sync_api import Browser, Page, expect, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PROMPT = "Write a Python function that says whether a year is a leap year."
MOST = 200_000  # bytes of a picture
SECONDS = 900


def run(browser: Browser, address: str, policy: str) -> Page:
    """The page after both sides have written."""
    page = browser.new_page()
    page.goto(address)
    page.locator("#prompt").fill(PROMPT)
    page.locator("#string").fill(policy)
    page.get_by_role("button", name="Run both").click()
    expect(page.locator("#verdict")).to_contain_text("the target's speed", timeout=1000 * SECONDS)
    return page


def show(page: Page, width: int, scheme: Literal["light", "dark"]) -> None:
    """Make it so wide, in these colours, with a token's tooltip open."""
    page.mouse.move(0, 0)
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.locator("body" if width > 1000 else "#chosen").evaluate("part => part.scrollIntoView()")
    page.locator("#chosen .token.accepted").nth(12).hover()


def save(page: Page, path: Path) -> None:
    """Take a picture of what is to be seen."""
    page.screenshot(path=path)
    size = path.stat().st_size
    if size > MOST:
        raise typer.BadParameter(f"{path} has {size:,} bytes: too many for the documentation")
    print(f"{path}: {size:,} bytes")


def main(
    address: Annotated[str, typer.Argument(help="Where the server is.")] = "http://127.0.0.1:8000",
    policy: Annotated[str, typer.Option(help="Beside the target.")] = "dynamic:threshold=0.6",
) -> None:
    """Make the pictures."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise typer.BadParameter("there is no Chromium here; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        page = run(browser, address, policy)
        show(page, 1360, "light")
        save(page, IMAGES / "playground.png")
        show(page, 390, "dark")
        save(page, IMAGES / "playground-phone.png")
        browser.close()


if __name__ == "__main__":
    typer.run(main)
