"""/admin/…: for the operator, behind a key of its own."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict

from headrace.engine.engine import Engine
from headrace.errors import ConfigError, ModelError, StepError
from headrace.models.weights import DecoderWeights
from headrace.server.body import JSONRoute
from headrace.server.context import Server, server_of
from headrace.server.errors import APIError, ConflictError
from headrace.server.sse import answer
from headrace.weights.load import Checkpoint, load_weights, open_checkpoint
from headrace.weights.packed import wanted
from headrace.weights.sources import resolve

router = APIRouter(prefix="/admin", route_class=JSONRoute)


class WeightsRequest(BaseModel):
    """Where new weights are: a path on the server's machine, or whatever else names a model on its command line."""

    model_config = ConfigDict(strict=True, extra="forbid")

    path: str


class PauseRequest(BaseModel):
    """What becomes of running requests: see `Engine.pause`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    mode: Literal["wait", "abort", "keep"] = "wait"


class ResetRequest(BaseModel):
    """Whether running requests are computed anew as well."""

    model_config = ConfigDict(strict=True, extra="forbid")

    recompute_running: bool = False


@router.post("/weights", response_model=None)
async def weights(body: WeightsRequest, server: Server = Depends(server_of)) -> dict[str, Any]:  # noqa: B008
    """Use the weights of another checkpoint of the same architecture, from the next step on.

    Running requests go on with them; to keep answers apart, pause first. The names and the tokenizer stay.
    """
    if server.loading.locked():
        raise ConflictError("other weights are being loaded")
    async with server.loading:
        # Not in the bridge's workers, which have to stay free for requests.
        checkpoint, loaded = await asyncio.to_thread(_load, server.bridge.engine, body.path)
        await server.bridge.call(lambda engine: _use(engine, checkpoint, loaded))
    return {"status": "ok", "path": str(checkpoint.path)}


@router.post("/pause", response_model=None)
async def pause(request: Request, body: PauseRequest | None = None, server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """Let nothing run until /admin/resume. New requests are taken and wait.

    With mode "wait" the answer comes when what has begun has ended; who hangs up before does not undo the pause.
    """
    mode = (body or PauseRequest()).mode
    return await answer(request, _pause(server, mode))


async def _pause(server: Server, mode: Literal["wait", "abort", "keep"]) -> dict[str, Any]:
    await server.bridge.pause(mode)
    return {"status": "paused"}


@router.post("/resume", response_model=None)
async def resume(server: Server = Depends(server_of)) -> dict[str, Any]:  # noqa: B008
    """Go on after a pause."""
    await server.bridge.call(lambda engine: engine.resume())
    return {"status": server.bridge.state}


@router.post("/prefix-cache/reset", response_model=None)
async def reset_prefix_cache(body: ResetRequest | None = None, server: Server = Depends(server_of)) -> dict[str, Any]:  # noqa: B008
    """Forget all cached prefixes."""
    await server.bridge.reset_prefix_cache(recompute_running=(body or ResetRequest()).recompute_running)
    return {"status": "ok"}


def _load(engine: Engine, path: str) -> tuple[Checkpoint, DecoderWeights]:
    """Reads a checkpoint in the form of the weights that there are."""
    try:
        checkpoint = open_checkpoint(resolve(path, progress=False))
        config, mesh = engine.config, engine.manager.mesh
        weights = load_weights(checkpoint, config.jax_dtype, config.weights_dtype, mesh, native=wanted(mesh))
        return checkpoint, weights
    except (ModelError, ConfigError) as error:
        raise _refused(error) from None


def _use(engine: Engine, checkpoint: Checkpoint, loaded: DecoderWeights) -> None:
    try:
        engine.update_graphs(loaded, graphdef=checkpoint.spec)
    except StepError as error:
        raise _refused(error) from None


def _refused(error: Exception) -> APIError:
    return APIError(400, f"path: {error}", param="path", code="weights_do_not_fit")
