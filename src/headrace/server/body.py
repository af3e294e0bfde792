"""Request bodies: JSON as strict as the wire allows, and errors that say what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from headrace.server.errors import APIError

MAX_DEPTH = 100  # of arrays and objects in each other; everything after the parser may recurse


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
        return read_json(await self.body())


def read_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        APIError: it is not JSON in UTF-8, holds NaN or Infinity, or is nested too deeply.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise APIError(400, f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise APIError(
            400, f"the body is not valid JSON: {error.msg} at character {error.pos}", code="invalid_json"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a constant, or a number of thousands of digits
        raise APIError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for each in level if isinstance(each, (dict, list)) for part in _parts(each)]
        if not level:
            return
    raise _too_deep()


def _parts(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> APIError:
    return APIError(400, f"the body is nested more than {MAX_DEPTH} levels deep", code="invalid_json")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
