"""Request bodies: JSON as strict as the wire allows, and errors that say what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from headrace.server.errors import APIError
from headrace.server.limits import check_limits

MAX_DEPTH = 100  # of arrays and objects in each other; everything after the parser may recurse
# Longer bodies are read in a thread, lest the event loop stands still: a megabyte takes a quarter of a second.
LONG_BYTES = 1 << 16
# Nothing has integers of more than 64 bits, and what is made of them further down may not expect them.
INTEGERS = range(-(1 << 63), 1 << 64)


class JSONRoute(APIRoute):
    """A route whose body is read by `read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that FastAPI makes, given requests that read JSON our way."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JSONRequest(request.scope, request.receive))

        return handle


class _JSONRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        if len(body) < LONG_BYTES:
            return self._read(body)
        return await asyncio.to_thread(self._read, body)

    def _read(self, body: bytes) -> Any:
        value = read_json(body)
        check_limits(value, self.app.state.server.options)
        return value


def read_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        APIError: it is not JSON in UTF-8, holds NaN or Infinity, numbers or texts that only Python knows, or is nested
            too deeply.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _invalid(f"is not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _invalid(f"is not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a constant, or a number of thousands of digits
        raise _invalid(f"is not valid JSON: {error}") from None
    _check_depth(value)
    if "\\u" in text:
        _check_unicode(value)
    return value


def _check_depth(value: Any) -> None:
    """Refuses deep nesting, and numbers that other languages do not have."""
    level = [value]
    for _ in range(MAX_DEPTH):
        kinds = {*map(type, level)}  # there may be millions of token ids, so what is rare is looked for first
        numbers = level if kinds == {int} else [each for each in level if isinstance(each, int)] if int in kinds else []
        if numbers and not (min(numbers) in INTEGERS and max(numbers) in INTEGERS):
            raise _invalid("holds an integer of more than 64 bits")
        if float in kinds and not all(math.isfinite(each) for each in level if isinstance(each, float)):
            raise _invalid("holds a number that is beyond any float")
        holders = [each for each in level if isinstance(each, (dict, list))] if kinds & {dict, list} else []
        level = [*chain.from_iterable(map(_parts, holders))]
        if not level:
            return
    raise _too_deep()


def _check_unicode(value: Any) -> None:
    """Refuses half of a surrogate pair, which only an escape can bring: it is no text and fits no encoding."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _invalid("holds half of a surrogate pair, such as \\ud800 alone, which is no Unicode text") from None


def _parts(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value


def _invalid(what: str) -> APIError:
    return APIError(400, f"the body {what}", code="invalid_json")


def _too_deep() -> APIError:
    return _invalid(f"is nested more than {MAX_DEPTH} levels deep")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
