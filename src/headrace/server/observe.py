"""What surrounds every HTTP request: its id, its line in the log, its figures, its trace, and an end to every error."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.metrics import Metrics
from headrace.server.request_context import RequestContext, current
from headrace.server.tracing import Tracing

CLIENT_CLOSED_REQUEST = 499  # what nginx logs where the client left before an answer began
# What is asked for every few seconds is no news.
QUIET = frozenset({"/health", "/ready", "/metrics", "/status"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"
_LONGEST_PATH = 200

log = logging.getLogger("headrace.server.requests")


class Observe:
    """The outermost ASGI application. An exception that nobody handled ends here: traceback in the log, 500 outside.

    Args:
        paths: of routes without parameters, for requests that are answered before they reach their route.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, tracing: Tracing | None = None, paths: Iterable[str] = ()
    ) -> None:
        self._app, self._metrics, self._tracing, self._paths = app, metrics, tracing, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext.of(scope)
        token = current.set(context)
        self._metrics.http_open += 1

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = context.request_id
                context.streams = headers.get("content-type", "").startswith("text/event-stream")
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                context.is_complete = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            context.status, context.is_complete = CLIENT_CLOSED_REQUEST, False  # whatever was sent into the void
        except Exception:
            if not context.is_complete:  # else a handler has logged it and answered
                log.exception("internal error")
            if context.status is None:
                await _send_internal_error(sending)
        finally:
            self._metrics.http_open -= 1
            self._close(context, scope)
            current.reset(token)

    def _close(self, context: RequestContext, scope: Scope) -> None:
        """The request is over, one way or another."""
        seconds = perf_counter() - context.started
        handler = self._handler(scope)
        method = context.method if context.method in METHODS else "other"
        if context.status is None:
            context.status = CLIENT_CLOSED_REQUEST
        self._metrics.on_answer(handler, method, context.status, seconds)
        if self._tracing is not None and handler not in QUIET:
            self._tracing.record(context, handler)
        level = logging.WARNING if context.status >= 500 else logging.INFO
        if handler in QUIET and context.status < 400:
            level = logging.DEBUG
        if log.isEnabledFor(level):
            route = handler if handler != NO_ROUTE else context.path[:_LONGEST_PATH]
            log.log(
                level, "%s %s %d", method, route, context.status, extra={"fields": _fields(context, route, seconds)}
            )

    def _handler(self, scope: Scope) -> str:
        """The path of the route as declared: of these there are only so many."""
        path: str | None = getattr(scope.get("route"), "path", None)
        if path is None:
            path = scope["path"] if scope["path"] in self._paths else NO_ROUTE
        return path


def _fields(context: RequestContext, route: str, seconds: float) -> dict[str, Any]:
    """What the log says of a request: neither its text nor its key."""
    fields: dict[str, Any] = {
        "client": context.client,
        "method": context.method,
        "route": route,
        "status": context.status,
        "seconds": round(seconds, 4),
    }
    if not context.is_complete or context.status == CLIENT_CLOSED_REQUEST:
        fields["incomplete"] = True
    if context.params is not None:
        fields["stream"] = context.streams
        fields["prompt_tokens"], fields["cached_tokens"] = context.prompt_tokens, context.cached_tokens
        fields["output_tokens"] = context.output_tokens
        if context.first_token is not None:
            fields["first_token_seconds"] = round(context.first_token - context.started, 4)
        if context.scheduled is not None:
            fields["scheduled_seconds"] = round(context.scheduled - context.started, 4)
        fields["finish_reasons"] = list(context.finish_reasons)
    return fields


async def _send_internal_error(send: Send) -> None:
    error = {"message": "internal error", "type": "server_error", "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})
