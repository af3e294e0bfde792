"""How the page looks: themes, contrast, narrow windows; and what a screen reader is told."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page

from server.browser.chromium import Tab
from server.running import Running

COLORS = """element => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const over = (color) => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].join();
    };
    const chain = [];
    for (let each = element; each; each = each.parentElement) chain.unshift(getComputedStyle(each).backgroundColor);
    let ground = over("white");
    for (const color of chain) ground = over(color);
    return [over(getComputedStyle(element).color), ground];
}"""
DISTANCE = """() => {
    const box = document.getElementById("scroll");
    return box.scrollHeight - box.scrollTop - box.clientHeight;
}"""


def text_color(page: Page, selector: str) -> tuple[float, float]:
    """Relative luminances, by WCAG's formula, of an element's text and of what is behind it."""
    colors: list[str] = page.locator(selector).first.evaluate(COLORS)

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color.split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    return luminance(colors[0]), luminance(colors[1])


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
    chat = [
        ".user .text",
        ".assistant p",
        ".assistant p code",
        "pre code",
        ".bar span",
        ".code button",
        ".figures",
        ".regenerate",
    ]
    panels = [
        ".panel label",
        ".panel input",
        ".note",
        "#defaults",
        "dt",
        ".tiles b",
        ".tiles small",
        ".rows dd",
        "#state",
    ]
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
        roles = ("button", "textbox", "spinbutton", "switch")
        controls = [node for node in shown if node["role"]["value"] in roles]
        assert len(controls) > 8
        assert [node for node in controls if not node["name"]["value"]] == []
        landmarks = {
            node["role"]["value"]: node["name"]["value"]
            for node in shown
            if node["role"]["value"] in ("main", "banner", "complementary")
        }
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
    assert tab.page.is_hidden("#status")
    assert tab.page.evaluate("document.activeElement.id") == "open-status"
    for control in ("#new", "#open-parameters", "#open-status", "#theme", "#send"):
        box = tab.page.locator(control).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        assert min(box["width"], box["height"]) >= 24  # WCAG 2.2, 2.5.8
    tab.context.close()
    assert tab.problems == []


def test_the_view_follows_an_answer_unless_somebody_reads_above(browser: Browser, served: Running) -> None:
    tab = Tab(browser, served.url + "/", width=400, height=400)
    tab.ask("a long")
    tab.until("document.querySelector('.running .text')?.innerText.includes('word40')")
    tab.until(f"({DISTANCE})() < 5")
    tab.page.locator("#scroll").evaluate("element => element.scrollTop = 0")
    tab.answered()
    assert tab.page.locator("#scroll").evaluate("element => element.scrollTop") == 0
    tab.context.close()
