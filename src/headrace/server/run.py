"""From an engine to a process that serves it: the socket, the signals, and the end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from headrace.engine.engine import Engine
from headrace.errors import ConfigError
from headrace.server.app import make_app
from headrace.server.bridge import Bridge
from headrace.server.context import Server
from headrace.server.options import ServerOptions

BACKLOG = 2048
# After this many seconds connections that nobody reads from are cut.
CLOSE_S = 5


def bind(options: ServerOptions) -> socket.socket:
    """The socket to listen on, before anything is loaded: clients that come early wait.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        return socket.create_server((options.host, options.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"port: cannot listen on {options.host}:{options.port}: {error.strerror or error}") from error


def serve(engine: Engine, options: ServerOptions, listener: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT. The first lets running requests end, for `grace_s` seconds; the second exits at
    once."""
    with asyncio.Runner(loop_factory=uvicorn.Config("", loop="auto").get_loop_factory()) as runner:
        ended = runner.run(serve_on(engine, options, listener))
    if not ended:
        # A step hangs in its thread, and the interpreter would wait for it.
        sys.stderr.flush()
        os._exit(1)


async def serve_on(
    engine: Engine,
    options: ServerOptions,
    listener: socket.socket,
    started: Callable[[HTTPServer], None] = lambda http: None,
) -> bool:
    """Serves on the running loop until the server is drained; returns whether the engine's thread ended.

    Args:
        started: called with the server before it takes requests.
    """
    bridge = Bridge(engine, step_timeout_s=options.step_timeout_s, request_timeout_s=options.request_timeout_s)
    await bridge.start()
    app = make_app(bridge, options)
    server: Server = app.state.server
    http = HTTPServer(app, bridge, options)
    lag = asyncio.create_task(server.metrics.watch_loop())
    started(http)
    try:
        await http.serve(sockets=[listener])
    finally:
        lag.cancel()
        ended = await bridge.stop()
        if server.tracing is not None:
            await asyncio.to_thread(server.tracing.close)
    return ended


class HTTPServer(uvicorn.Server):
    """uvicorn, with a shutdown that lets requests end first while new ones are refused.

    Attributes:
        loop: the event loop that it runs on.
    """

    def __init__(self, app: FastAPI, bridge: Bridge, options: ServerOptions) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="auto",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=CLOSE_S,
            )
        )
        self._bridge, self._options = bridge, options
        self._draining: asyncio.Task[None] | None = None
        self.loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM and SIGINT: the first drains, the second ends the process."""
        if self._draining is not None:
            os._exit(128 + sig if sig != signal.SIGTERM else 1)
        self.loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Lets running requests end, then shuts down."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._bridge.drain(self._options.grace_s)
        self.should_exit = True
