"""Calls in a model's text, however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.text.tools.calls import Arguments, CallStart, Piece, ToolParser
from headrace.text.tools.formats import TOOL_FORMATS, tool_format
from headrace.text.tools.named import NamedParser

NAMES = frozenset({"note", "add"})
NASTY = {"text": 'a "q" \\ b\nc é } ] </tool_call> [TOOL_CALLS] 🎈', "list": [{"a": 1}, [], "]}"], "null": None}

Answer = tuple[str, list[tuple[str, str]]]


def read(parser: ToolParser, deltas: Sequence[str]) -> Answer:
    """The content, and each call's name and arguments."""
    content, calls = "", list[tuple[str, str]]()
    pieces: list[Piece] = [piece for delta in deltas for piece in parser.push(delta)] + parser.finish()
    for piece in pieces:
        if isinstance(piece, CallStart):
            calls.append((piece.name, ""))
        elif isinstance(piece, Arguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
        else:
            content += piece
    return content, calls


def parse(form: str, text: str) -> Answer:
    """What a format makes of a text, once it is known that one character at a time gives the same."""
    new = TOOL_FORMATS[form].new_parser
    whole = read(new(NAMES), [text])
    assert read(new(NAMES), list(text)) == whole
    assert read(new(NAMES), [text[i : i + 3] for i in range(0, len(text), 3)]) == whole
    return whole


def hermes(calls: list[tuple[str, str]]) -> str:
    return "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in calls)


def array(calls: list[tuple[str, str]], key: str = "arguments") -> str:
    return "[" + ", ".join(f'{{"name": "{n}", "{key}": {a}}}' for n, a in calls) + "]"


def objects(calls: list[tuple[str, str]], between: str = "; ") -> str:
    return between.join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in calls)


def mistral_named(calls: list[tuple[str, str]], args: str = "[ARGS]") -> str:
    return "".join(f"[TOOL_CALLS]{n}{args}{a}" for n, a in calls)


WRITERS: list[tuple[str, Callable[[list[tuple[str, str]]], str]]] = [
    ("hermes", hermes),
    ("mistral", lambda calls: "[TOOL_CALLS]" + array(calls)),
    ("mistral", lambda calls: "[TOOL_CALLS] " + array(calls)),
    ("mistral", mistral_named),
    ("mistral", lambda calls: mistral_named(calls, "[CALL_ID]abcdefghi[ARGS]")),
    ("mistral", lambda calls: mistral_named(calls, "")),
    ("llama3", objects),
    ("llama3", lambda calls: objects(calls, "\n")),
    ("llama3", lambda calls: "<|python_tag|>" + objects(calls)),
    ("llama3", lambda calls: "\n\n" + array(calls, "parameters")),
    ("json", array),
    ("json", lambda calls: objects(calls, "\n")),
    ("json", lambda calls: "```json\n" + array(calls) + "\n```"),
    ("json", lambda calls: "```\n" + objects(calls, ",\n") + "```\n"),
]


@pytest.mark.parametrize(("form", "write"), WRITERS, ids=[f"{i}-{w[0]}" for i, w in enumerate(WRITERS)])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("indent", [None, 1])
def test_arguments_are_the_text_that_the_model_wrote(
    form: str, write: Callable[[list[tuple[str, str]]], str], count: int, ascii_only: bool, indent: int | None
) -> None:
    given = [("note", json.dumps(NASTY, ensure_ascii=ascii_only, indent=indent)), ("add", "{}"), ("note", '{"a":1}')]
    assert parse(form, write(given[:count])) == ("", given[:count])


BOTH = [("note", '{"a": 1}'), ("add", '{"b": 2}')]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("hermes", f"Let me see.\n\n{hermes(BOTH)}\n", "Let me see.", BOTH),
        ("hermes", f"{hermes(BOTH)}\n\nDone. \n", "Done. \n", BOTH),
        ("hermes", f"a {hermes(BOTH[:1])} b {hermes(BOTH[1:])} c", "abc", BOTH),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "note"}</tool_call>', "", BOTH[:1]),
        ("hermes", '<tool_call>{"id": 7, "name": "note", "arguments": {"a": 1}, "y": []}</tool_call>', "", BOTH[:1]),
        ("hermes", '<tool_call>{"name": "note", "arguments": "{\\"a\\": 1}"}</tool_call>', "", BOTH[:1]),
        ("hermes", '<tool_call>{"name": "note"}</tool_call>', "", [("note", "{}")]),
        ("hermes", '<tool_call>{"name": "note", "arguments": null}</tool_call>', "", [("note", "{}")]),
        ("hermes", '<tool_call>{"name": "note", "arguments": {"a": 1}}}</tool_call>', "", BOTH[:1]),
        ("hermes", '<tool_call>{"name": "note", "arguments": {"a": 1}}', "", BOTH[:1]),
        ("hermes", '<tool_call>{"name": "note", "arguments": {"a": 1}}\n</tool', "", BOTH[:1]),
        ("hermes", '<tool_call>{"name": "note", "arguments": {"a": 1}} hm', "hm", BOTH[:1]),
        ("hermes", '<tool_call>{"name": "note", "arguments": {"a": 1', "", [("note", '{"a": 1')]),
        ("hermes", '<tool_call>{"name": "note", "arguments": {"a": "\n"}}</tool_call>', "", [("note", '{"a": "\n"}')]),
        ("mistral", f"Hm. [TOOL_CALLS]{array(BOTH)} so", "Hm.so", BOTH),
        ("mistral", '[TOOL_CALLS]note[ARGS]{"a": 1} so [TOOL_CALLS]add{"b": 2}', "so", BOTH),
        ("llama3", f"Hm. <|python_tag|>{objects(BOTH)}", "Hm.", BOTH),
        ("llama3", '{"type": "function", "name": "note", "parameters": {"a": 1}}', "", BOTH[:1]),
        ("llama3", objects(BOTH) + "; and more", "; and more", BOTH),
        ("llama3", '<|python_tag|>{"name": "other", "parameters": {}}', "", [("other", "{}")]),
        ("json", objects(BOTH[:1]) + "\n\n {x}", "{x}", BOTH[:1]),
        ("json", array(BOTH)[:-1], "", BOTH),
        ("json", f"```json\n{array(BOTH)}\n``` more", "more", BOTH),
    ],
)  # fmt: skip
def test_calls_with_something_around_them(form: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parse(form, text) == (content, calls)


PLAIN = ["", " \n", "Hello.\n", "[1, 2]", '{"a": 1}', "[", "{}", "[]"]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((form, text) for form in TOOL_FORMATS for text in PLAIN),
        ("hermes", "a <tool_call>"),
        ("hermes", "<tool"),
        ("hermes", "<tool_call>no"),
        ("hermes", "<tool_call>\n{}</tool_call>"),
        ("hermes", " <tool_call> {"),
        ("hermes", '<tool_call>{"name": "note", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "note", "arguments": "hello"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "note", "arguments": "{\\"\\ud800\\": 1}"}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "note" "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "note", "x": oops, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "not'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS] none of them"),
        ("mistral", "[TOOL_CALLS]two words[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]" + "x" * 300 + "[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]" + "x" * 250 + "[ARGS]{}"),
        ("mistral", "[TOOL_CALLS][1]"),
        ("llama3", '<|python_tag|>search.call(query="x")'),
        ("llama3", '{"name": "other", "parameters": {}}'),
        ("json", '{"name": "other", "arguments": {}}'),
        ("json", '[{"name": "other", "arguments": {}}]'),
        ("json", '```json\n{"name": "other"}\n```'),
        ("json", "```python\nprint(1)\n```"),
        ("json", f"Well: {array(BOTH)}"),
        ("json", '{"name": ["note"], "arguments": {}}'),
        ("json", "[" * 3000 + "]" * 3000),
        ("json", '{"name": "note", "x": ' + "[" * 99_999),
    ],
)  # fmt: skip
def test_what_is_no_call_is_content(form: str, text: str) -> None:
    assert parse(form, text) == (text, [])


def test_fragments_come_as_soon_as_they_are_certain() -> None:
    parser = TOOL_FORMATS["hermes"].new_parser(NAMES)
    assert parser.push("Hm <tool") == ["Hm"]
    assert parser.push("kit> ") == [" <toolkit>"]
    assert parser.push('<tool_call>{"name": "note", "arg') == []
    assert parser.push('uments": {"a') == [CallStart("note"), Arguments('{"a')]
    assert parser.push('": "}') == [Arguments('": "}')]
    assert parser.push('"}') == [Arguments('"}')]
    assert parser.push("}</tool_call") == []
    assert parser.push("> x") == ["x"]


BITS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "```json\n", "```"),
    *('{"name": "note"', '{"name": "other"', '"name"', '"note"', '"arguments"', '"parameters": {', ": ", ", ", ";"),
    *("{", "}", "[", "]", '"', "\\", "\n", " ", "é", "a", "1", "null"),
    *(hermes(BOTH), array(BOTH), objects(BOTH), mistral_named(BOTH)),
]  # fmt: skip


@pytest.mark.parametrize("form", TOOL_FORMATS)
@settings(deadline=None, max_examples=100)
@given(bits=st.lists(st.sampled_from(BITS), max_size=14), data=st.data())
def test_however_a_text_is_cut(form: str, bits: list[str], data: Any) -> None:
    text = "".join(bits)
    content, calls = parse(form, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    deltas = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(TOOL_FORMATS[form].new_parser(NAMES), deltas) == (content, calls)
    # Nothing is invented: the content is in the text, in its order.
    if not calls:
        assert content == text
    rest = iter(text)
    assert all(char in rest for char in content)


def test_a_named_call_is_its_arguments() -> None:
    assert read(NamedParser("note"), ['{"a"', "", ": 1}"]) == ("", [("note", '{"a": 1}')])
    assert read(NamedParser("note"), [""]) == ("", [])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("[AVAILABLE_TOOLS] … [TOOL_CALLS]", "mistral"),
        ("{{- '<|python_tag|>' }}", "llama3"),
        ("Environment: ipython", "llama3"),
        ("{{ messages }}", "json"),
    ],
)
def test_the_template_says_which_format(template: str, name: str) -> None:
    assert tool_format("auto", template).name == name
    assert tool_format("json", template).name == "json"


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool_parser: 'xml' is not one of auto, hermes, llama3, mistral, json"):
        tool_format("xml", "")


def test_ids_are_of_the_form_that_templates_take() -> None:
    ids = {TOOL_FORMATS["mistral"].new_id() for _ in range(20)}
    assert len(ids) == 20
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert TOOL_FORMATS["hermes"].new_id().startswith("call_")
