"""The playground's pictures in docs/images/, of a server that runs.

    biglittle serve --allow-lossy                # in another terminal
    python -m benchmarks.screenshots http://127.0.0.1:8000

Needs Playwright and a Chromium of the system's own, as the page's tests do.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from playwright.sync_api import Browser, Page, expect, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PROMPT = "Write a Python function that says whether a year is a leap year."
MOST = 200_000  # bytes of a picture
SECONDS = 900


def show(browser: Browser, address: str, width: int, scheme: str, policy: str) -> Page:
    """The page after both sides have written, a token's tooltip open."""
    page = browser.new_page(
        viewport={"width": width, "height": 860},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page.goto(address)
    page.locator("#prompt").fill(PROMPT)
    page.locator("#string").fill(policy)
    page.get_by_role("button", name="Run both").click()
    expect(page.locator("#verdict")).to_contain_text("the target's speed", timeout=1000 * SECONDS)
    page.evaluate("() => scrollTo(0, 0)")
    page.locator("#chosen .token.accepted").nth(12).hover()
    return page


def save(page: Page, path: Path) -> None:
    """Take a picture of the whole page."""
    page.screenshot(path=path, full_page=True)
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
        save(show(browser, address, 1360, "light", policy), IMAGES / "playground.png")
        save(show(browser, address, 390, "dark", policy), IMAGES / "playground-phone.png")
        browser.close()


if __name__ == "__main__":
    typer.run(main)
