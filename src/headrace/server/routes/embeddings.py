"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
from fastapi import APIRouter, Depends, Request, Response

from headrace.engine.pooling import PoolingParams
from headrace.errors import RequestError
from headrace.server.body import JSONRoute
from headrace.server.context import Server, server_of
from headrace.server.errors import SERVER, APIError, generation_error
from headrace.server.generation import Prompt
from headrace.server.schema.embeddings import EmbeddingsRequest
from headrace.server.sse import answer, to_json

router = APIRouter(route_class=JSONRoute)


@router.post("/v1/embeddings", response_model=None)
async def embeddings(body: EmbeddingsRequest, request: Request, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """Make a vector of each input: its pooled hidden states."""
    server.check_model(body.model)
    body.check(server.bridge.engine.manager.spec.hidden_size)
    body.log_unknown()
    return await answer(request, _answered(server, body, body.pooling_params()))


async def _answered(server: Server, body: EmbeddingsRequest, params: PoolingParams) -> bytes:
    prompts = await server.bridge.prepare(_prompts, server, body, params)
    vectors: dict[int, np.ndarray] = {}
    async with server.bridge.generate(prompts) as generation:
        async for batch in generation:
            for index, output in batch:
                if output.error is not None:
                    raise generation_error(output.error)
                if output.embedding is None:
                    raise APIError(503, "the request was aborted", type=SERVER, code="aborted")
                vectors[index] = output.embedding
    tokens = sum(len(prompt.ids) for prompt in prompts)
    listed = [vectors[index] for index in range(len(prompts))]
    return await asyncio.to_thread(_body, server.model, listed, tokens, body.encoding_format == "base64")


def _prompts(server: Server, body: EmbeddingsRequest, params: PoolingParams) -> list[Prompt]:
    """The inputs as tokens, checked; in a worker thread."""
    engine, add_bos = server.bridge.engine, body.add_special_tokens is not False
    prompts = []
    for one in body.inputs(server.options.max_prompts):
        try:
            ids = engine.tokenizer.encode(one, add_bos=add_bos) if isinstance(one, str) else one
            engine.check(ids, params, cache_salt=body.cache_salt)
        except RequestError as error:
            if error.param != "prompt":
                raise
            raise RequestError("input", str(error).removeprefix("prompt: ")) from None
        prompts.append(Prompt(engine.kept_prompt(ids, params), params, body.cache_salt))
    return prompts


def _body(model: str, vectors: list[np.ndarray], tokens: int, as_base64: bool) -> bytes:
    """The answer's JSON; in a worker thread, because a million numbers take a while to print."""
    encode = _base64 if as_base64 else _numbers
    data = ",".join(
        f'{{"object":"embedding","index":{index},"embedding":{encode(vector)}}}' for index, vector in enumerate(vectors)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return f'{{"object":"list","data":[{data}],"model":{to_json(model)},"usage":{to_json(usage)}}}'.encode()


def _numbers(vector: np.ndarray) -> str:
    # Nine digits tell every float32 from every other.
    return f"[{','.join(map('{:.9g}'.format, vector.tolist()))}]"


def _base64(vector: np.ndarray) -> str:
    return f'"{base64.b64encode(vector.astype("<f4").tobytes()).decode()}"'
