"""The description of the API that the server gives of itself at /openapi.json."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from headrace.server.middleware import ADMIN_PREFIX, is_open
from headrace.server.options import ServerOptions

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_EVENTS = "Server-sent events, the data of which are JSON; most routes end with [DONE]."


class ErrorDetail(BaseModel):
    """What went wrong; Anthropic's form has only the first two."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


_ERRORS = {
    400: "The request is wrong; the message says what is.",
    401: "No key of this server was shown.",
    403: "The URL names another host.",
    404: "There is no such model or route.",
    409: "Something else that is under way is in the way.",
    413: "The body is too long.",
    429: "As many requests wait as may; try again later.",
    503: "The server is shutting down, or its engine has died.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what} for status, what in _ERRORS.items()
}


def describe(app: FastAPI, options: ServerOptions) -> None:
    """Makes the description say what is true: no status 422, streams, and keys where they are needed."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _corrected(make(), options)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _corrected(schema: dict[str, Any], options: ServerOptions) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if _streams(operation, components):
                operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"description": _EVENTS}}
            if path.startswith(ADMIN_PREFIX) or (options.api_keys and not is_open(path, options)):
                components["securitySchemes"] = _SCHEMES
                operation["security"] = [{name: []} for name in _SCHEMES]
    return schema


def _streams(operation: dict[str, Any], components: dict[str, Any]) -> bool:
    """Whether an operation's body has a field `stream`."""
    content = operation.get("requestBody", {}).get("content", {})
    name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    return "stream" in components.get("schemas", {}).get(name, {}).get("properties", {})
