"""Tools and reasoning end to end: forced calls of a real engine, and a scripted one that writes as each family does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace import LLM
from headrace.errors import ConfigError, RequestError
from headrace.server.options import ServerOptions
from headrace.server.tools import calls_schema, checked_tools, parameters_of
from headrace.text.tokenizer import Tokenizer
from server.chats import ADD, CHAT, NASTY, NOTE, USER, both, calls_of
from server.families import LLAMA3, MISTRAL, QWEN3, THINKING, Families, family_tokenizer
from server.running import Running, running
from server.scripted import scripted_engine


@pytest.fixture(scope="module")
def families(smollm2_path: Path) -> Iterator[Families]:
    """The families' servers."""
    with ExitStack() as stack:
        yield Families(smollm2_path, stack)


BOTH = [("note", {"text": NASTY}), ("add", {"a": 1, "b": True})]
TEXTS = [json.dumps(arguments, ensure_ascii=False) for _, arguments in BOTH]


@pytest.mark.parametrize("tools", [[NOTE], [NOTE, ADD]])
@pytest.mark.parametrize("parallel", [False, True])
def test_required_calls_fit_their_tools(server: Running, tools: list[dict[str, Any]], parallel: bool) -> None:
    choices = both(
        server, tools=tools, tool_choice="required", parallel_tool_calls=parallel, max_tokens=100, n=4, seed=5
    )
    ended = [choice for choice in choices if choice["finish_reason"] == "tool_calls"]
    assert ended
    for choice in ended:
        assert choice["message"]["content"] is None
        calls = calls_of(choice)
        assert len(calls) == 1 if not parallel else calls
        for name, arguments in calls:
            if name == "note":
                assert arguments == {"text": NASTY}
            else:
                assert set(arguments) == {"a", "b"}
                assert arguments["a"] in (1, 2)


def test_a_named_call_ends_as_openai_s_do(server: Running) -> None:
    choice = {"type": "function", "function": {"name": "note"}}
    [answered] = both(server, tools=[ADD, NOTE], tool_choice=choice, max_tokens=100)
    assert calls_of(answered) == [("note", {"text": NASTY})]
    assert answered["finish_reason"] == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "note"}}])
def test_a_call_that_is_cut_off_is_kept(server: Running, choice: Any) -> None:
    [answered] = both(server, tools=[NOTE], tool_choice=choice, max_tokens=15 if choice == "required" else 8)
    assert answered["finish_reason"] == "length"
    [call] = answered["message"]["tool_calls"]
    whole = json.dumps({"text": NASTY}, ensure_ascii=False)
    assert call["function"]["name"] == "note"
    assert whole.replace(" ", "").startswith(call["function"]["arguments"].replace(" ", ""))


def test_references_within_parameters_hold(server: Running) -> None:
    """A schema that refers to itself is one of several in the grammar of required calls."""
    tree = {
        "type": "object",
        "properties": {
            "v": {"$ref": "#/$defs/C"},
            "$ref": {"type": "null"},
            "k": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
        },
        "required": ["v", "$ref", "k"],
        "additionalProperties": False,
        "$defs": {"C": {"enum": ["grün", {"$ref": "#"}]}},
    }
    tools = [ADD, {"type": "function", "function": {"name": "tree", "parameters": tree}}]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "tree"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    choices = both(server, tools=tools, tool_choice=choice, n=8, seed=1, max_tokens=120, parallel_tool_calls=False)
    for one in choices:
        for name, arguments in calls_of(one) if one["finish_reason"] == "tool_calls" else []:
            assert name == "tree"
            assert arguments["v"] in ("grün", {"$ref": "#"})
            assert arguments["$ref"] is None
    schema = calls_schema(checked_tools(tools), parallel=True)
    moved = schema["$defs"]["tool1"]
    assert moved["properties"]["k"]["items"] == {"$ref": "#/$defs/tool1"}
    assert moved["properties"]["v"] == {"$ref": "#/$defs/tool1/$defs/C"}
    assert moved["$defs"]["C"]["enum"][1] == {"$ref": "#"}
    assert tree["properties"]["v"] == {"$ref": "#/$defs/C"}


def test_tools_that_take_nothing(server: Running) -> None:
    [answered] = both(
        server,
        tools=[{"type": "function", "function": {"name": "ping", "description": None, "parameters": None}}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
    )
    assert calls_of(answered) == [("ping", {})]


WRITTEN = [(name, text) for (name, _), text in zip(BOTH, TEXTS, strict=True)]
HERMES = "\n".join(f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in WRITTEN)
LLAMA = "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in WRITTEN)
ARRAY = "[" + ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in WRITTEN) + "]"
NAMED = "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in WRITTEN)


@pytest.mark.parametrize(
    ("template", "markers", "said", "content", "calls"),
    [
        (QWEN3, (), f"Well. \n{HERMES}", "Well.", BOTH),
        (QWEN3, ("<tool_call>", "</tool_call>"), HERMES, None, BOTH),
        (QWEN3, (), "<tool_call> is no call", "<tool_call> is no call", []),
        (QWEN3, ("<tool_call>",), "<tool_call> is no call", "<tool_call> is no call", []),
        (LLAMA3, (), LLAMA, None, BOTH),
        (LLAMA3, ("<|python_tag|>",), f"<|python_tag|>{LLAMA}", None, BOTH),
        (LLAMA3, ("<|python_tag|>",), f"So: <|python_tag|>{LLAMA}", "So:", BOTH),
        (MISTRAL, ("[TOOL_CALLS]",), f"[TOOL_CALLS]{ARRAY}", None, BOTH),
        (MISTRAL, ("[TOOL_CALLS]", "[ARGS]"), NAMED, None, BOTH),
        (None, (), ARRAY, None, BOTH),
        (None, (), f"```json\n{ARRAY}\n```", None, BOTH),
        (None, (), '{"colour": "red"}', '{"colour": "red"}', []),
    ],
)
def test_each_family_s_calls(
    families: Families,
    template: str | None,
    markers: tuple[str, ...],
    said: str,
    content: str | None,
    calls: list[tuple[str, Any]],
) -> None:
    server, user = families.says(said, template, *markers)
    body = {"messages": [user], "max_tokens": 300}
    [answered] = both(server, **body, tools=[NOTE, ADD])
    assert calls_of(answered) == calls
    assert answered["message"]["content"] == content
    assert answered["finish_reason"] == ("tool_calls" if calls else "stop")
    called = answered["message"].get("tool_calls", [])
    assert [call["function"]["arguments"] for call in called] == TEXTS[: len(calls)]
    [one] = both(server, **body, tools=[NOTE, ADD], parallel_tool_calls=False)
    assert calls_of(one) == calls[:1]
    [plain] = both(server, **body, tools=[NOTE, ADD], tool_choice="none")
    hidden = said
    for marker in markers:
        hidden = hidden.replace(marker, "")
    assert (plain["message"]["content"], plain["finish_reason"]) == (hidden, "stop")
    # What was called, and its results, can be said in the next turn.
    if template != LLAMA3:  # which takes one call at a time
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in called]
        both(server, tools=[NOTE, ADD], messages=[user, answered["message"], *results, user], max_tokens=3)


@pytest.mark.parametrize(
    ("template", "kwargs", "said", "reasoning", "content", "called"),
    [
        (QWEN3, {}, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.", False),
        (QWEN3, {}, "Yes.", None, "Yes.", False),
        (QWEN3, {}, f"<think>\nI call {HERMES}\n</think>\n{HERMES}", f"I call {HERMES}", None, True),
        (THINKING, {"enable_thinking": True}, "Hm.\n</think>\n\nYes.", "Hm.", "Yes.", False),
        (THINKING, {"enable_thinking": True}, f"Hm.</think>{HERMES}", "Hm.", None, True),
        (THINKING, {"enable_thinking": True}, "Hm, not yet", "Hm, not yet", "", False),
        (LLAMA3, {}, f"<think>Hm.</think>{LLAMA}", "Hm.", None, True),
    ],
)
def test_reasoning_is_separate_if_asked_for(
    families: Families,
    template: str,
    kwargs: dict[str, Any],
    said: str,
    reasoning: str | None,
    content: str | None,
    called: bool,
) -> None:
    server, user = families.says(said, template)
    body = {"messages": [user], "chat_template_kwargs": kwargs, "max_tokens": 300}
    [answered] = both(server, **body, tools=[NOTE, ADD], separate_reasoning=True)
    assert answered["message"].get("reasoning_content") == reasoning
    assert answered["message"]["content"] == content
    assert calls_of(answered) == (BOTH if called else [])
    [plain] = both(server, **body)
    assert plain["message"]["content"] == said
    [together] = both(server, **body, tools=[NOTE, ADD])
    assert calls_of(together) == (BOTH if called else [])
    if not called:
        assert together["message"]["content"] == said


def test_the_server_s_options_say_how_calls_and_reasoning_are_read(smollm2_path: Path) -> None:
    engine = scripted_engine(family_tokenizer(smollm2_path, QWEN3), f"<think>Hm.</think>{ARRAY}")
    with running(engine, separate_reasoning=True, tool_parser="json") as server:
        [answered] = both(server, tools=[NOTE, ADD], max_tokens=300)
        assert answered["message"]["reasoning_content"] == "Hm."
        assert calls_of(answered) == BOTH
    with pytest.raises(ConfigError, match="tool_parser"):
        ServerOptions(tool_parser="xml")


def test_an_answer_whose_form_is_given_may_be_calls_instead(server: Running, smol_tokenizer: Tokenizer) -> None:
    call = '{"name": "note", "arguments": {}}'
    [answered] = both(
        server, tools=[NOTE], structured_outputs={"choice": [call]}, separate_reasoning=True, max_tokens=60
    )
    assert answered["message"]["content"] == call
    assert "tool_calls" not in answered["message"]
    answer = {"$id": "x:y", "$defs": {"N": {"enum": ["note", "é"]}}, "type": "object", "additionalProperties": False,
              "properties": {"name": {"$ref": "#/$defs/N"}}, "required": ["name"]}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": answer, "strict": True}}
    body = {"tools": [NOTE, ADD], "response_format": form, "max_tokens": 150}
    seen = set()
    for one in both(server, **body, n=8, seed=3, parallel_tool_calls=False):
        seen.add(one["finish_reason"])
        if one["finish_reason"] == "stop":
            assert json.loads(one["message"]["content"])["name"] in ("note", "é")
        if one["finish_reason"] == "tool_calls":
            assert calls_of(one)[0][0] in ("note", "add")
    assert seen >= {"stop", "tool_calls"}
    [plain] = both(
        server, **{**body, "response_format": {"type": "json_object"}}, logit_bias=bias(smol_tokenizer, "[", "[{")
    )
    assert plain["message"]["content"].startswith("{")
    broken = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "(["}}}
    refused = server.post(CHAT, messages=[USER], tools=[NOTE], response_format=broken)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "structured_outputs.json")


def bias(tokenizer: Tokenizer, *texts: str) -> dict[str, float]:
    """Against tokens."""
    return {str(token): -100.0 for text in texts for token in tokenizer.encode(text, add_bos=False)[:1]}


def test_templates_that_know_no_tools_are_told_in_words(server: Running, tiny_llm: LLM) -> None:
    """The prompt is counted: it is the one that the messages make when they are written out by hand."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1, "b":true}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "user", "content": "And?"},
    ]
    usage = server.post(CHAT, messages=messages, tools=[ADD], max_tokens=1).json()["usage"]
    told = (
        "Be brief.\n\nYou can call these tools:\n\n" + json.dumps(ADD["function"], ensure_ascii=False) + "\n\n"
        "To call tools, answer with nothing but a JSON array of calls, with arguments that fit the tool's parameters:\n"
        '[{"name": "<name of the tool>", "arguments": {<arguments>}}]\n'
        "You get their results in the next message. If no tool helps, answer without one."
    )
    expected = [
        {"role": "system", "content": told},
        USER,
        {"role": "assistant", "content": '[{"name": "add", "arguments": {"a": 1, "b": true}}]'},
        {"role": "user", "content": "Result of add:\n3\n\nAnd?"},
    ]
    assert usage["prompt_tokens"] == len(tiny_llm.encode_chat(expected))


def test_a_template_without_system_messages_is_told_of_tools_by_the_user(smollm2_path: Path) -> None:
    source = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('by turns') }}{% endif %}{{ m.content }}|{% endfor %}"
    )
    tokenizer = family_tokenizer(smollm2_path, source)
    told = lambda ids: "I heard: " + tokenizer.decode(ids)  # noqa: E731
    with running(scripted_engine(tokenizer, told)) as server:
        [answered] = both(server, tools=[ADD], max_tokens=300)
        assert answered["message"]["content"].startswith("I heard: You can call these tools:")
        assert answered["message"]["content"].endswith("\n\nHi|")


@pytest.mark.parametrize(
    "arguments",
    ["null", "[1]", "not json", '"x"', "{", '{"a": "\\ud800"}', None, "[" * 2000],
)
def test_arguments_in_the_history_are_objects(server: Running, arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    response = server.post(CHAT, messages=messages, max_tokens=1)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("depth", [200, 900, 990])
def test_arguments_that_are_nested_deeply_are_refused(server: Running, depth: int) -> None:
    """Too deep, or too long for the context; a failure of the server's in no case."""
    arguments = '{"a":' * depth + "1" + "}" * depth
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    response = server.post(CHAT, messages=[USER, {"role": "assistant", "tool_calls": [call]}], max_tokens=1)
    assert response.status_code == 400


@pytest.mark.parametrize(
    "calls",
    [1, "x", [1], [{}], [{"function": {}}], [{"function": {"name": 1}}], [{"id": {}, "function": {"name": "f"}}]],
)
def test_calls_in_the_history_have_a_form(server: Running, calls: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    response = server.post(CHAT, messages=messages, max_tokens=1)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


def test_parameters_get_a_type_where_a_grammar_needs_it() -> None:
    given = [{"properties": {}, "type": "object"}, {"properties": {}}, None]
    tools = checked_tools(
        [{"type": "function", "function": {"name": f"f{i}", "parameters": p}} for i, p in enumerate(given)]
    )
    assert [[*tool["function"].get("parameters", {})] for tool in tools] == [["properties", "type"], ["properties"], []]
    assert [parameters_of(tool)["type"] for tool in tools] == ["object"] * 3
    inner = {"type": "object", "properties": {"x": {"type": "null"}}}
    outer = {"name": "f", "parameters": {"properties": {"a": inner}}}
    closed = parameters_of(checked_tools([{"type": "function", "function": outer}])[0])
    assert closed["additionalProperties"] is closed["properties"]["a"]["additionalProperties"] is False
    assert "additionalProperties" not in inner
    more: dict[str, Any]
    for more in ({"additionalProperties": True}, {"patternProperties": {}}, {"anyOf": [inner]}, {"allOf": [inner]}):
        parameters = {"properties": {"a": {}}, **more}
        [given] = checked_tools([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
        assert parameters_of(given) == {"type": "object", **parameters}
    with pytest.raises(RequestError, match="tools: must be a list"):
        checked_tools("f")
    assert [calls_schema(tools, parallel=parallel)["maxItems"] for parallel in (False, True)] == [1, 16]
