"""The items of a response's output, each with the events that tell how it grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

from headrace.server.ids import new_id

Event = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class Item(Protocol):
    """What is being said; events lack their sequence number."""

    def begin(self) -> Iterator[Event]:
        """The events of its beginning."""

    def end(self, status: Status) -> Iterator[Event]:
        """The events of its end."""

    def body(self, status: Status) -> dict[str, Any]:
        """The item as it is now."""


class Message:
    """Text that the user reads."""

    def __init__(self, index: int) -> None:
        self._index, self._id = index, new_id("msg_")
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def _event(self, type: str, **fields: Any) -> Event:
        return {"type": type, "item_id": self._id, "output_index": self._index, "content_index": 0, **fields}

    @property
    def _part(self) -> dict[str, Any]:
        text = "".join(self._texts)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}

    def body(self, status: Status) -> dict[str, Any]:
        """The item as it is now."""
        content = [] if status == "in_progress" else [self._part]
        return {"id": self._id, "type": "message", "status": status, "role": "assistant", "content": content}

    def begin(self) -> Iterator[Event]:
        """The events of its beginning."""
        yield _added(self._index, self.body("in_progress"))
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._event("response.content_part.added", part=part)

    def grow(self, text: str, logprobs: list[dict[str, Any]]) -> Event:
        """Adds text and the log-probabilities of its tokens."""
        self._texts.append(text)
        self._logprobs += logprobs
        return self._event("response.output_text.delta", delta=text, logprobs=logprobs)

    def end(self, status: Status) -> Iterator[Event]:
        """The events of its end."""
        part = self._part
        yield self._event("response.output_text.done", text=part["text"], logprobs=self._logprobs)
        yield self._event("response.content_part.done", part=part)
        yield _done(self._index, self.body(status))


class Reasoning:
    """What the model thinks before it speaks."""

    def __init__(self, index: int) -> None:
        self._index, self._id = index, new_id("rs_")
        self._texts: list[str] = []

    def _event(self, type: str, **fields: Any) -> Event:
        return {"type": type, "item_id": self._id, "output_index": self._index, "content_index": 0, **fields}

    @property
    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": "".join(self._texts)}

    def body(self, status: Status) -> dict[str, Any]:
        """The item as it is now."""
        content = [] if status == "in_progress" else [self._part]
        own = {"id": self._id, "type": "reasoning", "status": status}
        return own | {"summary": [], "content": content, "encrypted_content": None}

    def begin(self) -> Iterator[Event]:
        """The events of its beginning."""
        yield _added(self._index, self.body("in_progress"))
        yield self._event("response.content_part.added", part={"type": "reasoning_text", "text": ""})

    def grow(self, text: str) -> Event:
        """Adds text."""
        self._texts.append(text)
        return self._event("response.reasoning_text.delta", delta=text)

    def end(self, status: Status) -> Iterator[Event]:
        """The events of its end."""
        part = self._part
        yield self._event("response.reasoning_text.done", text=part["text"])
        yield self._event("response.content_part.done", part=part)
        yield _done(self._index, self.body(status))


class FunctionCall:
    """A call of one of the caller's functions."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        self._index, self._id = index, new_id("fc_")
        self._call_id, self._name = call_id, name
        self._arguments: list[str] = []

    def _event(self, type: str, **fields: Any) -> Event:
        return {"type": type, "item_id": self._id, "output_index": self._index, **fields}

    def body(self, status: Status) -> dict[str, Any]:
        """The item as it is now."""
        own = {"id": self._id, "type": "function_call", "status": status}
        return own | {"call_id": self._call_id, "name": self._name, "arguments": "".join(self._arguments)}

    def begin(self) -> Iterator[Event]:
        """The events of its beginning."""
        yield _added(self._index, self.body("in_progress"))

    def grow(self, arguments: str) -> Event:
        """Adds to the text of the arguments."""
        self._arguments.append(arguments)
        return self._event("response.function_call_arguments.delta", delta=arguments)

    def end(self, status: Status) -> Iterator[Event]:
        """The events of its end."""
        arguments = "".join(self._arguments)
        yield self._event("response.function_call_arguments.done", name=self._name, arguments=arguments)
        yield _done(self._index, self.body(status))


def _added(index: int, item: dict[str, Any]) -> Event:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done(index: int, item: dict[str, Any]) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}
