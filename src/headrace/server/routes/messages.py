"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from headrace.sampling.params import SamplingParams
from headrace.server import told, turn
from headrace.server.body import JSONRoute
from headrace.server.context import Server, server_of
from headrace.server.messages.output import MessageOutput
from headrace.server.schema.messages import CountTokensRequest, MessagesRequest
from headrace.server.sse import EventStream, answer

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/messages", response_model=None)
async def messages(body: MessagesRequest, request: Request, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """Answer a conversation, in Anthropic's Messages form."""
    server.check_model(body.model)
    body.check()
    body.log_unknown()
    asked = body.turn(body.params())
    if body.stream:
        return EventStream(_events(server, body, asked), done=b"")
    return await answer(request, _whole(server, body, asked))


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, server: Server = Depends(server_of)) -> dict[str, int]:  # noqa: B008
    """The tokens of a prompt."""
    server.check_model(body.model)
    body.check()
    body.log_unknown()
    ids = await server.bridge.prepare(turn.prompt_ids, server, body.turn(SamplingParams()))
    return {"input_tokens": len(ids)}


def _output(server: Server, body: MessagesRequest, said: turn.Answer) -> MessageOutput:
    return MessageOutput(server.model, said.num_prompt_tokens, body.max_tokens, body.stop_sequences or ())


async def _events(server: Server, body: MessagesRequest, asked: turn.Turn) -> AsyncGenerator[bytes, None]:
    async with turn.answer(server, asked) as said, aclosing(told.events(said, _output(server, body, said))) as events:
        async for event in events:
            yield event


async def _whole(server: Server, body: MessagesRequest, asked: turn.Turn) -> dict[str, Any]:
    async with turn.answer(server, asked) as said:
        output = _output(server, body, said)
        await told.drain(said, output)
    return output.message
