"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from headrace.server import told, turn
from headrace.server.body import JSONRoute
from headrace.server.context import Server, server_of
from headrace.server.responses.output import ResponseOutput
from headrace.server.schema.responses import ResponsesRequest
from headrace.server.sse import EventStream, answer

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/responses", response_model=None)
async def responses(body: ResponsesRequest, request: Request, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """Answer a conversation, in OpenAI's Responses form."""
    server.check_model(body.model)
    body.check()
    body.log_unknown()
    if body.stream:
        return EventStream(_events(server, body), done=b"")
    return await answer(request, _whole(server, body))


def _output(server: Server, body: ResponsesRequest, asked: turn.Turn, said: turn.Answer) -> ResponseOutput:
    return ResponseOutput(server.model, body.echo(asked.params), server.tokenizer, said.num_prompt_tokens)


async def _events(server: Server, body: ResponsesRequest) -> AsyncGenerator[bytes, None]:
    asked = body.turn(server.max_model_len)
    async with (
        turn.answer(server, asked) as said,
        aclosing(told.events(said, _output(server, body, asked, said))) as events,
    ):
        async for event in events:
            yield event


async def _whole(server: Server, body: ResponsesRequest) -> dict[str, Any]:
    asked = body.turn(server.max_model_len)
    async with turn.answer(server, asked) as said:
        last = await told.drain(said, _output(server, body, asked, said))
    whole: dict[str, Any] = last["response"]
    return whole


@router.post("/v1/responses/input_tokens")
async def input_tokens(body: ResponsesRequest, server: Server = Depends(server_of)) -> dict[str, Any]:  # noqa: B008
    """The tokens of a prompt."""
    server.check_model(body.model)
    body.check()
    body.log_unknown()
    ids = await server.bridge.prepare(turn.prompt_ids, server, body.turn(server.max_model_len))
    return {"object": "response.input_tokens", "input_tokens": len(ids)}
