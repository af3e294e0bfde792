"""GET /v1/models, /v1/models/{model} and /version."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends

from headrace.server.context import Server, server_of

router = APIRouter()


@router.get("/v1/models")
async def models(server: Server = Depends(server_of)) -> dict[str, Any]:  # noqa: B008
    """The model, once for each of its names."""
    return {"object": "list", "data": [_model(server, name) for name in server.model_names]}


@router.get("/v1/models/{model:path}")
async def model(model: str, server: Server = Depends(server_of)) -> dict[str, Any]:  # noqa: B008
    """One model."""
    server.check_model(model)
    return _model(server, model)


@router.get("/version")
async def server_version() -> dict[str, str]:
    """The version of this program."""
    return {"version": version("headrace")}


def _model(server: Server, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": server.started,
        "owned_by": "headrace",
        "root": server.model,  # not the path: that is nobody's business
        "max_model_len": server.max_model_len,
    }
