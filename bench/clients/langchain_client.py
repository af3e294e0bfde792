"""LangChain's ChatOpenAI against a running server: an answer, a stream, a structured answer, a tool call.

    python bench/clients/langchain_client.py http://127.0.0.1:8000 [MODEL]

Needs the package `langchain-openai`.
"""

from __future__ import annotations

import sys
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    is_sunny: bool


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


def main(url: str, model: str) -> None:
    """Runs all checks; any that fails raises."""
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=48, max_retries=0)
    question = "What is the capital of France?"
    answer = chat.invoke(question)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    print(f"invoke: {answer.content!r}")
    streamed = "".join(chunk.content for chunk in chat.stream(question))
    assert streamed == answer.content
    print("stream: the same")
    for method in ("json_schema", "function_calling"):
        weather = chat.with_structured_output(Weather, method=method).invoke(question)
        assert isinstance(weather, Weather)
        print(f"structured output by {method}: {weather!r}")
    called = chat.bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False).invoke(question)
    assert called.tool_calls[0]["name"] == "get_weather"
    result = get_weather.invoke(called.tool_calls[0])
    after = chat.invoke([("human", question), called, result])
    assert isinstance(after.content, str)
    print(f"tool call {called.tool_calls[0]['args']}, and after it: {after.content!r}")
    vectors = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="none", model=model, check_embedding_ctx_length=False)
    assert len(vectors.embed_documents(["a", "b"])) == 2
    print("embeddings: 2")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2] if len(sys.argv) > 2 else "smollm2")
