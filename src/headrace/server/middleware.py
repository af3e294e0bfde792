"""What every request passes before its route: host, key, size. Pure ASGI, so that streams pass untouched."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.errors import NOT_FOUND, APIError
from headrace.server.keys import KeyRing
from headrace.server.options import ServerOptions

# For supervisors, load balancers and browsers, which have no key yet: nothing of these costs or tells anything.
OPEN_PATHS = frozenset(("/", "/health", "/ready", "/version", "/favicon.ico"))
OPEN_PREFIX = "/page/"
ADMIN_PREFIX = "/admin/"
# Of a body that is too long so much more is read before the answer, since many clients listen only after they have sent
# everything.
_PATIENCE_BYTES, _PATIENCE_S = 32 << 20, 10.0


def add_middleware(app: FastAPI, options: ServerOptions) -> None:
    """Wraps the routes; the last that is added is the outermost."""
    app.add_middleware(BodyLimit, most=options.max_body_bytes)
    app.add_middleware(KeyCheck, options=options)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    hosts = _allowed_hosts(options)
    if hosts:
        app.add_middleware(HostCheck, hosts=hosts)
    app.add_middleware(HeadAsGet)


async def _refuse(scope: Scope, receive: Receive, send: Send, error: APIError) -> None:
    """Answers with an error in the form that the application gives to those of its routes."""
    app: Any = scope["app"]
    response = await app.exception_handlers[HTTPException](Request(scope), error)
    await response(scope, receive, send)


class KeyCheck:
    """Lets a request pass that shows a key, as `Authorization: Bearer KEY` or `x-api-key: KEY`.

    The admin key opens the routes below /admin/ and no others.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._keys = KeyRing(options.api_keys)
        self._admin = KeyRing(() if options.admin_key is None else (options.admin_key,))
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            wanted = self._wanted(path)
            given = _given_keys(Headers(scope=scope)) if len(wanted) else []
            if len(wanted) and not wanted.has_one_of(given):
                await _refuse(scope, receive, send, _invalid_key(bool(given)))
                return
            if path.startswith(ADMIN_PREFIX) and not len(self._admin):  # whatever routes there may be
                await _refuse(
                    scope, receive, send, APIError(404, "there is no such route", type=NOT_FOUND, code="unknown_url")
                )
                return
        await self._app(scope, receive, send)

    def _wanted(self, path: str) -> KeyRing:
        """The keys of which a path needs one; an empty ring where it needs none."""
        if path.startswith(ADMIN_PREFIX) and len(self._admin):
            return self._admin
        return KeyRing(()) if is_open(path, self._options) else self._keys


def is_open(path: str, options: ServerOptions) -> bool:
    """Whether a path needs no key even where there are some."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX) or (path == "/metrics" and options.metrics_without_key)


def _given_keys(headers: Headers) -> list[bytes]:
    """The keys that a request shows."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    given = [credentials.strip()] if scheme.lower() == "bearer" else []
    given.append(headers.get("x-api-key", "").strip())
    return [key.encode("latin-1") for key in given if key]


def _invalid_key(is_given: bool) -> APIError:
    message = (
        "the API key is not one of this server's"
        if is_given
        else "this server needs an API key, sent as the header Authorization: Bearer KEY"
    )
    return APIError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


class BodyLimit:
    """Refuses a body that is longer than `most` bytes: by its declared length, or when so much has come."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > self._most:
            if "expect" not in headers:  # else nothing was sent yet
                await _discard(receive)
            await _refuse(scope, receive, send, self._too_long())
            return
        got = 0

        async def limited() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > self._most:
                if message.get("more_body"):
                    await _discard(receive)
                raise self._too_long()
            return message

        await self._app(scope, limited, send)

    def _too_long(self) -> APIError:
        message = f"the body is longer than {self._most} bytes, which is the most that this server takes"
        return APIError(413, message, code="body_too_long", headers={"connection": "close"})


async def _discard(receive: Receive) -> None:
    """Reads the rest of a body, within reason."""
    left = _PATIENCE_BYTES
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        pass


class HostCheck:
    """Refuses requests for another host: a page whose own name suddenly points to this machine cannot reach it."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host")
            if host is not None and _without_port(host) not in self._hosts:
                message = (
                    "the host of the URL is not one of this server's; its operator can add it with --allowed-hosts"
                )
                await _refuse(scope, receive, send, APIError(403, message, code="host_not_allowed"))
                return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and (port.isdecimal() or not port) else host).strip("[]").rstrip(".").lower()


def _allowed_hosts(options: ServerOptions) -> frozenset[str]:
    """The hosts that requests may name; none for any.

    Unless told otherwise a server asks for this where it has no keys and only this machine can reach it: its clients
    are programs on this machine, and the browser, which may be told by any page to ask any address.
    """
    given = {_without_port(host) for host in options.allowed_hosts}
    try:
        is_local = options.host == "localhost" or ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        is_local = False
    if "*" in given or not (given or (is_local and not options.api_keys)):
        return frozenset()
    return frozenset({*given, "localhost", "127.0.0.1", "::1", options.host})


class HeadAsGet:
    """Answers HEAD as GET; the HTTP server leaves the body away."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
