"""The page in a real browser against a real server, whose engine says what it is told."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from headrace.text.tokenizer import Tokenizer
from server.chromium import Tab, chromium
from server.running import Running, running
from server.scripted import scripted_engine

SHORT = "The *wheel* turns."
LONG = " ".join(f"word{i}" for i in range(150))
MARKDOWN = """# Mills

The **headrace** leads to `a < b` and *on*.

1. first
   - inner
2. second

```python
if a < b and *c*:
    print("<b>")
```

3 * 4 * 5 and snake_case_name, 2 ** 3"""
ATTACK = """<img src=x onerror="window.hit=1"><script>window.hit=1</script>
[link](javascript:window.hit=1) <a href="javascript:window.hit=1">a</a>

- <svg onload="window.hit=1">**<iframe srcdoc="<script>parent.hit=1</script>">**

`<b onclick=window.hit=1>`

```<img/src=x/onerror=window.hit=1>
</code></pre><script>window.hit=1</script>
```
"""
WIDE = f"{'wide' * 60}\n\n```\n{'code ' * 60}\n```\n\n- {'item' * 50}\n\n`{'inline' * 40}`"
ANSWERS = {"long": LONG, "markdown": MARKDOWN, "attack": ATTACK, "wide": WIDE}


class Slowly(list[int]):
    """Tokens of which each takes 10 ms."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(0.01)
        return super().__getitem__(index)


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
    """One browser for all."""
    with chromium() as one:
        yield one


@pytest.fixture
def tab(browser: Browser, served: Running) -> Iterator[Tab]:
    """The page in a profile of its own. Whatever a test does, nothing may go wrong in it."""
    one = Tab(browser, served.url + "/")
    yield one
    one.context.close()
    assert one.problems == []


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


def text_color(page: Page, selector: str) -> tuple[float, float]:
    """Relative luminances, by WCAG's formula, of an element's text and of what is behind it."""
    colors: list[str] = page.locator(selector).first.evaluate("""element => {
        const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        const opaque = (color) => { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data].join(); };
        const chain = [];
        for (let each = element; each; each = each.parentElement) chain.unshift(getComputedStyle(each).backgroundColor);
        canvas.fillStyle = "white"; canvas.fillRect(0, 0, 1, 1);
        let ground = "";
        for (const color of chain) ground = opaque(color);
        return [opaque(getComputedStyle(element).color), ground];
    }""")

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    return luminance(colors[0]), luminance(colors[1])


def test_an_answer_streams_and_its_figures_are_right(tab: Tab, served: Running) -> None:
    tab.page.click(".example >> nth=0")
    assert tab.answered() == "The wheel turns."
    tab.ask("a long")
    tab.until("document.querySelector('.running .text')?.innerText.includes('word9')")
    seen = tab.page.locator(".running .text").inner_text()
    assert LONG.startswith(seen) and len(seen) < len(LONG)
    assert served.client.get("/status").json()["running"] == 1
    assert tab.page.is_hidden("#send") and tab.page.is_visible("#stop")
    assert tab.answered(2) == LONG
    assert tab.page.locator("#announce").inner_text() == LONG
    path, body = tab.bodies[-1]
    assert (path, body["model"], body["stream"]) == ("v1/chat/completions", "tiny", True)
    roles = [(message["role"], message["content"]) for message in body["messages"]]
    assert roles == [("user", "What is the capital of France?"), ("assistant", SHORT), ("user", "a long")]
    whole = served.post(f"/{path}", **(body | {"stream": False, "stream_options": None})).json()
    assert whole["choices"][0]["message"]["content"] == LONG
    shown = re.match(r"(\d+) tokens · ([\d.]+) tokens/s · first after ([\d.]+) s", figures(tab))
    assert shown is not None, figures(tab)
    assert int(shown[1]) == whole["usage"]["completion_tokens"]
    assert 0 < float(shown[2]) < 110  # a token takes at least 10 ms


@pytest.mark.parametrize("how", ["button", "key", "new chat"])
def test_stopping_frees_the_request_on_the_server(tab: Tab, served: Running, how: str) -> None:
    tab.ask("a long")
    tab.until("document.querySelector('.running .text')?.innerText.includes('word3')")
    if how == "key":
        tab.page.press("#input", "Escape")
    else:
        tab.page.click("#stop" if how == "button" else "#new")
    assert idle(served)
    assert tab.page.is_visible("#send") and tab.page.is_hidden("#stop")
    assert tab.page.evaluate("document.activeElement.id") == "input"
    if how == "new chat":
        assert tab.page.is_visible("#empty") and tab.page.locator("#messages > li").count() == 0
    else:
        kept = tab.answered()
        assert LONG.startswith(kept) and "word3" in kept and len(kept) < len(LONG)
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


def test_markdown_becomes_elements(tab: Tab) -> None:
    tab.ask("some markdown")
    tab.answered()
    body = tab.page.locator(".assistant .text")
    assert body.locator("h3").inner_text() == "Mills"
    assert body.locator("p strong").all_inner_texts() == ["headrace"]
    assert body.locator("p code").all_inner_texts() == ["a < b"]
    assert body.locator("em").all_inner_texts() == ["on"]
    assert body.locator(".list > ol > li > span").all_inner_texts() == ["first", "second"]
    assert body.locator("ol > li:first-child > ul > li").all_inner_texts() == ["inner"]
    assert body.locator("pre code").text_content() == 'if a < b and *c*:\n    print("<b>")'
    assert body.locator(".bar span").inner_text() == "python"
    assert body.locator(":scope > p").last.inner_text() == "3 * 4 * 5 and snake_case_name, 2 ** 3"


def test_markdown_of_hostile_length_is_quick(tab: Tab) -> None:
    # Not timed: what is not linear would run into the test's own limits. 400,000 marks without partners.
    pieces = ["*a ", "**a ", "`" * 3 + "a`", "_", "* ", "`a` ", "- a\n  ", "***a"]
    lengths = tab.page.evaluate(
        """async (texts) => {
            const { MarkdownView } = await import("./page/markdown.js");
            const root = document.createElement("div");
            return texts.map((text) => { new MarkdownView(root).update(text); return root.textContent.length; });
        }""",
        [piece * 50_000 for piece in pieces],
    )
    assert all(lengths)


def test_what_a_model_says_is_never_markup(tab: Tab) -> None:
    tab.ask(f"{ATTACK} attack")
    tab.answered()
    said, asked = tab.page.locator(".assistant .text"), tab.page.locator(".user .text")
    for dangerous in ("img", "script", "a", "svg", "iframe", "b", "[onerror]", "[onclick]", "[href]", "[src]"):
        assert said.locator(dangerous).count() == asked.locator(dangerous).count() == 0
    assert '<img src=x onerror="window.hit=1"><script>window.hit=1</script>' in said.inner_text()
    assert "</code></pre><script>window.hit=1</script>" in said.locator("pre").inner_text()
    assert asked.text_content() == f"{ATTACK} attack".strip()
    assert tab.page.evaluate("window.hit") is None
    # Nor could it become any by a mistake: the page's policy forbids that.
    refused = tab.page.evaluate("""() => {
        try { document.createElement("p").innerHTML = "<b>x</b>"; return ""; } catch (error) { return error.name; }
    }""")
    assert refused == "TypeError"
    tab.problems.clear()  # which it has said on the console


def test_keys(tab: Tab) -> None:
    tab.page.keyboard.type("one")  # the field has the focus from the start
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("two")
    assert tab.page.input_value("#input") == "one\ntwo" and tab.bodies == []
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
    assert tab.page.input_value("#input") == "漢" and len(tab.bodies) == 1
    tab.page.evaluate("document.activeElement.blur()")
    order = []
    for _ in range(9):
        tab.page.keyboard.press("Tab")
        order.append(tab.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert order[:5] == ["To the message field", "new", "open-parameters", "open-status", "theme"]
    assert order[-4:] == ["Copy", "Regenerate", "input", "send"]


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
    assert figures(tab).startswith("3 tokens") and figures(tab).endswith("ended at the limit of tokens")
    body = tab.bodies[-1][1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {name: body[name] for name in given} == {name: json.loads(value) for name, value in given.items()}
    assert "secret" not in tab.page.evaluate("JSON.stringify(localStorage)")

    other = tab.open()  # the key belongs to its tab
    assert (other.input_value("#seed"), other.input_value("#key")) == ("7", "")
    tab.page.click("#defaults")
    tab.ask("hello")
    tab.answered(2)
    assert not {*given} & {*tab.bodies[-1][1]} and tab.bodies[-1][1]["messages"][0]["role"] == "user"
    assert tab.page.evaluate("localStorage.getItem('headrace.parameters')") is None


def test_a_value_that_cannot_be_sent_is_named_at_its_field(tab: Tab) -> None:
    tab.page.click("#open-parameters")
    for name, bad, good in (("temperature", "2.1", "2"), ("top_p", "1.01", "1"), ("max_tokens", "0", "1"), ("seed", "1.5", "1")):
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


ERROR = {"error": {"message": "what the server says", "type": "x", "param": None, "code": None}}
CHUNK = 'data: {"choices": [{"index": 0, "delta": {"content": "Half an"}, "finish_reason": null}]}\n\n'
FAILURES: dict[str, tuple[dict[str, Any] | None, str, str]] = {
    "401": ({"status": 401, "json": ERROR}, "wants an API key", "under Parameters"),
    "429": ({"status": 429, "json": ERROR, "headers": {"Retry-After": "7"}}, "what the server says", "in 7 seconds"),
    "503": ({"status": 503, "json": ERROR}, "what the server says", "in a moment"),
    "502": ({"status": 502, "body": "<h1>Bad gateway</h1>"}, "answered 502", "Try again"),
    "400": ({"status": 400, "json": ERROR}, "what the server says", "Change the message"),
    "broken": ({"body": CHUNK, "content_type": "text/event-stream"}, "broke off", "whole answer"),
    "event": ({"body": f"{CHUNK}data: {json.dumps(ERROR)}\n\ndata: [DONE]\n\n"}, "what the server says", "in a moment"),
    "garbage": ({"body": CHUNK + "data: {nothing\n\n"}, "broke off", "whole answer"),
    "down": (None, "can’t be reached", "still running"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_say_what_happened_and_what_to_do(tab: Tab, name: str) -> None:
    answer, message, advice = FAILURES[name]

    def fail(route: Route) -> None:
        if answer is None:
            route.abort()
        else:
            route.fulfill(**answer)

    tab.page.route("**/v1/chat/completions", fail)
    tab.ask("hello")
    box = tab.page.get_by_role("alert")
    box.wait_for()
    assert message in box.locator("strong").inner_text()
    assert advice in box.inner_text()
    assert tab.page.locator(".assistant .text").inner_text() == ("Half an" if "Half" in str(answer) else "")
    tab.page.unroute("**/v1/chat/completions")
    if name == "401":
        box.get_by_role("button", name="Enter the API key").click()
        assert tab.page.evaluate("document.activeElement.id") == "key"
    box.get_by_role("button", name="Try again").click()
    assert tab.answered() == "The wheel turns."
    assert tab.bodies[-1] == tab.bodies[0]


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
    assert (path, body["prompt"]) == ("v1/completions", f"The river\n{SHORT}\nand then")
    assert body["max_tokens"] > 16


@pytest.mark.parametrize("dark", [False, True])
def test_the_theme_follows_the_system_until_it_is_switched(browser: Browser, served: Running, dark: bool) -> None:
    tab = Tab(browser, served.url + "/", dark=dark)
    is_dark = lambda: text_color(tab.page, "h1")[1] < 0.1  # noqa: E731
    assert is_dark() is dark
    tab.page.emulate_media(color_scheme="light" if dark else "dark")
    assert is_dark() is not dark
    tab.page.emulate_media(color_scheme="dark" if dark else "light")
    tab.page.get_by_role("switch", name="Dark theme", checked=dark).click()
    assert is_dark() is not dark
    tab.page.reload()
    assert is_dark() is not dark
    tab.page.get_by_role("switch", name="Dark theme", checked=not dark).click()
    assert is_dark() is dark
    assert tab.page.evaluate("localStorage.getItem('headrace.theme')") is None
    tab.context.close()
    assert tab.problems == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_the_contrast_of_level_aa(browser: Browser, served: Running, dark: bool) -> None:
    tab = Tab(browser, served.url + "/", dark=dark)
    texts = ["h1", "#model", "#open-status", ".empty h2", ".empty p", ".example", ".keys"]
    chat = [".user .text", ".assistant p", ".assistant p code", "pre code", ".bar span", ".code button", ".figures", ".regenerate"]
    panels = [".panel label", ".panel input", ".note", "#defaults", "dt", ".tiles b", ".tiles small", ".rows dd", "#state"]
    failure = [".failure strong", ".failure p >> nth=1", ".failure button", ".error >> nth=0"]
    contrasts = {}

    def measure(selectors: list[str]) -> None:
        for selector in selectors:
            light, other = sorted(text_color(tab.page, selector), reverse=True)
            contrasts[selector] = (light + 0.05) / (other + 0.05)

    measure(texts)
    tab.ask("some markdown")
    tab.answered()
    measure(chat)
    tab.page.click("#open-parameters")
    tab.page.fill("#temperature", "9")
    tab.ask("hello")
    tab.page.locator(".failure").wait_for()
    measure([*panels, *failure])
    tab.context.close()
    assert {selector: ratio for selector, ratio in contrasts.items() if ratio < 4.5} == {}


def test_every_control_has_a_name(tab: Tab) -> None:
    tab.ask("some markdown")
    tab.answered()
    session = tab.context.new_cdp_session(tab.page)
    for panel in ("parameters", "status"):
        tab.page.click(f"#open-{panel}")
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        shown = [node for node in nodes if not node["ignored"]]
        roles = ("button", "textbox", "spinbutton", "switch", "complementary", "list", "group")
        controls = [node for node in shown if node["role"]["value"] in roles[:4]]
        assert len(controls) > 8
        assert [node for node in controls if not node["name"]["value"]] == []
        landmarks = {node["role"]["value"]: node["name"]["value"] for node in shown if node["role"]["value"] in ("main", "banner", "complementary")}
        assert landmarks == {"banner": "", "main": "", "complementary": panel.capitalize()}


def test_a_narrow_window_never_scrolls_sideways(browser: Browser, served: Running) -> None:
    tab = Tab(browser, served.url + "/", width=360, height=640)
    fits = "document.documentElement.scrollWidth <= 360 && document.getElementById('scroll').scrollWidth <= 360"
    assert tab.page.evaluate(fits)
    tab.ask(f"{'question' * 20} wide")
    tab.answered()
    assert tab.page.evaluate(fits)
    assert tab.page.locator("pre").evaluate("element => element.scrollWidth > element.clientWidth")
    for panel in ("parameters", "status"):
        tab.page.click(f"#open-{panel}")
        assert tab.page.evaluate(fits)
        assert tab.page.locator(f"#{panel}").bounding_box()["width"] == 360  # type: ignore[index]
        assert tab.page.locator("#main").evaluate("element => element.inert")
    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#status") and tab.page.evaluate("document.activeElement.id") == "open-status"
    for control in ("#new", "#open-parameters", "#open-status", "#theme", "#send"):
        box = tab.page.locator(control).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360
        assert min(box["width"], box["height"]) >= 24  # WCAG 2.2, 2.5.8
    tab.context.close()
    assert tab.problems == []


def test_the_view_follows_an_answer_unless_somebody_reads_above(browser: Browser, served: Running) -> None:
    tab = Tab(browser, served.url + "/", width=400, height=400)
    distance = "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)(document.getElementById('scroll'))"
    tab.ask("a long")
    tab.until("document.querySelector('.running .text')?.innerText.includes('word40')")
    tab.until(f"{distance} < 5")
    tab.page.locator("#scroll").evaluate("element => element.scrollTop = 0")
    tab.answered()
    assert tab.page.locator("#scroll").evaluate("element => element.scrollTop") == 0
    tab.context.close()


def test_status_shows_what_the_server_says(tab: Tab) -> None:
    page = tab.page
    says = {"model": "m", "version": "9.8", "state": "serving", "chat": True, "context": 512, "uptime_seconds": 90061.0, "running": 3, "max_running": 8, "waiting": 2, "pages": 1000, "free_pages": 750, "page_size": 16, "steps": 100, "step_seconds": 2.0, "output_tokens": 5000, "computed_tokens": 0, "prefix_queried_tokens": 400, "prefix_hit_tokens": 100, "preemptions": 4, "compilations": 0}  # fmt: skip
    polls = 0

    def answer(route: Route) -> None:
        nonlocal polls
        polls += 1
        # In half a second of the server's time 10 steps of 25 ms, which gave 60 tokens.
        rising = {"uptime_seconds": 0.5, "steps": 10, "step_seconds": 0.25, "output_tokens": 60}
        route.fulfill(json=says | {name: says[name] + polls * by for name, by in rising.items()})

    page.route("**/status", answer)
    page.click("#open-status")
    tab.until("document.getElementById('step-time').innerText !== '–'")
    shown = {id_: page.locator(f"#{id_}").inner_text() for id_ in ("state", "running", "running-of", "waiting", "pages", "pages-of", "tokens-per-second", "step-time", "busy", "prefix", "preemptions", "compilations", "version", "uptime")}  # fmt: skip
    assert shown == {"state": "Serving", "running": "3", "running-of": "of 8 at once", "waiting": "2", "pages": "25.0 %", "pages-of": "250 of 1,000 pages", "tokens-per-second": "120", "step-time": "25.0 ms", "busy": "50.0 %", "prefix": "25.0 %", "preemptions": "4", "compilations": "0", "version": "9.8", "uptime": "1 d 1 h"}  # fmt: skip
    assert page.locator("#pages-bar").evaluate("element => element.style.width") == "25%"
    for state, words in (("draining", "Draining"), ("dead", "Engine failed"), ("paused", "Paused")):
        says["state"] = state
        tab.until(f"document.getElementById('state').innerText.startsWith('{words}')")
        assert page.locator("#open-status .dot").get_attribute("data-state") == state
    page.unroute("**/status")
    page.route("**/status", lambda route: route.abort())
    tab.until("document.getElementById('state').innerText === 'Not reachable'")
    page.unroute("**/status")
    page.route("**/status", lambda route: route.fulfill(status=401, json=ERROR))
    tab.until("document.getElementById('state').innerText === 'Needs an API key'")


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
    tab.page.wait_for_timeout(1500)
    assert asked == []
    with tab.page.expect_request("**/status"):
        tab.page.evaluate(hide, False)
