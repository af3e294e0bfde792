"""What is known of the HTTP request that is being answered; the routes, the log, the metrics and traces share it."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any

from headrace.server.ids import new_id

if TYPE_CHECKING:
    from headrace.engine.intake import RequestParams

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


@dataclass(slots=True)
class RequestContext:
    """One HTTP request.

    Attributes:
        request_id: from the client's X-Request-Id if that is sane, else made; it is in the answer's header and the log.
        method, path, client: of the request; the client without its port.
        trace_headers: `traceparent` and `tracestate`, where given.
        started, started_ns: when it came, in seconds of `time.perf_counter` and nanoseconds since 1970.
        status: of the answer; None while it has not begun.
        streams: the answer is a stream of events.
        is_complete: the answer was sent to its end.
        params: of its first prompt.
        prompt_tokens: of all its prompts.
        cached_tokens: those of them that were in the prefix cache.
        output_tokens: of all choices.
        scheduled, first_token: when the first of its choices got a slot and a token.
        finish_reasons: of the choices that have ended.
    """

    request_id: str
    method: str
    path: str
    client: str
    trace_headers: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=perf_counter)
    started_ns: int = field(default_factory=time_ns)
    status: int | None = None
    streams: bool = False
    is_complete: bool = False
    params: RequestParams | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    scheduled: float | None = None
    first_token: float | None = None
    finish_reasons: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, scope: MutableMapping[str, Any]) -> RequestContext:
        """From an ASGI scope of type "http"."""
        wanted, trace = "", {}
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                wanted = value.decode("latin-1")
            elif name in (b"traceparent", b"tracestate"):
                trace[name.decode()] = value.decode("latin-1")
        client = scope.get("client")
        return cls(
            wanted if _SANE_ID.fullmatch(wanted) else new_id("req-"),
            scope["method"],
            scope["path"],
            client[0] if client else "",
            trace,
        )


current: ContextVar[RequestContext | None] = ContextVar("headrace_request", default=None)
