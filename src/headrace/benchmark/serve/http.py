"""HTTP/1.1 with as little between socket and caller as can be, so that the load generator is not what is measured.

A protocol of asyncio feeds httptools' parser (C, llhttp) from the callback that says that bytes are there; the moment
is taken at its beginning, before anything is parsed or any task wakes up.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from headrace.errors import ConfigError

_READ = 65_536  # bytes that one read may bring


class ExchangeError(Exception):
    """A request that got no whole answer.

    Attributes:
        kind: what to count it under.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _StaleError(ExchangeError):
    """The connection was closed before anything of an answer came."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a slow reader reads: so many bytes, then not for so many seconds."""

    size: int
    pause: float


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and under which path."""

    host: str
    port: int
    tls: bool
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a URL names.

        Raises:
            ConfigError: it is none of http or https.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"url: {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url: {url!r} is no http:// or https:// URL such as http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(slots=True)
class Response:
    """An answer while it comes.

    Attributes:
        receive: gets each piece of the body, with the moment (`time.perf_counter`) when it was read; what it raises
            ends the exchange.
        status: 0 until the head has come.
    """

    receive: Callable[[Response, float, bytes], None]
    done: asyncio.Future[None]
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)  # names in lower case

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the connection's end says where the body ends."""
        return b"content-length" not in self.headers and b"transfer-encoding" not in self.headers


class _Connection(asyncio.BufferedProtocol):
    """One connection, with at most one request at a time."""

    def __init__(self, pace: Pace | None) -> None:
        self._pace = pace
        self._buffer = memoryview(bytearray(pace.size if pace else _READ))
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._response: Response | None = None
        self._now = 0.0
        self._keeps_alive = False

    async def exchange(self, request: bytes, response: Response) -> None:
        if not self.is_open or self._transport is None:
            raise _StaleError("disconnected", "the connection was closed")
        self._response, self._parser = response, httptools.HttpResponseParser(self)
        self._transport.write(request)
        try:
            await response.done
        finally:
            self._response = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def may_serve_again(self) -> bool:
        return self.is_open and self._keeps_alive and self._pace is None

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio calls these:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if self._pace is not None and (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._now = time.perf_counter()
        if self._parser is None or self._response is None:
            self.hang_up()  # nothing was asked
            return
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserError as error:
            self._end(ExchangeError("malformed", f"no HTTP/1.1 answer: {error}"))
        if self._pace is not None and self.is_open and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._pace.pause, self._resume)

    def _resume(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        response = self._response
        if response is None or response.done.done():
            return
        if exc is None and response.status and response.ends_with_connection:
            response.done.set_result(None)
        elif not response.status:
            self._end(_StaleError("disconnected", f"closed before an answer came ({exc or 'end of stream'})"))
        else:
            self._end(ExchangeError("disconnected", f"closed within the answer ({exc or 'end of stream'})"))

    # The parser calls these:

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None:
            self._response.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._response is not None and self._parser is not None:
            self._response.status = self._parser.get_status_code()
            self._keeps_alive = self._parser.should_keep_alive()  # the parser forgets with the end of the answer

    def on_body(self, body: bytes) -> None:
        response = self._response
        if response is not None and not response.done.done():
            try:
                response.receive(response, self._now, body)
            except ExchangeError as error:
                self._end(error)

    def on_message_complete(self) -> None:
        if self._response is not None and not self._response.done.done():
            self._response.done.set_result(None)

    def _end(self, error: ExchangeError) -> None:
        if self._response is not None and not self._response.done.done():
            self._response.done.set_exception(error)
        self.hang_up()


class Client:
    """Requests to one server, over as many connections as there are requests at once; idle ones are used again."""

    def __init__(self, address: Address, headers: dict[str, str]) -> None:
        self._address = address
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[_Connection] = []

    async def request(
        self,
        method: str,
        path: str,
        body: bytes,
        receive: Callable[[Response, float, bytes], None],
        pace: Pace | None = None,
    ) -> Response:
        """Sends one request and returns once its answer is complete.

        A connection that the server closed while nobody used it is replaced by a new one.

        Raises:
            ExchangeError: there was no connection, no answer, half of one, or `receive` raised it.
        """
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address.authority}\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        data, loop = head.encode() + body, asyncio.get_running_loop()
        while pace is None and self._idle:
            with contextlib.suppress(_StaleError):
                return await self._over(self._idle.pop(), data, Response(receive, loop.create_future()))
        return await self._over(await self._connect(pace), data, Response(receive, loop.create_future()))

    async def _connect(self, pace: Pace | None) -> _Connection:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(pace), self._address.host, self._address.port, ssl=self._tls
            )
        except OSError as error:
            raise ExchangeError("connect", str(error) or type(error).__name__) from None
        return connection

    async def _over(self, connection: _Connection, data: bytes, response: Response) -> Response:
        try:
            await connection.exchange(data, response)
        except BaseException:
            connection.hang_up()
            raise
        if connection.may_serve_again:
            self._idle.append(connection)
        else:
            connection.hang_up()
        return response

    def close(self) -> None:
        """Closes the idle connections."""
        for connection in self._idle:
            connection.hang_up()
        self._idle.clear()


@contextlib.asynccontextmanager
async def connected(address: Address, headers: dict[str, str]) -> AsyncIterator[Client]:
    """A client whose connections are closed at the end."""
    client = Client(address, headers)
    try:
        yield client
    finally:
        client.close()
        await asyncio.sleep(0)  # the loop closes their sockets
