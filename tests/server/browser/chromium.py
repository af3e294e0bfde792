"""A headless Chromium for tests of the page: the one that HEADRACE_CHROMIUM names, that `make` has fetched, or that is
installed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

FETCHED = Path(__file__).parents[3] / ".venv" / "chromium"
INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> Path:
    """The program; skips where there is none."""
    given = os.environ.get("HEADRACE_CHROMIUM")
    if given:
        return Path(given)
    if (FETCHED / "chromium").exists():
        return FETCHED / "chromium"
    for name in INSTALLED:
        if found := shutil.which(name):
            return Path(found)
    pytest.skip("no Chromium: `make page-test` fetches one, or set HEADRACE_CHROMIUM to an installed one")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser."""
    program = find_chromium()
    environment = dict(os.environ)
    if (program.parent / "lib").is_dir():  # the libraries and the font that came with it
        environment["LD_LIBRARY_PATH"] = str(program.parent / "lib")
        if not Path("/etc/fonts/fonts.conf").exists():
            environment["FONTCONFIG_FILE"] = str(program.parent / "fonts.conf")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, env=environment)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """The page in a fresh profile, and all that went wrong in it.

    Attributes:
        page: what Playwright drives.
        problems: errors on the console, exceptions, and requests that went elsewhere.
        bodies: of the requests for answers, as (path, JSON).
    """

    def __init__(self, browser: Browser, url: str, *, width: int = 1200, height: int = 800, dark: bool = False) -> None:
        scheme = "dark" if dark else "light"
        self.url = url
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.context.set_default_timeout(30_000)
        self.problems: list[str] = []
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.page = self.open()

    def open(self) -> Page:
        """One more tab of this profile."""
        page = self.context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._asked)
        page.goto(self.url)
        page.locator("#open-status .dot[data-state]").wait_for()
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        # Chromium itself notes each answer of 400 and above; that is no error of the page.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self.url):
            self.problems.append(request.url)
        if request.method == "POST":
            self.bodies.append((request.url.removeprefix(self.url), request.post_data_json))

    def until(self, expression: str) -> None:
        """Waits until something is true in the page, whose policy forbids Playwright's own way to do so."""
        deadline = time.monotonic() + 30
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            self.page.wait_for_timeout(10)

    def ask(self, text: str) -> None:
        """Writes a message and presses Enter."""
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def answered(self, count: int = 1) -> str:
        """Waits for the end of that many answers and returns the text of the last."""
        self.until(f"document.querySelectorAll('.assistant:not(.running)').length === {count}")
        return self.page.locator(".assistant .text").last.inner_text()
