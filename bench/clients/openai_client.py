"""The OpenAI client against a running server: chat, streaming, tools, JSON schema, logprobs, n=2, embeddings, and more.

    python bench/clients/openai_client.py http://127.0.0.1:8000 [MODEL]

Needs the package `openai`. Each answer is held, field by field, to the shape that OpenAI's API reference gives as its
example of that answer: every field of the example is there, with a value of its type.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

NUMBER, TEXT, NULL = (int, float), str, type(None)

# The examples of https://platform.openai.com/docs/api-reference, values replaced by their types.
USAGE = {
    "prompt_tokens": int,
    "completion_tokens": int,
    "total_tokens": int,
    "prompt_tokens_details": {"cached_tokens": int},
}
HEAD = {"id": TEXT, "created": int, "model": TEXT}
CHAT = {
    **HEAD,
    "object": "chat.completion",
    "choices": [
        {
            "index": int,
            "message": {"role": "assistant", "content": TEXT, "refusal": NULL},
            "logprobs": NULL,
            "finish_reason": TEXT,
        }
    ],
    "usage": USAGE,
}
CHUNK = {
    **HEAD,
    "object": "chat.completion.chunk",
    "choices": [{"index": int, "delta": dict, "logprobs": NULL, "finish_reason": (TEXT, NULL)}],
}
CALL = {"id": TEXT, "type": "function", "function": {"name": TEXT, "arguments": TEXT}}
TOKEN = {"token": TEXT, "logprob": NUMBER, "bytes": [int]}
EMBEDDING = {"object": "embedding", "index": int, "embedding": [float]}
EMBEDDINGS = {
    "object": "list",
    "data": [EMBEDDING],
    "model": TEXT,
    "usage": {"prompt_tokens": int, "total_tokens": int},
}
OUTPUT_TEXT = {"type": "output_text", "text": TEXT, "annotations": list}
MESSAGE = {"type": "message", "id": TEXT, "status": "completed", "role": "assistant", "content": [OUTPUT_TEXT]}
RESPONSE = {
    "id": TEXT,
    "object": "response",
    "created_at": NUMBER,
    "status": "completed",
    "error": NULL,
    "incomplete_details": NULL,
    "instructions": (TEXT, NULL),
    "max_output_tokens": (int, NULL),
    "model": TEXT,
    "output": [MESSAGE],
    "parallel_tool_calls": bool,
    "temperature": NUMBER,
    "tool_choice": TEXT,
    "tools": list,
    "top_p": NUMBER,
    "usage": {"input_tokens": int, "output_tokens": int, "total_tokens": int},
}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOL = {"type": "function", "function": WEATHER}
ASK = [{"role": "user", "content": "What is the capital of France?"}]


def hold(value: Any, shape: Any, where: str) -> None:
    """Raises AssertionError where a value has not the shape."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), f"{where} is {value!r}"
        for name, inner in shape.items():
            assert name in value, f"{where}.{name} is missing"
            hold(value[name], inner, f"{where}.{name}")
    elif isinstance(shape, list):
        assert isinstance(value, list), f"{where} is {value!r}"
        assert value, f"{where} is empty"
        for index, one in enumerate(value):
            hold(one, shape[0], f"{where}[{index}]")
    elif isinstance(shape, str):
        assert value == shape, f"{where} is {value!r}, not {shape!r}"
    else:
        assert isinstance(value, shape), f"{where} is {value!r}"


def main(url: str, model: str | None) -> int:
    """Runs all checks; the exit status."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = model or client.models.list().data[0].id
    common = {"model": model, "temperature": 0, "max_tokens": 24}
    failed = 0
    for check in (chat, stream, tools, tools_streamed, json_schema, logprobs, two_choices, embeddings, responses):
        try:
            print(f"ok    {check.__name__}: {check(client, dict(common))}")
        except (AssertionError, openai.OpenAIError) as error:
            failed += 1
            print(f"FAILED {check.__name__}: {error}")
    return failed


def chat(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """A plain answer."""
    answer = client.chat.completions.create(**common, messages=ASK)
    hold(answer.model_dump(), CHAT, "answer")
    return repr(answer.choices[0].message.content)


def stream(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """The same, streamed."""
    whole = client.chat.completions.create(**common, messages=ASK).choices[0].message.content
    chunks = [
        *client.chat.completions.create(**common, messages=ASK, stream=True, stream_options={"include_usage": True})
    ]
    for chunk in chunks[:-1]:
        hold(chunk.model_dump(), CHUNK, "chunk")
    hold(
        chunks[-1].model_dump(),
        {**HEAD, "object": "chat.completion.chunk", "choices": list, "usage": USAGE},
        "last chunk",
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole, f"{text!r} is not {whole!r}"
    return f"{len(chunks)} chunks"


def tools(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """A call that the request insists on."""
    answer = client.chat.completions.create(**common, messages=ASK, tools=[TOOL], tool_choice="required")
    choice = answer.choices[0].model_dump()
    hold(
        choice,
        {"message": {"role": "assistant", "content": NULL, "tool_calls": [CALL]}, "finish_reason": "tool_calls"},
        "choice",
    )
    function = choice["message"]["tool_calls"][0]["function"]
    assert function["name"] == "get_weather"
    assert json.loads(function["arguments"])["city"] in ("Paris", "Rome")
    return function["arguments"]


def tools_streamed(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """The same, streamed, put together by the client library."""
    with client.chat.completions.stream(**common, messages=ASK, tools=[TOOL], tool_choice="required") as events:
        final = events.get_final_completion()
    function = final.choices[0].message.tool_calls[0].function
    assert json.loads(function.arguments)["city"] in ("Paris", "Rome")
    return function.arguments


def json_schema(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """An answer that has to fit a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "weather", "schema": WEATHER["parameters"], "strict": True}}
    answer = client.chat.completions.create(**common, messages=ASK, response_format=form)
    content = answer.choices[0].message.content
    assert set(json.loads(content)) == {"city"}
    return content


def logprobs(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """Log-probabilities of each token and of two in its place."""
    answer = client.chat.completions.create(**common, messages=ASK, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.model_dump()["content"]
    hold(content, [{**TOKEN, "top_logprobs": [TOKEN]}], "content")
    assert len(content) == answer.usage.completion_tokens
    assert all(len(one["top_logprobs"]) == 2 for one in content)
    return f"{len(content)} tokens"


def two_choices(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """Two answers to one question."""
    answer = client.chat.completions.create(**{**common, "temperature": 1}, messages=ASK, n=2)
    hold(answer.model_dump(), CHAT, "answer")
    assert [choice.index for choice in answer.choices] == [0, 1]
    return f"{answer.usage.completion_tokens} tokens"


def embeddings(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """Vectors of two texts, in both encodings."""
    answer = client.embeddings.create(model=common["model"], input=["a river", "the sea"], encoding_format="float")
    hold(answer.model_dump(), EMBEDDINGS, "answer")
    packed = client.embeddings.create(model=common["model"], input=["a river", "the sea"])
    for one, other in zip(answer.data, packed.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
    return f"{len(answer.data[0].embedding)} dimensions"


def responses(client: openai.OpenAI, common: dict[str, Any]) -> str:
    """The Responses API, whole and streamed."""
    given = {"model": common["model"], "temperature": 0, "max_output_tokens": 64, "input": ASK[0]["content"]}
    answer = client.responses.create(**given)
    hold(answer.model_dump(), RESPONSE, "response")
    with client.responses.stream(**given) as events:
        kinds = [event.type for event in events]
        assert events.get_final_response().output_text == answer.output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    return repr(answer.output_text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/"), sys.argv[2] if len(sys.argv) > 2 else None))
