"""A server that says what it is told, and a browser that shows its page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from headrace.text.tokenizer import Tokenizer
from server.browser.answers import ANSWERS, LONG, SHORT, Slowly
from server.browser.chromium import Tab, chromium
from server.running import Running, running
from server.scripted import scripted_engine


@pytest.fixture(scope="module")
def served(smol_tokenizer: Tokenizer) -> Iterator[Running]:
    """Answers a question whose last word is in `ANSWERS` with that, slowly if it is long; others with `SHORT`."""

    def answer(prompt: list[int]) -> str | list[int]:
        question = smol_tokenizer.decode(prompt, skip_special=False).split("user\n")[-1].split("<|im_end|>")[0].split()
        text = ANSWERS.get(question[-1], SHORT)
        return Slowly(smol_tokenizer.encode(text, add_bos=False)) if text is LONG else text

    with running(scripted_engine(smol_tokenizer, answer)) as one:
        yield one


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for a module. Not for the session: Playwright keeps an event loop in this thread."""
    with chromium() as one:
        yield one


@pytest.fixture
def tab(browser: Browser, served: Running) -> Iterator[Tab]:
    """The page in a profile of its own. Whatever a test does, nothing may go wrong in it."""
    one = Tab(browser, served.url + "/")
    yield one
    one.context.close()
    assert one.problems == []
