"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from headrace.sampling.checks import check_ids
from headrace.server.body import JSONRoute
from headrace.server.context import Server, server_of
from headrace.server.schema.tokenize import DetokenizeRequest, TokenizeRequest
from headrace.server.sse import answer
from headrace.server.turn import prompt_ids

router = APIRouter(route_class=JSONRoute)


@router.post("/tokenize", response_model=None)
async def tokenize(body: TokenizeRequest, request: Request, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """The tokens of a text, or of a chat."""
    server.check_model(body.model)
    body.check()
    body.log_unknown()
    return await answer(request, server.bridge.prepare(_tokenized, server, body))


@router.post("/detokenize", response_model=None)
async def detokenize(body: DetokenizeRequest, request: Request, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """The text of tokens, control tokens included."""
    server.check_model(body.model)
    body.log_unknown()
    return await answer(request, server.bridge.prepare(_detokenized, server, body))


def _tokenized(server: Server, body: TokenizeRequest) -> dict[str, Any]:
    ids = _ids(server, body)
    return {
        "count": len(ids),
        "max_model_len": server.max_model_len,
        "tokens": ids,
        "token_strs": [server.tokenizer.piece(id) for id in ids] if body.return_token_strs else None,
    }


def _ids(server: Server, body: TokenizeRequest) -> list[int]:
    tokenizer = server.tokenizer
    if body.messages is None:
        assert body.prompt is not None
        return tokenizer.encode(body.prompt, add_bos=body.add_special_tokens is not False)
    ids = prompt_ids(server, body.turn(body.messages))
    # The template has written what it wants before the first message; this comes on top, as the client asks.
    return [*tokenizer.encode(""), *ids] if body.add_special_tokens else ids


def _detokenized(server: Server, body: DetokenizeRequest) -> dict[str, Any]:
    check_ids("tokens", body.tokens, server.tokenizer.vocab_size)
    return {"prompt": server.tokenizer.decode(body.tokens, skip_special=False)}
