"""Chat completions, asked for whole and streamed, and held against the client library's types."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from server.running import Running

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}
NASTY = 'a "q" \\ b\nc é'


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    """A tool whose parameters are all required."""
    schema = {
        "type": "object",
        "properties": parameters,
        "required": [*parameters],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": f"Do {name}.", "parameters": schema}}


NOTE = tool("note", text={"type": "string", "enum": [NASTY]})
ADD = tool("add", a={"enum": [1, 2]}, b={"type": "boolean"})


@dataclass
class Chunks:
    """What the chunks of one choice say together."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None


def both(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The choices of a whole answer, once it is known that a stream says the same in the right form."""
    body = {"model": "tiny", "messages": [USER], "seed": 1, **body}
    response = server.post(CHAT, **body)
    assert response.status_code == 200, response.text
    whole = response.json()
    ChatCompletion.model_validate(whole, strict=True)
    events = server.stream(CHAT, **body, stream_options={"include_usage": True})
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    last = chunks.pop()
    assert last["choices"] == []
    usage = {**last["usage"], "prompt_tokens_details": None}
    assert usage == {**whole["usage"], "prompt_tokens_details": None}  # the second may find more in the cache
    streamed = merged(chunks)
    choices: list[dict[str, Any]] = whole["choices"]
    assert [choice["index"] for choice in choices] == [*range(body.get("n") or 1)] == sorted(streamed)
    for choice in choices:
        _compare(choice, streamed[choice["index"]])
    return choices


def merged(chunks: list[dict[str, Any]]) -> dict[int, Chunks]:
    """The chunks of each choice together; each has the role once, at first, and a reason once, at last."""
    choices: dict[int, Chunks] = {}
    for chunk in chunks:
        [choice] = chunk["choices"]
        delta, index = choice["delta"], choice["index"]
        if index not in choices:
            assert delta == {"role": "assistant", "content": ""}
            choices[index] = Chunks()
            continue
        one = choices[index]
        assert one.finish_reason is None
        assert "role" not in delta
        if choice["finish_reason"] is not None:
            assert (delta, choice["logprobs"]) == ({}, None)
            one.finish_reason = choice["finish_reason"]
            continue
        one.content += delta.get("content", "")
        one.reasoning += delta.get("reasoning_content", "")
        one.logprobs += choice["logprobs"]["content"] if choice["logprobs"] else []
        for call in delta.get("tool_calls", []):
            _add_call(one.calls, call)
    return choices


def _add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    """A call's id, type and name come once, in its first delta."""
    index = delta.pop("index")
    if index == len(calls):
        assert delta["id"]
        assert (delta["type"], set(delta["function"])) == ("function", {"name", "arguments"})
        calls.append(delta)
    else:
        assert index == len(calls) - 1
        assert (set(delta), set(delta["function"])) == ({"function"}, {"arguments"})
        calls[index]["function"]["arguments"] += delta["function"]["arguments"]


def _compare(choice: dict[str, Any], streamed: Chunks) -> None:
    message = choice["message"]
    assert streamed.content == (message["content"] or "")
    assert streamed.reasoning == message.get("reasoning_content", "")
    assert streamed.finish_reason == choice["finish_reason"]
    assert streamed.logprobs == (choice["logprobs"] or {"content": []})["content"]
    called = message.get("tool_calls", [])
    assert [call["function"] for call in streamed.calls] == [call["function"] for call in called]
    ids = [call["id"] for call in [*called, *streamed.calls]]
    assert len(set(ids)) == len(ids)


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and arguments of a choice's calls."""
    functions = [call["function"] for call in choice["message"].get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]
