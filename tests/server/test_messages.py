"""/v1/messages over a real server, with Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from headrace.text.tokenizer import Tokenizer
from server.chats import ADD, NOTE
from server.families import MISTRAL, THINKING, family_tokenizer
from server.running import Running, running
from server.scripted import scripted_engine
from server.test_answer_events import check_message

LONG = [{"role": "user", "content": "Hi " * 600}]
HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"model": "tiny", "temperature": 0}
CITY = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Kiel"]}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
HERMES = """I look.
<tool_call>
{"name": "note", "arguments": {"text": "é"}}
</tool_call>
<tool_call>
{"name": "add", "arguments": {"a": 1, "b": true}}
</tool_call>"""
MISTRALS = 'I look.[TOOL_CALLS][{"name": "note", "arguments": {"text": "é"}}'
MISTRALS += ', {"name": "add", "arguments": {"a": 1, "b": true}}]'
CALLS = [("note", {"text": "é"}), ("add", {"a": 1, "b": True})]
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": CITY}


def client_of(server: Running, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as one:
        yield one


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer; each has its type as its name."""
    with server.client.stream("POST", "/v1/messages", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        text = response.read().decode()
    pairs = [block.split("\n") for block in text.removesuffix("\n\n").split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {event['type']}" for event in events]
    return events


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 6},
        {"max_tokens": 6, "system": "Be brief.", "temperature": 1, "top_k": 5, "seed": 5},
        {"max_tokens": 99, "output_config": {"format": {"type": "json_schema", "schema": CITY}}},
        {"max_tokens": 99, "tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"max_tokens": 99, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}},
        {"max_tokens": 0},
    ],
)
def test_a_streamed_answer_is_the_whole_answer(server: Running, body: dict[str, Any]) -> None:
    asked = {**GREEDY, "messages": HI, **body}
    server.post("/v1/messages", **asked)  # fills the cache
    whole = server.post("/v1/messages", **asked)
    assert whole.status_code == 200, whole.text
    events = events_of(server, **asked)
    message = whole.json() | {"id": events[0]["message"]["id"]}
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    for block, start in zip(message["content"], starts, strict=True):
        assert block.keys() == start.keys()
        block.update({key: start[key] for key in ("id",) if key in start})
    check_message([*events, message])


def test_text_is_what_chat_answers(server: Running) -> None:
    """The same conversation gives the same prompt and, with the same seed, the same answer."""
    said = [*HI, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "A"}]
    sampling = {"model": "tiny", "temperature": 0.7, "seed": 4, "top_p": 0.9, "max_tokens": 9}
    messages = [{"role": "system", "content": "Be."}, *said]
    chat = server.post("/v1/chat/completions", messages=messages, **sampling).json()
    message = server.post("/v1/messages", messages=said, system="Be.", **sampling).json()
    assert message["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert message["stop_reason"] == "max_tokens"
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == chat["usage"]["completion_tokens"] == 9


def test_an_answer_that_has_begun_goes_on(server: Running) -> None:
    sampling = {"model": "tiny", "temperature": 0.7, "seed": 4, "max_tokens": 9}
    said = [*HI, {"role": "assistant", "content": "Yes, "}]
    chat = server.post("/v1/chat/completions", messages=said, continue_final_message=True, **sampling).json()
    message = server.post("/v1/messages", messages=said, **sampling).json()
    assert message["content"][0]["text"] == chat["choices"][0]["message"]["content"]


@pytest.mark.parametrize("source", [THINKING, MISTRAL])
def test_reasoning_and_calls_of_a_models_own(smollm2_path: Path, source: str) -> None:
    tokenizer = family_tokenizer(smollm2_path, source)
    said = f"Hm.\n</think>\n\n{HERMES}\nDone." if source == THINKING else f"<think>Hm.</think>{MISTRALS}"
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in (NOTE, ADD)]
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 300, "tools": tools, "thinking": {"type": "adaptive"}}
    with running(scripted_engine(tokenizer, said)) as server, client_of(server) as client:
        message = client.messages.create(**asked, messages=HI)
        thinking, text, *calls = message.content
        assert (thinking.type, thinking.thinking, text.type, text.text) == ("thinking", "Hm.", "text", "I look.")
        assert [(call.name, call.input) for call in calls[:2]] == CALLS
        assert [block.text for block in calls[2:]] == (["Done."] if source == THINKING else [])
        assert message.stop_reason == "tool_use"
        with client.messages.stream(**asked, messages=HI) as stream:
            final = stream.get_final_message()
        for block, other in zip(message.content, final.content, strict=True):
            assert block.to_dict() | {"id": ""} == {
                k: v for k, v in other.to_dict().items() if k != "parsed_output"
            } | {"id": ""}
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "3"} for call in calls[:2]]
        history = [*HI, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        assert client.messages.create(**asked, messages=history).stop_reason == "tool_use"


def test_counting_tokens(server: Running, client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": HI, "system": "Be.", "tools": [TOOL]}
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert client.messages.count_tokens(**asked).input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize("block", [{"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "thinking": ""}])
def test_a_conversation_of_which_nothing_is_left_is_refused(server: Running, block: dict[str, str]) -> None:
    said = [{"role": "assistant", "content": [block]}]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = server.post(path, model="tiny", max_tokens=1, messages=said)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_tools_round_trip(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 99, "tools": [TOOL]}
    asked["extra_body"] = {"temperature": 0}
    with client.messages.stream(**asked, messages=HI, tool_choice={"type": "tool", "name": "weather"}) as stream:
        message = stream.get_final_message()
    [call] = message.content
    assert (call.type, call.name, message.stop_reason) == ("tool_use", "weather", "tool_use")
    assert call.input["city"] in ("Ulm", "Kiel")
    # What came out goes in again, as it is.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    history = [*HI, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(**asked | {"messages": history, "max_tokens": 4}, tool_choice={"type": "none"})
    assert answer.content[0].type == "text"


def test_the_stop_sequence_is_named(smol_tokenizer: Tokenizer) -> None:
    with running(scripted_engine(smol_tokenizer, "one two, three")) as server, client_of(server) as client:
        asked: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 20}
        for stops, reason, found, text in (
            ([], "end_turn", None, "one two, three"),
            (["nine"], "end_turn", None, "one two, three"),
            ([", t", "two,"], "stop_sequence", "two,", "one "),
        ):
            message = client.messages.create(**asked, stop_sequences=stops)
            assert (message.stop_reason, message.stop_sequence, message.content[0].text) == (reason, found, text)
            with client.messages.stream(**asked, stop_sequences=stops) as stream:
                final = stream.get_final_message()
            assert (final.stop_reason, final.stop_sequence, final.content[0].text) == (reason, found, text)


def test_errors_have_anthropics_shape(server: Running, client: anthropic.Anthropic) -> None:
    for stream in (False, True):
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.messages.create(model="other", messages=HI, max_tokens=3, stream=stream)
        with pytest.raises(anthropic.BadRequestError) as wrong:
            client.messages.create(model="tiny", messages=LONG, max_tokens=3, stream=stream)
        for error, kind in ((missing, "not_found_error"), (wrong, "invalid_request_error")):
            body = anthropic.types.ErrorResponse.model_validate(error.value.body)
            assert body.error.type == kind
    for body, status in (({}, 400), ({"model": "tiny", "messages": HI, "max_tokens": "5"}, 400)):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            if path == "/v1/messages" or not body:
                response = server.post(path, **body)
                assert response.status_code == status
                assert response.json()["type"] == "error"
    assert server.client.get("/v1/messages").json()["error"]["type"] == "invalid_request_error"
    assert server.client.post("/v1/messages", content=b"{").json()["type"] == "error"


def test_a_failure_inside_the_stream_ends_it_with_an_event(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, "one two three four five six")
    steps, step = iter(range(10**9)), engine.step

    def failing() -> Any:
        if next(steps) == 4:
            raise RuntimeError("a secret")
        return step()

    engine.step = failing  # type: ignore[method-assign]
    with running(engine) as server, client_of(server) as client:
        said = []
        with (
            pytest.raises(anthropic.APIStatusError) as error,
            client.messages.stream(model="tiny", messages=HI, max_tokens=20) as stream,
        ):
            said += stream.text_stream
        assert said[0].startswith("one")
        assert "secret" not in str(error.value.body)
        assert anthropic.types.ErrorResponse.model_validate(error.value.body).error.type == "overloaded_error"
        with pytest.raises(anthropic.APIStatusError) as error:
            client.messages.create(model="tiny", messages=HI, max_tokens=20)
        assert error.value.status_code == 503


def test_the_key_comes_in_anthropics_header_and_its_lack_is_told_in_anthropics_form(smol_tokenizer: Tokenizer) -> None:
    with running(scripted_engine(smol_tokenizer, "one"), api_keys=("secret",), max_body_bytes=500) as server:
        asked: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 5}
        with client_of(server, "secret") as client:
            assert client.messages.create(**asked).content[0].text == "one"
            with pytest.raises(anthropic.APIStatusError) as error:
                client.messages.create(**asked | {"messages": LONG})
            assert (error.value.status_code, error.value.body["error"]["type"]) == (413, "request_too_large")
        with client_of(server, "wrong") as client, pytest.raises(anthropic.AuthenticationError) as refused:
            client.messages.create(**asked)
        body = anthropic.types.ErrorResponse.model_validate(refused.value.body)
        assert body.error.type == "authentication_error"
