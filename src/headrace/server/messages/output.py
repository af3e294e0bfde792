"""The Message object and its events, made of an answer's deltas."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from headrace.server.errors import APIError, generation_error
from headrace.server.ids import new_id
from headrace.server.messages.errors import anthropic_body
from headrace.server.messages.input import ID_PREFIX
from headrace.server.turn import AnswerDelta

Event = dict[str, Any]

_ABORTED = "the answer was cut off by the server"


@dataclass
class _Block:
    """A content block: what it is when it begins, and how it grows.

    Attributes:
        start: the block of its `content_block_start`.
        delta_type, delta_field: of its deltas.
        texts: of its deltas, so far.
    """

    start: dict[str, Any]
    delta_type: str
    delta_field: str
    texts: list[str] = field(default_factory=list)

    @property
    def body(self) -> dict[str, Any]:
        """The block as it is now."""
        text = "".join(self.texts)
        if self.start["type"] != "tool_use":
            return self.start | {self.start["type"]: text}
        return self.start | {"input": _input(text)}


def _input(text: str) -> dict[str, Any]:
    """A call's arguments as an object. What the model wrote wrongly is kept as Anthropic advises its clients to."""
    try:
        # An answer that was cut off may end inside: what is there counts, as in the clients' own reading.
        value = from_json(text or "{}", allow_inf_nan=False, allow_partial=True)
        json.dumps(value, allow_nan=False)  # 1e999 is JSON, and infinite
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}


def _text() -> _Block:
    return _Block({"type": "text", "text": ""}, "text_delta", "text")


def _thinking() -> _Block:
    return _Block({"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking")


def _tool_use(call_id: str, name: str) -> _Block:
    start = {"type": "tool_use", "id": ID_PREFIX + call_id, "name": name, "input": {}}
    return _Block(start, "input_json_delta", "partial_json")


class MessageOutput:
    """Grows by deltas. A streamed answer sends the events; one that is not streamed has only `message`.

    Args:
        model: what answers call the model.
        prompt_tokens: how many the prompt has.
        max_tokens: as many may be generated.
        stops: stop sequences that the client gave.
    """

    def __init__(self, model: str, prompt_tokens: int, max_tokens: int, stops: Collection[str]) -> None:
        self._id, self._model = new_id("msg_"), model
        self._prompt_tokens, self._max_tokens, self._stops = prompt_tokens, max_tokens, stops
        self._blocks: list[_Block] = []
        self._is_open = False
        self._output_tokens = self._cached_tokens = self._reasoning_tokens = 0
        self._finish_reason: str | None = None
        self._stop_reason: str | int | None = None

    def begin(self) -> Iterator[Event]:
        """The events before the first delta."""
        yield {"type": "message_start", "message": self.message | {"stop_reason": None}}

    def take(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events of what is new.

        Raises:
            APIError: the answer ended with an error.
        """
        if delta.error is not None:
            raise generation_error(delta.error)
        if delta.finish_reason is not None:
            self._finish_reason, self._stop_reason = delta.finish_reason, delta.stop_reason
        self._output_tokens += len(delta.token_ids)
        if delta.reasoning:
            yield from self._grow("thinking", _thinking, delta.reasoning)
        if delta.content:
            yield from self._grow("text", _text, delta.content)
        for call in delta.calls:
            if call.id is not None and call.name is not None:
                yield from self._turn_to(_tool_use(call.id, call.name))
            if call.arguments:
                yield self._delta(call.arguments)

    def _grow(self, kind: str, new: Any, text: str) -> Iterator[Event]:
        if not self._is_open or self._blocks[-1].start["type"] != kind:
            yield from self._turn_to(new())
        yield self._delta(text)

    def _turn_to(self, block: _Block) -> Iterator[Event]:
        yield from self._end_block()
        self._blocks.append(block)
        self._is_open = True
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block.start}

    def _delta(self, text: str) -> Event:
        block = self._blocks[-1]
        block.texts.append(text)
        delta = {"type": block.delta_type, block.delta_field: text}
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _end_block(self) -> Iterator[Event]:
        if self._is_open:
            self._is_open = False
            yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def finish(self, cached_tokens: int, reasoning_tokens: int) -> Iterator[Event]:
        """The events after the last delta.

        Args:
            cached_tokens: of the prompt, whose keys and values were there already.
            reasoning_tokens: of the answer.

        Raises:
            APIError: the answer was cut off by the server.
        """
        if self._finish_reason == "abort":
            raise APIError(503, _ABORTED, type="server_error", code="aborted")
        self._cached_tokens, self._reasoning_tokens = cached_tokens, reasoning_tokens
        yield from self._end_block()
        message = self.message
        end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
        yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
        yield {"type": "message_stop"}

    def fail(self, error: APIError) -> Iterator[Event]:
        """The event of a failure, after which nothing comes."""
        yield anthropic_body(error)

    @property
    def message(self) -> dict[str, Any]:
        """The Message object as it is now."""
        stopped = isinstance(self._stop_reason, str) and self._stop_reason in self._stops
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [block.body for block in self._blocks],
            "stop_reason": "stop_sequence" if stopped else self._end_reason,
            "stop_sequence": self._stop_reason if stopped else None,
            "usage": {
                "input_tokens": self._prompt_tokens - self._cached_tokens,
                "cache_read_input_tokens": self._cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": self._output_tokens,
                "output_tokens_details": {"thinking_tokens": self._reasoning_tokens},
            },
        }

    @property
    def _end_reason(self) -> str:
        if self._finish_reason == "length":
            full = self._output_tokens < self._max_tokens
            return "model_context_window_exceeded" if full else "max_tokens"
        calls = any(block.start["type"] == "tool_use" for block in self._blocks)
        return "tool_use" if calls else "end_turn"
