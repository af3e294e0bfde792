"""The Response object and its events, made of an answer's deltas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

from headrace.sampling.scores import TokenLogprobs
from headrace.server.errors import APIError, generation_error
from headrace.server.ids import new_id
from headrace.server.logprobs import chat_entries
from headrace.server.responses.items import Event, FunctionCall, Item, Message, Reasoning, Status
from headrace.server.turn import AnswerDelta
from headrace.text.tokenizer import Tokenizer

_ABORTED = "the answer was cut off by the server"


class ResponseOutput:
    """Grows by deltas. A streamed answer sends the events; one that is not streamed has only the last one's response.

    Items come one after another: the one before ends where the next begins.

    Args:
        model: what answers call the model.
        echo: what the Response object repeats of the request.
        tokenizer: gives the text of tokens with log-probabilities.
        prompt_tokens: how many the prompt has.
    """

    def __init__(self, model: str, echo: dict[str, Any], tokenizer: Tokenizer, prompt_tokens: int) -> None:
        own = {"id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "model": model}
        self._resource = own | {"error": None, "incomplete_details": None, "usage": None} | echo
        self._tokenizer, self._prompt_tokens = tokenizer, prompt_tokens
        self._ended: list[dict[str, Any]] = []
        self._item: Item | None = None
        self._scores: list[TokenLogprobs] = []  # of tokens whose text has not come yet
        self._output_tokens = 0
        self._finish_reason: str | None = None
        self._number = 0

    def begin(self) -> Iterator[Event]:
        """The events before the first delta."""
        response = self.response("in_progress")
        yield self._numbered({"type": "response.created", "response": response})
        yield self._numbered({"type": "response.in_progress", "response": response})

    def take(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events of what is new.

        Raises:
            APIError: the answer ended with an error.
        """
        if delta.error is not None:
            raise generation_error(delta.error)
        yield from map(self._numbered, self._take(delta))

    def _take(self, delta: AnswerDelta) -> Iterator[Event]:
        self._finish_reason = delta.finish_reason or self._finish_reason
        self._output_tokens += len(delta.token_ids)
        self._scores += delta.logprobs
        if delta.reasoning:
            if not isinstance(self._item, Reasoning):
                yield from self._turn_to(Reasoning(self._next_index))
            assert isinstance(self._item, Reasoning)
            self._scores = []
            yield self._item.grow(delta.reasoning)
        if delta.content or (delta.finish_reason and self._item is None and not self._ended and not delta.calls):
            if not isinstance(self._item, Message):
                if self._item is not None:  # tokens without a text of their own ended it
                    self._scores = [*delta.logprobs]
                yield from self._turn_to(Message(self._next_index))
            assert isinstance(self._item, Message)
            yield self._item.grow(delta.content, self._take_scores())
        for call in delta.calls:
            if call.id is not None and call.name is not None:
                yield from self._turn_to(FunctionCall(self._next_index, call.id, call.name))
            assert isinstance(self._item, FunctionCall)
            self._scores = []
            if call.arguments:
                yield self._item.grow(call.arguments)

    def _take_scores(self) -> list[dict[str, Any]]:
        scores, self._scores = self._scores, []
        return chat_entries(self._tokenizer, scores)

    @property
    def _next_index(self) -> int:
        return len(self._ended) + (self._item is not None)

    def _turn_to(self, item: Item) -> Iterator[Event]:
        yield from self._end_item("completed")
        self._item = item
        yield from item.begin()

    def _end_item(self, status: Status) -> Iterator[Event]:
        if self._item is not None:
            yield from self._item.end(status)
            self._ended.append(self._item.body(status))
            self._item = None

    def finish(self, cached_tokens: int, reasoning_tokens: int) -> Iterator[Event]:
        """The events after the last delta; the last of all holds the whole response.

        Args:
            cached_tokens: of the prompt, whose keys and values were there already.
            reasoning_tokens: of the answer.

        Raises:
            APIError: the answer was cut off by the server.
        """
        if self._finish_reason == "abort":
            raise APIError(503, _ABORTED, type="server_error", code="aborted")
        if self._scores and isinstance(self._item, Message):
            yield self._numbered(self._item.grow("", self._take_scores()))
        status: Literal["incomplete", "completed"] = "incomplete" if self._finish_reason == "length" else "completed"
        yield from map(self._numbered, self._end_item(status))
        response = self.response(status) | {"usage": self._usage(cached_tokens, reasoning_tokens)}
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        yield self._numbered({"type": f"response.{status}", "response": response})

    def fail(self, error: APIError) -> Iterator[Event]:
        """The events of a failure, after which nothing comes."""
        code = "rate_limit_exceeded" if error.status_code == 429 else "server_error"
        response = self.response("failed") | {"error": {"code": code, "message": error.error["message"]}}
        yield self._numbered({"type": "response.failed", "response": response})

    def response(self, status: str) -> dict[str, Any]:
        """The Response object as it is now."""
        open_items = [] if self._item is None else [self._item.body("incomplete")]
        return self._resource | {"status": status, "output": [*self._ended, *open_items]}

    def _usage(self, cached_tokens: int, reasoning_tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": self._prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self._output_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": self._prompt_tokens + self._output_tokens,
        }

    def _numbered(self, event: Event) -> Event:
        event["sequence_number"] = self._number
        self._number += 1
        return event
