"""The status view."""

from __future__ import annotations

from playwright.sync_api import Route

from server.browser.answers import ERROR
from server.browser.chromium import Tab

LOOK = "() => document.dispatchEvent(new Event('visibilitychange'))"  # makes the page ask at once


SAYS = {
    "model": "m",
    "version": "9.8",
    "state": "serving",
    "chat": True,
    "context": 512,
    "uptime_seconds": 90061.0,
    "running": 3,
    "max_running": 8,
    "waiting": 2,
    "pages": 1000,
    "free_pages": 750,
    "steps": 100,
    "step_seconds": 2.0,
    "output_tokens": 5000,
    "prefix_queried_tokens": 400,
    "prefix_hit_tokens": 100,
    "preemptions": 4,
    "compilations": 0,
}
# Each time that it is asked: in half a second of the server's time 10 steps of 25 ms, which gave 60 tokens.
RISING = {"uptime_seconds": 0.5, "steps": 10, "step_seconds": 0.25, "output_tokens": 60}
SHOWN = {
    "state": "Serving",
    "running": "3",
    "running-of": "of 8 at once",
    "waiting": "2",
    "pages": "25.0 %",
    "pages-of": "250 of 1,000 pages",
    "tokens-per-second": "120",
    "step-time": "25.0 ms",
    "busy": "50.0 %",
    "prefix": "25.0 %",
    "preemptions": "4",
    "compilations": "0",
    "version": "9.8",
    "uptime": "1 d 1 h",
}


def test_status_shows_what_the_server_says(tab: Tab) -> None:
    page, says, polls = tab.page, dict(SAYS), 0

    def answer(route: Route) -> None:
        nonlocal polls
        polls += 1
        route.fulfill(json=says | {name: SAYS[name] + polls * by for name, by in RISING.items()})

    page.route("**/status", answer)
    page.click("#open-status")
    tab.until("document.getElementById('step-time').innerText !== '–'")
    assert {name: page.locator(f"#{name}").inner_text() for name in SHOWN} == SHOWN
    assert page.locator("#pages-bar").evaluate("element => element.style.width") == "25%"
    states = {"draining": "Draining: takes no new requests", "dead": "Engine failed", "paused": "Paused"}
    for state, words in states.items():
        says["state"] = state
        tab.page.evaluate(LOOK)
        tab.until(f"document.getElementById('state').innerText === '{words}'")
        assert page.locator("#open-status .dot").get_attribute("data-state") == state
    page.unroute("**/status")
    page.route("**/status", lambda route: route.abort())
    tab.page.evaluate(LOOK)
    tab.until("document.getElementById('state').innerText === 'Not reachable'")
    page.unroute("**/status")
    page.route("**/status", lambda route: route.fulfill(status=401, json=ERROR))
    tab.page.evaluate(LOOK)
    tab.until("document.getElementById('state').innerText === 'Needs an API key'")
    assert "wants an API key" in page.locator("#empty").inner_text()


def test_status_is_not_asked_for_while_nobody_looks(tab: Tab) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    tab.page.click("#open-status")
    with tab.page.expect_request("**/status"):
        pass
    tab.page.evaluate(hide, True)
    asked.clear()
    tab.page.wait_for_timeout(1200)
    assert asked == []
    with tab.page.expect_request("**/status"):
        tab.page.evaluate(hide, False)
