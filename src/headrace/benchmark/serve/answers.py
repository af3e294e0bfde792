"""Answers of OpenAI's completions and chat completions, as they come: from bytes to a record."""

from __future__ import annotations

import json
from typing import Any

from headrace.benchmark.serve.http import ExchangeError, Response
from headrace.benchmark.serve.records import OK, RequestRecord
from headrace.benchmark.serve.sse import EventParser

_OUTPUTS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
HUNG_UP = "hung up"  # the kind that says that we left, as was planned
_EXCERPT = 300  # characters of an error's text that are kept


class Answer:
    """Reads one answer into a record.

    Args:
        record: takes the moments, the tokens and the end.
        began: the run's begin, on `time.perf_counter`.
        stream: whether events were asked for, rather than one document.
        hang_up_after: chunks with output after which to leave; None for never.
    """

    def __init__(self, record: RequestRecord, began: float, *, stream: bool, hang_up_after: int | None = None) -> None:
        self._record, self._began, self._stream, self._hang_up_after = record, began, stream, hang_up_after
        self._events = EventParser()
        self._body = bytearray()  # of what is no stream
        self._open: set[int] = set()  # choices that began and did not end
        self._done = False

    def receive(self, response: Response, now: float, body: bytes) -> None:
        """Takes a piece of the body.

        Raises:
            ExchangeError: it is an error, or not what the API promises.
        """
        if response.status != 200 or not self._stream:
            self._body += body
            self._record.end = now - self._began
            return
        for data in self._events.feed(body):
            if data == b"[DONE]":
                self._done = True
            else:
                self._chunk(now - self._began, data)

    def finish(self, response: Response) -> None:
        """Ends the record, once the whole answer has come.

        Raises:
            ExchangeError: it was no answer, or less than one.
        """
        record = self._record
        if response.status != 200:
            raise ExchangeError(f"HTTP {response.status}", _message_of(bytes(self._body)))
        if not self._stream:
            self._chunk(record.end, bytes(self._body))
        elif not self._done:
            raise ExchangeError("truncated", "the stream ended without [DONE]")
        if self._open or record.finish_reason is None:
            raise ExchangeError("no finish_reason", "the answer ended, but no finish_reason came")
        if record.counted_by == "chunks":
            record.output_tokens = len(record.chunks)
        record.outcome = OK

    def _chunk(self, now: float, data: bytes) -> None:
        try:
            self._take(now, json.loads(data.decode()))  # quicker than letting json guess
        except (ValueError, AttributeError, TypeError):
            excerpt = data[:_EXCERPT].decode(errors="replace")
            raise ExchangeError("malformed", f"no answer of this API: {excerpt}") from None

    def _take(self, now: float, chunk: dict[str, Any]) -> None:
        record = self._record
        if error := chunk.get("error"):
            raise ExchangeError("error event", _error_text(error))
        choices = chunk.get("choices")
        if choices:
            record.end = now
            brought = [self._choice(choice) for choice in choices]  # each has to be looked at
            if any(brought):
                record.chunks.append(now)
                if len(record.chunks) == self._hang_up_after:
                    raise ExchangeError(HUNG_UP, "as was planned")
        if usage := chunk.get("usage"):
            record.count(usage)

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Whether it brought any output; notes whether it ended."""
        index, reason = choice.get("index", 0), choice.get("finish_reason")
        if reason is None:
            self._open.add(index)
        else:
            self._open.discard(index)
            self._record.finish_reason = reason
            if reason in ("error", "abort"):
                raise ExchangeError(f"finish_reason {reason}", _error_text(choice))
        if choice.get("text"):
            return True
        delta = choice.get("delta") or choice.get("message") or {}
        return any(delta.get(name) for name in _OUTPUTS)


def _message_of(body: bytes) -> str:
    """The text of an error's body: OpenAI's form, or the beginning of whatever it is."""
    try:
        document = json.loads(body)
        return _error_text(document.get("error", document))
    except (ValueError, AttributeError):
        return body[:_EXCERPT].decode(errors="replace")


def _error_text(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or json.dumps(error))[:_EXCERPT]
