"""Takes the pictures of the page in docs/page: PYTHONPATH=tests python tools/page_screenshots.py URL.

The URL is that of a running server of SmolLM2, whose answers are the same each time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from server.browser.chromium import Tab, chromium

FOLDER = Path(__file__).parents[1] / "docs" / "page"
QUESTION = "Explain in three points how a water mill works."


def ask(tab: Tab, text: str) -> None:
    """Asks with parameters that give the same answer each time."""
    tab.page.evaluate(
        "localStorage.setItem('headrace.parameters', JSON.stringify({temperature: '0', max_tokens: '220'}))"
    )
    tab.page.reload()
    tab.page.locator("#model:not(:empty)").wait_for()
    tab.ask(text)


def main() -> None:
    """Writes them all."""
    FOLDER.mkdir(exist_ok=True)
    url = sys.argv[1].rstrip("/") + "/"
    with chromium() as browser:

        def tab(**options: int | bool) -> Tab:
            return Tab(browser, url, **{"width": 1100, "height": 720, **options})  # type: ignore[arg-type]

        one = tab()
        one.page.screenshot(path=FOLDER / "empty.png")
        ask(one, QUESTION)
        one.until("document.querySelector('.running .text')?.innerText.length > 300")
        one.page.screenshot(path=FOLDER / "streaming.png")
        one.answered()
        one.page.screenshot(path=FOLDER / "answer.png")
        one = tab(dark=True)
        one.page.click("#open-status")
        ask(one, QUESTION)
        for other in (tab(), tab()):
            ask(other, "Write a long story about a river.")
        one.page.bring_to_front()
        one.page.wait_for_timeout(5500)
        one.page.screenshot(path=FOLDER / "status.png")
        one = tab(width=360, height=680)
        ask(one, "What is the capital of France?")
        one.answered()
        one.page.screenshot(path=FOLDER / "narrow.png")
        one.page.click("#open-parameters")
        one.page.screenshot(path=FOLDER / "narrow-parameters.png")


if __name__ == "__main__":
    main()
