"""An answer told as named events, whichever form these have."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, Protocol

from headrace.server.errors import APIError, as_api_error
from headrace.server.sse import named_event
from headrace.server.turn import Answer, AnswerDelta

Event = dict[str, Any]


class Output(Protocol):
    """Makes the events of one answer, of one choice, and keeps what has been said."""

    def begin(self) -> Iterator[Event]:
        """The events before the first delta."""

    def take(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events of what is new."""

    def finish(self, cached_tokens: int, reasoning_tokens: int) -> Iterator[Event]:
        """The events after the last delta; raises APIError where the answer was cut off by the server."""

    def fail(self, error: APIError) -> Iterator[Event]:
        """The events of a failure, after which nothing comes."""


async def events(said: Answer, output: Output) -> AsyncGenerator[bytes, None]:
    """The events of an answer, as they go over the wire."""
    for event in output.begin():
        yield named_event(event)
    try:
        async for event in _after_begin(said, output):
            yield named_event(event)
    except Exception as error:  # the stream has begun: its client learns it as an event
        for event in output.fail(as_api_error(error)):
            yield named_event(event)


async def drain(said: Answer, output: Output) -> Event:
    """The last event of an answer, when it has ended; what was said is in the output."""
    last: Event = {}
    async for event in _after_begin(said, output):
        last = event
    return last


async def _after_begin(said: Answer, output: Output) -> AsyncGenerator[Event, None]:
    async for deltas in said:
        for delta in deltas:
            for event in output.take(delta):
                yield event
    for event in output.finish(said.num_cached_tokens, said.num_reasoning_tokens):
        yield event
