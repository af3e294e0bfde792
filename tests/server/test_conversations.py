"""Responses' and Messages' inputs as chats."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from headrace.errors import RequestError
from headrace.sampling.params import SamplingParams
from headrace.sampling.structured import StructuredOutputs
from headrace.server.errors import APIError, as_api_error
from headrace.server.history import History
from headrace.server.schema.messages import MessagesRequest
from headrace.server.schema.responses import ResponsesRequest
from headrace.server.turn import Turn
from headrace.text.tools.history import parsed_history, written_out

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}


def response_turn(given: Any, **fields: Any) -> Turn:
    body = ResponsesRequest.model_validate({"input": given, **fields})
    body.check()
    return body.turn(100)


def message_turn(messages: Any, **fields: Any) -> Turn:
    body = MessagesRequest.model_validate({"model": "m", "max_tokens": 9, "messages": messages, **fields})
    body.check()
    return body.turn(body.params())


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **others}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def tool(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "weather", "content": text}


def text(text: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": text}


FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "status": "completed"}
FUNCTION_CALL |= {"arguments": '{"city": "Ulm"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("Hi", [user("Hi")]),
        ("", [user("")]),
        ([{"role": "user", "content": "Hi"}], [user("Hi")]),
        (
            [
                {"role": "developer", "content": "Be brief."},
                {"type": "message", "role": "user", "content": [text("H"), text("i")]},
                {"id": "msg_1", "type": "message", "role": "assistant", "content": [text("Yes?", "output_text")]},
                {"role": "user", "content": "One"},
                {"role": "user", "content": "Two"},
            ],
            [system("Be brief."), user("Hi"), assistant("Yes?"), user("One\n\nTwo")],
        ),
        (
            [
                {"role": "user", "content": "Ulm?"},
                {"id": "rs_1", "type": "reasoning", "summary": [], "content": [text("Look.", "reasoning_text")]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No, wait."}]},
                FUNCTION_CALL,
                FUNCTION_CALL | {"call_id": "c2"},
                OUTPUT,
                OUTPUT | {"call_id": "c2", "output": [text("sun")]},
                {"id": "rs_2", "type": "reasoning", "summary": [text("Hm.", "summary_text")]},
                {"id": "rs_3", "type": "reasoning", "summary": [], "encrypted_content": "…"},
                FUNCTION_CALL | {"call_id": "c3"},
            ],
            [
                user("Ulm?"),
                assistant("No, wait.", reasoning_content="Look.", tool_calls=[CALL, CALL | {"id": "c2"}]),
                tool("rain"),
                tool("sun", "c2"),
                assistant("", reasoning_content="Hm.", tool_calls=[CALL | {"id": "c3"}]),
            ],
        ),
    ],
)  # fmt: skip
def test_responses_input(given: Any, messages: list[dict[str, Any]]) -> None:
    assert response_turn(given).messages == messages
    first = messages[0]
    texts = [first["content"]] if first["role"] == "system" else []
    rest = messages[len(texts) :]
    assert response_turn(given, instructions="You are.").messages == [system("\n\n".join(["You are.", *texts])), *rest]


def test_responses_fields() -> None:
    turn = response_turn("Hi", max_output_tokens=5, temperature=0.5, top_p=0.9, seed=3, cache_salt="s", stream=None)
    assert turn == Turn(
        messages=[user("Hi")],
        params=SamplingParams(max_tokens=5, temperature=0.5, top_p=0.9, seed=3),
        tools=[],
        separate_reasoning=True,
        cache_salt="s",
    )
    assert response_turn("Hi").params == SamplingParams(max_tokens=100)
    assert response_turn("Hi", top_logprobs=2).params.logprobs == 2
    assert response_turn("Hi", include=["message.output_text.logprobs"]).params.logprobs == 0
    for effort, thinks in (("none", False), ("high", True)):
        kwargs = response_turn("Hi", reasoning={"effort": effort, "summary": "auto"}).template_kwargs
        assert kwargs == {"reasoning_effort": effort, "enable_thinking": thinks}
    form = {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}
    assert response_turn("Hi", text={"format": form}).params.structured_outputs == StructuredOutputs(json=WEATHER)
    json = response_turn("Hi", text={"format": {"type": "json_object"}, "verbosity": "low"})
    assert json.params.structured_outputs == StructuredOutputs(json_object=True)
    assert response_turn("Hi", text={"format": {"type": "text"}}).params.structured_outputs is None


def test_responses_tools() -> None:
    flat = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": WEATHER}
    other = {"type": "function", "name": "other", "parameters": None, "strict": False}
    plain = {"type": "function", "function": {"name": "other", "strict": False}}
    turn = response_turn("Hi", tools=[flat, other], parallel_tool_calls=False)
    assert (turn.tools, turn.tool_choice, turn.parallel_tool_calls) == ([TOOL, plain], "auto", False)
    named = response_turn("Hi", tools=[flat, other], tool_choice={"type": "function", "name": "other"})
    assert (named.tool_choice, named.parallel_tool_calls) == ("function:other", True)
    some = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    turn = response_turn("Hi", tools=[flat, other], tool_choice=some)
    assert (turn.tools, turn.tool_choice) == ([TOOL], "required")


def refusal(call: Any) -> APIError:
    with pytest.raises((APIError, RequestError, ValidationError)) as error:
        call()
    if isinstance(error.value, ValidationError):
        return as_api_error(RequestValidationError(error.value.errors()))
    return as_api_error(error.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"include": ["x"]}, "include"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "x"}}]}, "tools.0.name"),
        ({"tools": [{"type": "function", "name": "x", "parameters": []}]}, "tools.0.parameters"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "x"}]}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "text.format"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ({"input": [{"type": "web_search_call"}]}, "input.0.type"),
        ({"input": [{}]}, "input.0.type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text"),
        ({"input": [OUTPUT]}, "input.0.call_id"),
        ({"input": [FUNCTION_CALL | {"arguments": {}}]}, "input.0.arguments"),
    ],
)  # fmt: skip
def test_what_responses_refuse_is_named(fields: dict[str, Any], param: str) -> None:
    fields = {"input": "Hi", **fields}
    error = refusal(lambda: response_turn(fields.pop("input"), **fields))
    assert error.status_code == 400
    assert str(error.error["param"]).startswith(param)
    assert error.error["message"].startswith(param)


def test_what_means_nothing_is_accepted() -> None:
    nothing = {"previous_response_id": None, "conversation": None, "background": False, "prompt": None, "n": 1}
    accepted = {"store": True, "truncation": "disabled", "metadata": {"a": "b"}, "include": [], "novel": 3}
    assert response_turn("Hi", **nothing, **accepted) == response_turn("Hi")


TOOL_USE = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Ulm"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "rain"}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([user("Hi")], [user("Hi")]),
        ([assistant("Yes?"), user("One"), user("Two")], [assistant("Yes?"), user("One\n\nTwo")]),
        ([{"role": "user", "content": []}], [user("")]),
        (
            [
                user("Ulm?"),
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Look.", "signature": ""},
                    {"type": "redacted_thinking", "data": "…"},
                    {"type": "text", "text": "Wait", "citations": None},
                    {"type": "text", "text": "."},
                    TOOL_USE,
                    TOOL_USE | {"id": "c2"},
                ]},
                {"role": "user", "content": [
                    RESULT,
                    RESULT | {"tool_use_id": "c2", "content": [text("s", "text"), text("un", "text")]},
                    {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
                ]},
                {"role": "assistant", "content": [TOOL_USE | {"id": "c3"}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c3", "is_error": True}]},
            ],
            [
                user("Ulm?"),
                assistant("Wait.", reasoning_content="Look.", tool_calls=[CALL, CALL | {"id": "c2"}]),
                tool("rain"),
                tool("sun", "c2"),
                user("And?"),
                assistant("", tool_calls=[CALL | {"id": "c3"}]),
                tool("", "c3"),
            ],
        ),
    ],
)  # fmt: skip
def test_messages_input(given: Any, messages: list[dict[str, Any]]) -> None:
    assert message_turn(given).messages == messages
    assert message_turn(given, system="You are.").messages == [system("You are."), *messages]
    blocks = [{"type": "text", "text": "You"}, {"type": "text", "text": "are."}]
    assert message_turn(given, system=blocks).messages == [system("You\n\nare."), *messages]


def test_an_answer_that_has_begun_goes_on() -> None:
    turn = message_turn([user("Hi"), assistant("Yes, ")])
    assert turn.messages == [user("Hi"), assistant("Yes, ")]
    assert (turn.add_generation_prompt, turn.continue_final_message) == (False, True)


def test_messages_fields() -> None:
    plain = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 3}
    turn = message_turn([user("Hi")], stop_sequences=["a", "b"], metadata={"user_id": "u"}, **plain)
    assert turn == Turn(
        messages=[user("Hi")],
        params=SamplingParams(max_tokens=9, stop=["a", "b"], **plain),
        tools=[],
        separate_reasoning=True,
    )
    kinds = {"enabled": True, "adaptive": True, "disabled": False}
    for kind, thinks in kinds.items():
        assert message_turn([user("Hi")], thinking={"type": kind}).template_kwargs == {"enable_thinking": thinks}
    config = {"effort": "low", "format": {"type": "json_schema", "schema": WEATHER}}
    turn = message_turn([user("Hi")], output_config=config)
    assert turn.params.structured_outputs == StructuredOutputs(json=WEATHER)
    assert turn.template_kwargs == {"reasoning_effort": "low"}


def test_messages_tools() -> None:
    given = {"name": "weather", "description": "Of a city.", "input_schema": WEATHER}
    turn = message_turn([user("Hi")], tools=[given, given | {"type": "custom", "name": "b", "strict": True}])
    assert turn.tools == [TOOL, {"type": "function", "function": TOOL["function"] | {"name": "b", "strict": True}}]
    choices = {"auto": "auto", "any": "required", "none": "none", "tool": "function:weather"}
    for kind, choice in choices.items():
        for disabled in (None, False, True):
            asked = {"type": kind, "name": "weather", "disable_parallel_tool_use": disabled}
            turn = message_turn([user("Hi")], tools=[given], tool_choice=asked)
            assert (turn.tool_choice, turn.parallel_tool_calls) == (choice, disabled is not True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": None}, "model"),
        ({"stop": "x"}, "stop"),
        ({"container": "x"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"n": 2}, "n"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"messages": []}, "messages"),
        ({"messages": [user("Hi"), {"role": "assistant", "content": [TOOL_USE]}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [TOOL_USE]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages.0.content.0.tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [TOOL_USE | {"input": "x"}]}]}, "messages.0.content.0.input"),
    ],
)
def test_what_messages_refuse_is_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(lambda: message_turn(**{"messages": [user("Hi")], **fields}))
    assert error.status_code == 400
    assert str(error.error["param"]).startswith(param)
    assert error.error["message"].startswith(param)


def test_very_many_messages_of_one_role_are_joined_in_time_that_grows_with_them() -> None:
    """Joined one by one 250,000 of them, 7 MB, kept the event loop busy for ten seconds."""
    history = History()
    started = time.perf_counter()
    for _ in range(250_000):
        history.say("user", "a")
    assert history.messages == [user("\n\n".join("a" * 250_000))]
    assert time.perf_counter() - started < 3


def test_an_empty_text_leaves_no_gap() -> None:
    history = History()
    for text in ("", "", "a", "", "b"):
        history.say("user", text)
    assert history.messages == [user("a\n\n\n\nb")]


def test_very_many_results_are_written_out_in_time_that_grows_with_them() -> None:
    """50,000 of them kept one of the four workers busy for fifteen seconds, three times as many for ninety."""
    results: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": "c1", "content": "a"}] * 50_000
    started = time.perf_counter()
    told = written_out(parsed_history([*results, user("b")]), [])
    assert time.perf_counter() - started < 3
    assert told == [user("Result of the tool:\na\n\n" * 50_000 + "b")]
