"""Errors as OpenAI's clients expect them: a status and {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from headrace.engine.request import NO_FINITE_HIDDEN, NO_FINITE_LOGITS
from headrace.errors import HeadraceError, ModelError, QueueFullError, RequestError
from headrace.server.messages.errors import MESSAGES_PATH, anthropic_body

log = logging.getLogger(__name__)

INVALID, NOT_FOUND, SERVER = "invalid_request_error", "not_found_error", "server_error"


class UnavailableError(HeadraceError):
    """The server cannot take requests now.

    Attributes:
        code: machine-readable reason.
    """

    code = "unavailable"


class EngineDeadError(UnavailableError):
    """The engine has failed; nothing will run until the server is started again."""

    code = "engine_dead"


class DrainingError(UnavailableError):
    """The server is shutting down."""

    code = "shutting_down"


class DeadlineError(UnavailableError):
    """The request took longer than the server allows."""

    code = "timeout"


class ConflictError(HeadraceError):
    """What an operator asks for does not go together with what another has asked for."""


class APIError(HTTPException):
    """A request that is answered with an error.

    Attributes:
        error: the body's "error" object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = message.encode("utf-8", "replace").decode()  # a lone surrogate must not stop the answer
        super().__init__(status, message, headers)
        self.error = {"message": message, "type": type, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        """The answer's body, and the event's inside a stream."""
        return {"error": self.error}


def unsupported(param: str, what: str) -> APIError:
    """A field that is known and not implemented."""
    return APIError(400, f"{param}: {what}", param=param, code="unsupported_parameter")


def generation_error(message: str) -> APIError:
    """A choice that ended with an error: the request's own fault, unless the model failed."""
    if message in (NO_FINITE_HIDDEN, NO_FINITE_LOGITS):
        return APIError(500, message, type=SERVER, code="generation_failed")
    return APIError(400, message, code="generation_failed")


def as_api_error(error: BaseException) -> APIError:
    """What a client is told of any exception; what is nobody's business is logged instead."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, RequestError):
        return APIError(400, str(error), param=error.param, code="invalid_value")
    if isinstance(error, QueueFullError):
        return APIError(429, str(error), type="rate_limit_error", code="queue_full", headers={"retry-after": "1"})
    if isinstance(error, UnavailableError):
        return APIError(503, str(error), type=SERVER, code=error.code, headers={"retry-after": "5"})
    if isinstance(error, ConflictError):
        return APIError(409, str(error), code="conflict")
    if isinstance(error, ModelError):
        return APIError(400, str(error), code="unsupported_by_model")
    if isinstance(error, RequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        return _of_http(error)
    log.error("a request failed unexpectedly", exc_info=error)
    return APIError(500, "internal error; the server's log says more", type=SERVER, code="internal_error")


def _of_validation(error: RequestValidationError) -> APIError:
    errors = error.errors()
    first = errors[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    if not place:
        told = f"the body must be a JSON object, sent with content-type: application/json ({first['msg']})"
        return APIError(400, told, code="invalid_body")
    # A field of several types has an error for each, whose place goes on with the type.
    same = [one for one in errors if one["loc"][: len(place)][1:2] == first["loc"][1:2]]
    if len(same) > 1 and len({one["loc"][:3] for one in same}) > 1:
        place, wanted = place[:1], dict.fromkeys(str(one["msg"]) for one in same)
        return APIError(400, f"{place[0]}: {' / '.join([*wanted][:4])}", param=place[0], code="invalid_type")
    param = ".".join(place)
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_type"
    return APIError(400, f"{param}: {first['msg']}", param=param, code=code)


def _of_http(error: HTTPException) -> APIError:
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return APIError(404, "there is no such route", type=NOT_FOUND, code="unknown_url", headers=headers)
    if error.status_code == 405:
        allowed = f"; it takes {headers['Allow']}" if "Allow" in headers else ""
        return APIError(
            405, f"this route does not take that method{allowed}", code="method_not_allowed", headers=headers
        )
    return APIError(error.status_code, str(error.detail), headers=headers)


class ErrorResponse(Response):
    """The answer to a request that failed, in the form that clients of its path expect."""

    def __init__(self, error: APIError) -> None:
        super().__init__(status_code=error.status_code)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error
        body = anthropic_body(error) if scope["path"].startswith(MESSAGES_PATH) else error.body
        await JSONResponse(body, error.status_code, error.headers)(scope, receive, send)


def error_response(error: BaseException) -> ErrorResponse:
    """The answer to a request that failed."""
    return ErrorResponse(as_api_error(error))


async def _handle(_: Request, error: Exception) -> Response:
    return error_response(error)


def add_error_handlers(app: FastAPI) -> None:
    """Answers every exception of a route in OpenAI's form."""
    for kind in (HTTPException, RequestValidationError, HeadraceError, Exception):
        app.add_exception_handler(kind, _handle)
