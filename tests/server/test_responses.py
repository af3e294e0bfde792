"""/v1/responses over a real server, with OpenAI's own client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from openai.types.responses.response_output_message import ResponseOutputMessage

from headrace.text.tokenizer import Tokenizer
from server.chats import ADD, NOTE
from server.families import THINKING, family_tokenizer
from server.running import Running, running
from server.scripted import scripted_engine
from server.test_answer_events import check_response, without_ids

GREEDY = {"model": "tiny", "temperature": 0}
CITY = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Kiel"]}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
CALLS = [("note", {"text": "é"}), ("add", {"a": 1, "b": True})]
HERMES = "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    for name, arguments in CALLS
)
TOOL = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": CITY, "strict": True}


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as one:
        yield one


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer; each has its type as its name."""
    with server.client.stream("POST", "/v1/responses", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        text = response.read().decode()
    blocks = text.removesuffix("\n\n").split("\n\n")
    pairs = [block.split("\n") for block in blocks]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {event['type']}" for event in events]
    return events


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Hi", "max_output_tokens": 6},
        {"input": "Hi", "max_output_tokens": 6, "instructions": "Be brief.", "temperature": 1, "seed": 5},
        {"input": "Hi", "max_output_tokens": 4, "top_logprobs": 2, "include": ["message.output_text.logprobs"]},
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "w", "schema": CITY}}},
        {"input": "Hi", "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {"input": "Hi", "tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}},
    ],
)
def test_a_streamed_answer_is_the_whole_answer(server: Running, body: dict[str, Any]) -> None:
    asked = {**GREEDY, **body}
    server.post("/v1/responses", **asked)  # fills the cache
    whole = server.post("/v1/responses", **asked)
    assert whole.status_code == 200, whole.text
    Response.model_validate_json(whole.text, strict=True)
    response = check_response(events_of(server, **asked))
    assert without_ids(response) == without_ids(whole.json())


def test_text_is_what_chat_answers(server: Running) -> None:
    """The same conversation gives the same prompt and, with the same seed, the same answer."""
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "A"},
    ]
    sampling = {"model": "tiny", "temperature": 0.7, "seed": 4, "top_p": 0.9}
    chatted = {"messages": [{"role": "system", "content": "Be."}, *said], "max_tokens": 9, "logprobs": True}
    chat = server.post("/v1/chat/completions", **chatted, top_logprobs=2, **sampling).json()
    response = server.post(
        "/v1/responses", input=said, instructions="Be.", max_output_tokens=9, top_logprobs=2, **sampling
    ).json()
    assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert response["output"][0]["content"][0]["logprobs"] == chat["choices"][0]["logprobs"]["content"]
    usage = response["usage"]
    assert usage["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert usage["output_tokens"] == chat["usage"]["completion_tokens"] == 9
    count = server.post("/v1/responses/input_tokens", model="tiny", input=said, instructions="Be.")
    assert count.json() == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}


def test_forced_calls(server: Running, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "Hi", "temperature": 0, "tools": [TOOL]}
    for choice in ("required", {"type": "function", "name": "weather"}):
        with client.responses.stream(**asked, tool_choice=choice, parallel_tool_calls=False) as stream:
            [call] = stream.until_done().get_final_response().output
        assert call.type == "function_call"
        assert call.name == "weather"
        assert json.loads(call.arguments)["city"] in ("Ulm", "Kiel")
        # What came out goes in again, as it is.
        history = [{"role": "user", "content": "Hi"}, call.to_dict()]
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        answer = client.responses.create(**asked | {"input": history}, tool_choice="none", max_output_tokens=4)
        assert isinstance(answer.output[0], ResponseOutputMessage)


def _up_to(tokenizer: Tokenizer, said: str, end: str) -> list[int]:
    """The tokens until a text is complete."""
    ids = tokenizer.encode(said, add_bos=False)
    return next(ids[:count] for count in range(len(ids)) if end in tokenizer.decode(ids[:count]))


def test_reasoning_and_calls_of_a_models_own(smollm2_path: Path) -> None:
    tokenizer = family_tokenizer(smollm2_path, THINKING)
    said = f"Hm.\n</think>\n\nI look.\n{HERMES}\nDone."
    tools = [{"type": "function", **one["function"]} for one in (NOTE, ADD)]
    asked: dict[str, Any] = {"model": "tiny", "tools": tools, "reasoning": {"effort": "high"}}
    with running(scripted_engine(tokenizer, said)) as server:
        whole = server.post("/v1/responses", **asked, input="Hi").json()
        streamed = check_response(events_of(server, **asked, input="Hi"))
        assert without_ids(streamed["output"]) == without_ids(whole["output"])
        reasoning, text, note, add, end = whole["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert [item["content"][0]["text"] for item in (text, end)] == ["I look.", "Done."]
        assert [(call["name"], json.loads(call["arguments"])) for call in (note, add)] == CALLS
        usage = whole["usage"]
        assert usage["output_tokens"] == len(tokenizer.encode(said, add_bos=False)) + 1
        assert usage["output_tokens_details"] == {"reasoning_tokens": len(_up_to(tokenizer, said, "</think>"))}
        assert streamed["usage"]["output_tokens_details"] == usage["output_tokens_details"]
        # What came out goes in again, as it is.
        results = [{"type": "function_call_output", "call_id": one["call_id"], "output": "3"} for one in (note, add)]
        history = [{"role": "user", "content": "Hi"}, *whole["output"], *results]
        assert server.post("/v1/responses", **asked, input=history).status_code == 200


def test_the_clients_stream_helper(client: openai.OpenAI) -> None:
    said = ""
    with client.responses.stream(
        model="tiny", input="Hi", max_output_tokens=6, extra_body={"ignore_eos": True}
    ) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                said += event.delta
                assert event.snapshot == said
    assert event.type == "response.incomplete"
    assert event.response.output_text == said
    assert event.response.incomplete_details is not None
    assert event.response.incomplete_details.reason == "max_output_tokens"
    assert event.response.output[0].status == "incomplete"


def test_errors_before_the_stream_are_answers(server: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="other"):
        client.responses.create(model="other", input="Hi")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(model="tiny", input="Hi", previous_response_id="resp_1", stream=stream)
        with pytest.raises(openai.BadRequestError, match=r"input\.0\.type"):
            client.responses.create(model="tiny", input=[{"type": "item_reference", "id": "x"}], stream=stream)
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(model="tiny", input="Hi " * 600, stream=stream)
        assert error.value.code == "invalid_value"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_a_failure_inside_the_stream_ends_it_with_an_event(smol_tokenizer: Tokenizer) -> None:
    engine = scripted_engine(smol_tokenizer, "one two three four five six")
    steps = iter(range(10**9))
    step = engine.step

    def failing() -> Any:
        if next(steps) == 4:
            raise RuntimeError("a secret")
        return step()

    engine.step = failing  # type: ignore[method-assign]
    with running(engine) as server:
        events = events_of(server, model="tiny", input="Hi")
        response = check_response(events)
        assert response["status"] == "failed"
        assert response["output"][0]["content"][0]["text"].startswith("one")
        assert "secret" not in json.dumps(events)
        assert server.post("/v1/responses", model="tiny", input="Hi").status_code == 503


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_is_forgotten(smol_tokenizer: Tokenizer, path: str, stream: bool) -> None:
    engine = scripted_engine(smol_tokenizer, "la " * 900)
    step = engine.step
    engine.step = lambda: (time.sleep(0.01), step())[1]  # type: ignore[method-assign]
    body = {"model": "tiny", "input": "Hi", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 900}
    asked = {"model", "input"} if path == "/v1/responses" else {"model", "messages", "max_tokens"}
    with running(engine) as server:
        request = {name: body[name] for name in asked} | {"stream": stream}
        if stream:
            with server.client.stream("POST", path, json=request) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                server.client.post(path, json=request, timeout=0.5)
        deadline = time.monotonic() + 20
        while engine.has_unfinished:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert engine.metrics.free_pages == engine.metrics.pages
