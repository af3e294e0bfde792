"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from headrace.server import turn
from headrace.server.body import JSONRoute
from headrace.server.context import Server, server_of
from headrace.server.errors import generation_error
from headrace.server.ids import new_id
from headrace.server.logprobs import chat_entries
from headrace.server.reader import CallDelta
from headrace.server.schema.chat import ChatRequest
from headrace.server.sse import EventStream, answer
from headrace.server.turn import AnswerDelta, FinishedChoice
from headrace.server.usage import Usage

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, request: Request, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """Answer a conversation."""
    server.check_model(body.model)
    body.check()
    body.log_unknown()
    completion = _ChatCompletion(server, body)
    if body.stream:
        return EventStream(completion.events())
    return await answer(request, completion.whole())


class _ChatCompletion:
    """One request's answer."""

    def __init__(self, server: Server, body: ChatRequest) -> None:
        self._server, self._body, self._turn = server, body, body.turn(server)
        self._id, self._created = new_id("chatcmpl-"), int(time.time())
        self._has_begun: set[int] = set()  # choices whose role has been told

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Chunks with what is new of each choice: its role, then what it says, then why it ended."""
        options = self._body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        in_each = with_usage and options is not None and bool(options.continuous_usage_stats)
        async with turn.answer(self._server, self._turn) as said:
            usage = Usage(said.num_prompt_tokens)
            async for deltas in said:
                usage.cached_tokens = said.num_cached_tokens
                for delta in deltas:
                    if delta.error is not None:
                        raise generation_error(delta.error)
                    usage.completion_tokens += len(delta.token_ids)
                    for choice in self._chunks(delta):
                        chunk = self._body_of("chat.completion.chunk", [choice])
                        yield chunk | {"usage": usage.body() if in_each else None} if with_usage else chunk
        if with_usage:
            yield self._body_of("chat.completion.chunk", []) | {"usage": usage.body()}

    async def whole(self) -> dict[str, Any]:
        """The complete answer."""
        async with turn.answer(self._server, self._turn) as said:
            choices = await said.collect()
        usage = Usage(said.num_prompt_tokens)
        usage.cached_tokens = said.num_cached_tokens
        for choice in choices:
            if choice.error is not None:
                raise generation_error(choice.error)
            usage.completion_tokens += len(choice.token_ids)
        return self._body_of("chat.completion", [self._choice(choice) for choice in choices]) | {"usage": usage.body()}

    def _chunks(self, delta: AnswerDelta) -> Iterator[dict[str, Any]]:
        """The entries of "choices" that a delta makes, each for a chunk of its own."""
        if delta.index not in self._has_begun:
            self._has_begun.add(delta.index)
            yield self._entry(delta.index, {"role": "assistant", "content": ""})
        said: dict[str, Any] = {}
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if delta.content:
            said["content"] = delta.content
        if delta.calls:
            said["tool_calls"] = [_call_delta(call) for call in delta.calls]
        logprobs = self._logprobs(delta)
        if said or delta.logprobs:
            yield self._entry(delta.index, said or {"content": ""}, logprobs)
        if delta.finish_reason is not None:
            yield self._entry(delta.index, {}, None, delta.finish_reason)

    def _entry(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _choice(self, choice: FinishedChoice) -> dict[str, Any]:
        content = None if choice.calls and not choice.content else choice.content
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["tool_calls"] = [_call(call) for call in choice.calls]
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, said: AnswerDelta | FinishedChoice) -> dict[str, Any] | None:
        if self._turn.params.logprobs is None:
            return None
        return {"content": chat_entries(self._server.tokenizer, said.logprobs), "refusal": None}

    def _body_of(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._server.model,
            "choices": choices,
        }


def _call(call: CallDelta) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_delta(call: CallDelta) -> dict[str, Any]:
    """A call in a stream: who it is comes once."""
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **_call(call)}
