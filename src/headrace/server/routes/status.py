"""GET /status: the engine's figures as JSON, for the page; /metrics has more, for Prometheus."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends

from headrace.server.context import Server, server_of

router = APIRouter()
_VERSION = version("headrace")


@router.get("/status")
def status(server: Server = Depends(server_of)) -> dict[str, Any]:  # noqa: B008
    """What the engine does now, and counters since its start.

    `step_seconds` and the counters rise; two answers and the difference of their `uptime_seconds` give rates.
    """
    bridge, config = server.bridge, server.config
    now = bridge.snapshot
    counters = now.counters
    return {
        "model": server.model,
        "version": _VERSION,
        "state": "paused" if bridge.state == "serving" and bridge.engine.is_paused else bridge.state,
        "chat": server.template is not None,
        "context": server.max_model_len,
        "uptime_seconds": round(time.time() - server.started, 3),
        "running": now.running,
        "max_running": config.max_num_seqs * config.data_parallel,
        "waiting": now.waiting,
        "pages": now.pages,
        "free_pages": now.free_pages,
        "steps": counters.steps,
        "step_seconds": round(counters.step_seconds.total, 6),
        "output_tokens": counters.tokens_sampled + counters.accepted_tokens,
        "prefix_queried_tokens": now.prefix_queried_tokens,
        "prefix_hit_tokens": now.prefix_hit_tokens,
        "preemptions": now.preemptions,
        "compilations": now.compilations,
    }
