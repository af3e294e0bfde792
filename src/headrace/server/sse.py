"""Answers that stream, and answers that end when nobody waits for them any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.server.errors import as_api_error, error_response

T = TypeVar("T")
Event = dict[str, Any] | bytes  # bytes are sent as they are

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # json.dumps would make one for each event
DONE = b"data: [DONE]\n\n"
CLIENT_GONE = 499
# Proxies must neither keep events back nor keep them.
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def to_json(value: Any) -> str:
    """JSON as it goes over the wire."""
    return _ENCODER.encode(value)


def data_line(value: Any) -> bytes:
    """One server-sent event."""
    return f"data: {to_json(value)}\n\n".encode()


def named_event(event: dict[str, Any]) -> bytes:
    """One server-sent event whose name is its "type"."""
    return f"event: {event['type']}\ndata: {to_json(event)}\n\n".encode()


class EventStream(Response):
    """A stream of server-sent events, made of what a generator yields; it is closed as soon as the client hangs up.

    The first event is awaited before the answer begins, so that a request that is refused gets a status. A failure
    after that becomes an event of its own. `done` is sent at the end in any case.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Event, None], *, done: bytes = DONE) -> None:
        super().__init__(None, headers=HEADERS)
        del self.headers["content-length"]
        self._events, self._done = events, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await _until_gone(receive, self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._events, None)
        except Exception as error:  # nothing is sent yet: an answer like any other
            await error_response(error)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            if first is not None:
                await send(_body(_encoded(first)))
            async for event in self._events:
                await send(_body(_encoded(event)))
        except Exception as error:  # the status is sent: the client learns it as an event
            await send(_body(data_line(as_api_error(error).body)))
        await send({"type": "http.response.body", "body": self._done, "more_body": False})


async def answer(request: Request, work: Coroutine[Any, Any, Any]) -> Response:
    """The answer whose body some work gives, as a value or as JSON; the work is cancelled when the client hangs up."""
    done, body = await _until_gone(request.receive, work)
    if not done:
        return Response(status_code=CLIENT_GONE)  # which nobody reads; the log does
    return Response(body if isinstance(body, bytes) else to_json(body), media_type="application/json")


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> tuple[bool, T | None]:
    """Whether some work came to its end before the client hung up, and its result."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return True, task.result()
        return False, None
    finally:
        for each in (task, gone):
            each.cancel()
        # What the work holds is given back before anything else happens.
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encoded(event: Event) -> bytes:
    return event if isinstance(event, bytes) else data_line(event)


def _body(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
