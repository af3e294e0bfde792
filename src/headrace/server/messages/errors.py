"""Errors as Anthropic's clients expect them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.server.errors import APIError

MESSAGES_PATH = "/v1/messages"  # paths that begin so answer in this form

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_body(error: APIError) -> dict[str, Any]:
    """The body of an answer, and of an event inside a stream."""
    other = "invalid_request_error" if error.status_code < 500 else "api_error"
    kind = _TYPES.get(error.status_code, other)
    return {"type": "error", "error": {"type": kind, "message": error.error["message"]}}
