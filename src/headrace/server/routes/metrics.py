"""GET /metrics: for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse

from headrace.server.context import Server, server_of
from headrace.server.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(server: Server = Depends(server_of)) -> Response:  # noqa: B008
    """The server's figures in Prometheus' text format."""
    return Response(server.metrics.render(), media_type=CONTENT_TYPE)
