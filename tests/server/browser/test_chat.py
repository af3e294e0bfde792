"""Asking and answering, on the page."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from headrace.text.tokenizer import Tokenizer
from server.browser.answers import ERROR, LONG, SHORT
from server.browser.chromium import Tab
from server.running import Running, running
from server.scripted import scripted_engine


def idle(served: Running) -> bool:
    """Waits until the server runs nothing, and says whether all pages are free then."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        status = served.client.get("/status").json()
        if status["running"] == status["waiting"] == 0 and status["free_pages"] == status["pages"]:
            return True
    return False


def figures(tab: Tab) -> str:
    """What stands below the last answer."""
    return tab.page.locator(".figures").last.inner_text()


def test_an_answer_streams_and_its_figures_are_right(tab: Tab, served: Running) -> None:
    tab.page.click(".example >> nth=0")
    assert tab.answered() == "The wheel turns."
    path, body = tab.bodies[0]
    whole = served.post(f"/{path}", **(body | {"stream": False, "stream_options": None})).json()
    assert whole["choices"][0]["message"]["content"] == SHORT
    assert figures(tab).startswith(f"{whole['usage']['completion_tokens']} tokens ·")
    tab.ask("a long")
    tab.until("document.querySelector('.running .text')?.innerText.includes('word9')")
    seen = tab.page.locator(".running .text").inner_text()
    assert LONG.startswith(seen)
    assert len(seen) < len(LONG)
    assert served.client.get("/status").json()["running"] == 1
    assert tab.page.is_hidden("#send")
    assert tab.page.is_visible("#stop")
    assert tab.answered(2) == LONG
    assert tab.page.locator("#announce").inner_text() == LONG
    path, body = tab.bodies[-1]
    assert (path, body["model"], body["stream"]) == ("v1/chat/completions", "tiny", True)
    roles = [(message["role"], message["content"]) for message in body["messages"]]
    assert roles == [("user", "What is the capital of France?"), ("assistant", SHORT), ("user", "a long")]
    shown = re.match(r"\d+ tokens · ([\d.]+) tokens/s · first after [\d.]+ s", figures(tab))
    assert shown is not None, figures(tab)
    assert 0 < float(shown[1]) < 110  # a token takes at least 10 ms


@pytest.mark.parametrize("how", ["button", "key", "new chat"])
def test_stopping_frees_the_request_on_the_server(tab: Tab, served: Running, how: str) -> None:
    tab.ask("a long")
    tab.until("document.querySelector('.running .text')?.innerText.includes('word3')")
    if how == "key":
        tab.page.press("#input", "Escape")
    else:
        tab.page.click("#stop" if how == "button" else "#new")
    assert idle(served)
    assert tab.page.is_visible("#send")
    assert tab.page.is_hidden("#stop")
    assert tab.page.evaluate("document.activeElement.id") == "input"
    if how == "new chat":
        assert tab.page.is_visible("#empty")
        assert tab.page.locator("#messages > li").count() == 0
    else:
        kept = tab.answered()
        assert LONG.startswith(kept)
        assert "word3" in kept
        assert len(kept) < len(LONG)
        assert figures(tab).endswith("stopped")
    tab.ask("go on")
    assert tab.answered(1 if how == "new chat" else 2) == "The wheel turns."


def test_an_answer_can_be_asked_for_again(tab: Tab) -> None:
    tab.ask("one")
    tab.answered()
    tab.ask("two")
    tab.answered(2)
    assert tab.page.locator(".regenerate").count() == 1
    tab.page.click(".regenerate")
    assert tab.answered(2) == "The wheel turns."
    assert tab.bodies[-1] == tab.bodies[-2]


def test_keys(tab: Tab) -> None:
    tab.page.keyboard.type("one")  # the field has the focus from the start
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("two")
    assert tab.page.input_value("#input") == "one\ntwo"
    assert tab.bodies == []
    tab.page.keyboard.press("Enter")
    tab.answered()
    assert tab.bodies[-1][1]["messages"][-1]["content"] == "one\ntwo"
    assert tab.page.input_value("#input") == ""
    tab.page.keyboard.press("Enter")
    assert len(tab.bodies) == 1  # there is nothing to send
    tab.page.fill("#input", "漢")  # Enter that ends a composition does not send
    tab.page.evaluate(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true}))"
    )
    assert tab.page.input_value("#input") == "漢"
    assert len(tab.bodies) == 1
    tab.page.focus(".skip")
    order = []
    for _ in range(8):
        tab.page.keyboard.press("Tab")
        order.append(tab.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert order == ["new", "open-parameters", "open-status", "theme", "Copy", "Regenerate", "input", "send"]
    tab.page.focus(".skip")
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "input"


def test_parameters_are_sent_and_kept(tab: Tab) -> None:
    given = {"temperature": "0.5", "top_p": "0.9", "top_k": "40", "max_tokens": "3", "seed": "7"}
    tab.page.click("#open-parameters")
    tab.page.fill("#system", "Be brief.")
    for name, value in given.items():
        tab.page.fill(f"#{name}", value)
    tab.page.fill("#key", "secret")
    tab.page.press("#key", "Tab")
    tab.page.reload()
    assert tab.page.is_visible("#parameters")
    assert {name: tab.page.input_value(f"#{name}") for name in given} == given
    with tab.page.expect_request("**/v1/chat/completions") as asked:
        tab.ask("hello")
    assert asked.value.headers["authorization"] == "Bearer secret"
    tab.answered()
    assert figures(tab).startswith("3 tokens")
    assert figures(tab).endswith("token limit reached")
    body = tab.bodies[-1][1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {name: body[name] for name in given} == {name: json.loads(value) for name, value in given.items()}
    assert "secret" not in tab.page.evaluate("JSON.stringify(localStorage)")

    other = tab.open()  # the key belongs to its tab
    assert (other.input_value("#seed"), other.input_value("#key")) == ("7", "")
    tab.page.click("#defaults")
    tab.ask("hello")
    tab.answered(2)
    assert not {*given} & {*tab.bodies[-1][1]}
    assert tab.bodies[-1][1]["messages"][0]["role"] == "user"
    assert tab.page.evaluate("localStorage.getItem('headrace.parameters')") is None


def test_a_value_that_cannot_be_sent_is_named_at_its_field(tab: Tab) -> None:
    tab.page.click("#open-parameters")
    for name, bad, good in (
        ("temperature", "2.1", "2"),
        ("top_p", "1.01", "1"),
        ("max_tokens", "0", "1"),
        ("seed", "1.5", "1"),
    ):
        tab.page.fill(f"#{name}", bad)
        assert tab.page.locator(f"#{name}-error").inner_text().startswith("Must be a")
        assert tab.page.get_attribute(f"#{name}", "aria-invalid") == "true"
        tab.ask("hello")
        tab.page.locator(".failure").last.wait_for()
        assert tab.bodies == []
        tab.page.fill(f"#{name}", good)
        assert tab.page.locator(f"#{name}-error").inner_text() == ""
    tab.page.locator(".failure").last.get_by_role("button", name="Try again").click()
    tab.until("document.querySelector('.assistant:last-child .figures')?.innerText.startsWith('1 token ·')")
    assert [message["content"] for message in tab.bodies[-1][1]["messages"]] == ["hello"]


CHUNK = 'data: {"choices": [{"index": 0, "delta": {"content": "Half an"}, "finish_reason": null}]}\n\n'
EVENT = f"data: {json.dumps(ERROR)}\n\ndata: [DONE]\n\n"
FAILURES: dict[str, tuple[dict[str, Any] | None, str, str]] = {
    "401": ({"status": 401, "json": ERROR}, "wants an API key", "under Parameters"),
    "429": ({"status": 429, "json": ERROR, "headers": {"Retry-After": "7"}}, "what the server says", "in 7 seconds"),
    "503": ({"status": 503, "json": ERROR}, "what the server says", "in a moment"),
    "502": ({"status": 502, "body": "<h1>Bad gateway</h1>"}, "answered 502", "Try again"),
    "400": ({"status": 400, "json": ERROR}, "what the server says", "Change the message"),
    "broken": ({"body": CHUNK, "content_type": "text/event-stream"}, "broke off", "whole answer"),
    "event": ({"body": CHUNK + EVENT}, "what the server says", "whole answer"),
    "garbage": ({"body": CHUNK + "data: {nothing\n\n"}, "broke off", "whole answer"),
    "down": (None, "can’t be reached", "still running"),
}


def test_failures_say_what_happened_and_what_to_do(tab: Tab) -> None:
    current: dict[str, Any] | None = None

    def fail(route: Route) -> None:
        if current is None:
            route.abort()
        else:
            route.fulfill(**current)

    for number, (name, (answer, message, advice)) in enumerate(FAILURES.items(), 1):
        current = answer
        tab.page.route("**/v1/chat/completions", fail)
        tab.ask("hello")
        box = tab.page.get_by_role("alert")
        box.wait_for()
        assert message in box.locator("strong").inner_text(), name
        assert advice in box.inner_text(), name
        said = tab.page.locator(".assistant .text").last.inner_text()
        assert said == ("Half an" if name in ("broken", "event", "garbage") else ""), name
        tab.page.unroute("**/v1/chat/completions")
        if name == "401":
            box.get_by_role("button", name="Enter the API key").click()
            assert tab.page.evaluate("document.activeElement.id") == "key"
        box.get_by_role("button", name="Try again").click()
        assert tab.answered(number) == "The wheel turns.", name
        assert tab.bodies[-1] == tab.bodies[-2], name


def test_a_server_with_keys(browser: Browser, smol_tokenizer: Tokenizer) -> None:
    with running(scripted_engine(smol_tokenizer, SHORT), api_keys=("the-key",)) as locked:
        tab = Tab(browser, locked.url + "/")
        assert "wants an API key" in tab.page.locator("#empty").inner_text()
        assert tab.page.locator("#open-status .dot").get_attribute("data-state") == "locked"
        for key in ("", "another-key"):
            tab.page.evaluate("key => (document.getElementById('key').value = key)", key)
            tab.ask("hello")
            tab.page.get_by_role("alert").last.wait_for()
            assert "wants an API key" in tab.page.get_by_role("alert").last.inner_text()
        tab.page.get_by_role("button", name="Enter the API key").last.click()
        tab.page.keyboard.press("Control+A")
        tab.page.keyboard.type("the-key")
        tab.page.get_by_role("button", name="Try again").click()
        tab.until("document.querySelectorAll('.figures:not(:empty)').length === 1")
        assert tab.page.locator(".assistant .text").last.inner_text() == "The wheel turns."
        tab.until("document.getElementById('model').innerText === 'tiny'")
        tab.context.close()
        assert tab.problems == []


def test_questions_without_an_answer_are_not_sent_again(tab: Tab) -> None:
    tab.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, json=ERROR))
    tab.ask("lost")
    tab.page.get_by_role("alert").wait_for()
    tab.page.unroute("**/v1/chat/completions")
    tab.ask("found")
    tab.until("document.querySelectorAll('.figures').length === 2")
    tab.answered(2)
    assert [message["content"] for message in tab.bodies[-1][1]["messages"]] == ["found"]


def test_a_model_without_a_template_continues_the_text(tab: Tab, served: Running) -> None:
    status = served.client.get("/status").json()
    tab.page.route("**/status", lambda route: route.fulfill(json=status | {"chat": False}))
    tab.page.reload()
    tab.until("document.getElementById('empty-note').innerText.includes('no chat template')")
    tab.ask("The river")
    assert tab.answered() == "The wheel turns."
    tab.ask("and then")
    assert tab.answered(2) == "The wheel turns."
    path, body = tab.bodies[-1]
    assert (path, body["prompt"]) == ("v1/completions", f"The river{SHORT}\nand then")
    assert body["max_tokens"] > 16
