"""GET /health and /ready: for supervisors and load balancers. They need no key."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from headrace.server.context import Server, server_of

router = APIRouter()


@router.get("/health")
async def health(server: Server = Depends(server_of)) -> JSONResponse:  # noqa: B008
    """200 as long as the engine lives; 503 when the process should be started again."""
    state = server.bridge.state
    return JSONResponse({"status": "dead" if state == "dead" else "ok"}, 503 if state == "dead" else 200)


@router.get("/ready")
async def ready(server: Server = Depends(server_of)) -> JSONResponse:  # noqa: B008
    """200 when new requests are taken, also where they wait for the end of a pause; 503 while shutting down, or when
    the engine is dead."""
    state = server.bridge.state
    return JSONResponse({"status": state}, 200 if state in ("serving", "paused") else 503)
