"""The stream and API cases of public bug reports that are about chats, over a real server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from headrace import LLM
from headrace.server.schema.chat import ChatRequest
from headrace.server.schema.completions import CompletionRequest
from headrace.text.tokenizer import Tokenizer
from server.chats import ADD, CHAT, NASTY, NOTE, USER, both, calls_of, merged
from server.running import Running, running
from server.scripted import scripted_engine
from smol import END, RIVER

RIVERS: dict[str, Any] = {"messages": [USER], "temperature": 0, "logit_bias": {str(RIVER): 100}, "max_tokens": 4}
NAMED = {"type": "function", "function": {"name": "note"}}


def chunks_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that ends as it should."""
    *events, done = server.stream(CHAT, **body)
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def test_str_06_usage_comes_once_at_the_end_and_only_if_asked_for(server: Running) -> None:
    *chunks, last = chunks_of(server, **RIVERS, n=2, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert [last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")] == [31, 8, 39]
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    plain = chunks_of(server, **RIVERS)
    assert all("usage" not in chunk and chunk["choices"] for chunk in plain)
    assert merged(plain)[0].content == " river" * 4
    refused = server.post(CHAT, **RIVERS, stream=False, stream_options={"include_usage": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_str_09_call_deltas_say_who_once_and_join_to_the_arguments(server: Running, choice: Any) -> None:
    """`both` compares the stream with the whole answer; text/test_tools.py has the three deliveries to the parsers."""
    choices = both(server, tools=[NOTE, ADD], tool_choice=choice, max_tokens=150, n=6, parallel_tool_calls=False)
    calls = [call for one in choices for call in calls_of(one)]
    assert ("note", {"text": NASTY}) in calls
    for name, arguments in calls:
        assert arguments == {"text": NASTY} if name == "note" else arguments["a"] in (1, 2)


def answered(response: httpx.Response) -> Any:
    """What an answer says, without what is new each time."""
    assert response.status_code == 200, response.text
    body = response.json()
    for choice in body["choices"]:
        for call in choice.get("message", {}).get("tool_calls", []):
            call.pop("id")
    return body["choices"], {**body["usage"], "prompt_tokens_details": None}


@pytest.mark.parametrize(
    ("path", "model", "body"),
    [
        (CHAT, ChatRequest, {"messages": [USER]}),
        ("/v1/completions", CompletionRequest, {"prompt": "Once upon"}),
    ],
)
def test_api_04_null_is_the_same_as_absent(server: Running, path: str, model: Any, body: dict[str, Any]) -> None:
    body = {**body, "temperature": 0, "seed": 1, "max_tokens": 3}
    expected = answered(server.post(path, **body))
    for name, field in model.model_fields.items():
        if field.is_required() or name == "max_tokens":
            continue
        rest = {key: value for key, value in body.items() if key != name}
        without = answered(server.post(path, **rest)) if name in body else expected
        assert answered(server.post(path, **rest, **{name: None})) == without, name


def test_api_04_without_max_tokens_a_chat_may_fill_the_context(server: Running) -> None:
    long = [{"role": "user", "content": " river" * 450}]
    for absent in ({}, {"max_tokens": None}, {"max_tokens": None, "max_completion_tokens": None}):
        body = {key: value for key, value in {**RIVERS, "messages": long}.items() if key != "max_tokens"} | absent
        [choice], usage = answered(server.post(CHAT, **body))
        assert (choice["finish_reason"], usage["total_tokens"]) == ("length", server.server.max_model_len)
        [ended], usage = answered(server.post(CHAT, **{**body, "logit_bias": {str(END): 100}}))
        assert (ended["finish_reason"], ended["message"]["content"], usage["completion_tokens"]) == ("stop", "", 1)


def call(arguments: str) -> list[dict[str, Any]]:
    """A conversation with a call and its result."""
    function = {"name": "add", "arguments": arguments}
    return [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]


def test_api_06_content_is_text_parts_or_nothing(server: Running, tiny_llm: LLM) -> None:
    def count(*messages: dict[str, Any]) -> int:
        _, usage = answered(server.post(CHAT, messages=messages, max_tokens=1))
        tokens: int = usage["prompt_tokens"]
        return tokens

    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert count({"role": "user", "content": parts}) == count(USER) == 31
    assert count({"role": "user", "content": []}) == len(tiny_llm.encode_chat([{"role": "user", "content": ""}]))
    assert count(*call('{"a":1,"b":2}')) > count(*call("{}"))
    said = {"role": "assistant", "content": '[{"name": "add", "arguments": {"a": 1}}]'}
    result = {"role": "user", "content": "Result of add:\n3"}
    assert count(*call('{"a":1}')) == len(tiny_llm.encode_chat([USER, said, result]))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    refused = [[{"role": "user", "content": [image]}], *(call(arguments) for arguments in ("null", "[1]", "not json"))]
    for messages in refused:
        response = server.post(CHAT, messages=messages, max_tokens=1)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert "image_url" in server.post(CHAT, messages=refused[0], max_tokens=1).json()["error"]["message"]


def test_api_14_reasons_are_those_that_openai_gives(server: Running, smol_tokenizer: Tokenizer) -> None:
    tools = [NOTE, ADD]
    body = {"tools": tools, "max_tokens": 150, "parallel_tool_calls": False, "seed": 1}
    for one in both(server, **body, tool_choice="required", n=3):
        assert (one["finish_reason"], len(calls_of(one))) == ("tool_calls", 1)
    [one] = both(server, **body, tool_choice=NAMED)
    assert (one["finish_reason"], calls_of(one)) == ("stop", [("note", {"text": NASTY})])
    said = json.dumps([{"name": "add", "arguments": {"a": 1, "b": True}}])
    with running(scripted_engine(smol_tokenizer, said)) as scripted:
        [auto] = both(scripted, **body, tool_choice="auto")
        assert (auto["finish_reason"], calls_of(auto)) == ("tool_calls", [("add", {"a": 1, "b": True})])
        for none in ({**body, "tool_choice": "none"}, {**body, "tools": []}):
            [plain] = both(scripted, **none)
            assert (plain["finish_reason"], plain["message"]["content"]) == ("stop", said)
            assert "tool_calls" not in plain["message"]
    nope = {"type": "function", "function": {"name": "nope"}}
    refused = server.post(CHAT, messages=[USER], tools=tools, tool_choice=nope)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def test_api_15_unknown_fields_are_ignored_and_the_newer_limit_wins(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace.server.schema.sampling")
    [choice], _ = answered(server.post(CHAT, **RIVERS, foo=1))
    assert choice["message"]["content"] == " river" * 4
    assert "ignored unknown fields: 'foo'" in caplog.text
    for given, count in (({"max_tokens": 32, "max_completion_tokens": 1}, 1), ({"max_completion_tokens": 3}, 3)):
        _, usage = answered(server.post(CHAT, **{**RIVERS, "max_tokens": None, **given}))
        assert usage["completion_tokens"] == count
