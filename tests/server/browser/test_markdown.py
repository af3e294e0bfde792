"""What a model says, as elements: Markdown, and nothing else."""

from __future__ import annotations

from server.browser.answers import ATTACK
from server.browser.chromium import Tab


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
