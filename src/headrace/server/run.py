"""From an engine to a process that serves it: the signals, and the end."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from headrace.engine.engine import Engine
from headrace.server.app import make_app
from headrace.server.bridge import Bridge
from headrace.server.context import Server
from headrace.server.options import ServerOptions
from headrace.server.supervisor import ENGINE_DEAD

# After this many seconds connections that nobody reads from are cut.
CLOSE_S = 5
# So long a supervised server whose engine has died still tells its clients so.
DEATH_S = 2.0
# Work in other threads that nobody waits for any more, such as reading weights, holds the end up no longer than this.
EXIT_S = 5.0


def serve(engine: Engine, options: ServerOptions, listener: socket.socket, *, is_supervised: bool = False) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit code. The first signal lets running requests end, for
    `grace_s` seconds; the second exits at once.

    Args:
        is_supervised: end when the engine has died, instead of answering that it has.
    """
    # What is there now stays; to look through it again took 60 to 80 ms each time, while no token moved.
    gc.collect()
    gc.freeze()
    code = 1
    with asyncio.Runner(loop_factory=uvicorn.Config("", loop="auto", log_config=None).get_loop_factory()) as runner:
        ended, is_dead = runner.run(serve_on(engine, options, listener, ends_when_dead=is_supervised))
        code = ENGINE_DEAD if is_supervised and is_dead else 0 if ended else 1
        _exit_soon(code, 0.0 if not ended else EXIT_S)
    return code


def _exit_soon(code: int, seconds: float) -> None:
    """Ends the process after some seconds whatever its other threads do: the interpreter would wait for them."""

    def end() -> None:
        time.sleep(seconds)
        sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=end, name="exit", daemon=True).start()


async def serve_on(
    engine: Engine,
    options: ServerOptions,
    listener: socket.socket,
    started: Callable[[HTTPServer], None] = lambda http: None,
    *,
    ends_when_dead: bool = False,
) -> tuple[bool, bool]:
    """Serves on the running loop until the server is drained; returns whether the engine's thread ended, and whether
    the engine had died.

    Args:
        started: called with the server before it takes requests.
        ends_when_dead: the engine's death also ends serving.
    """
    bridge = Bridge(engine, step_timeout_s=options.step_timeout_s, request_timeout_s=options.request_timeout_s)
    await bridge.start()
    app = make_app(bridge, options)
    server: Server = app.state.server
    http = HTTPServer(app, bridge, options)
    if ends_when_dead:
        bridge.when_dead = http.end_dead
    lag = asyncio.create_task(server.metrics.watch_loop())
    started(http)
    try:
        await http.serve(sockets=[listener])
    finally:
        lag.cancel()
        ended = await bridge.stop()
        if server.tracing is not None:
            await asyncio.to_thread(server.tracing.close)
    return ended, bridge.state == "dead"


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
        self._is_told = False
        self.loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM and SIGINT: the first drains, the second ends the process."""
        if self._is_told:
            os._exit(128 + sig)
        self._is_told = True
        self.loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Lets running requests end, then shuts down."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    def end_dead(self) -> None:
        """Shuts down some moments after the engine's death."""
        self.loop.call_later(DEATH_S, self.drain)

    async def _drain(self) -> None:
        await self._bridge.drain(self._options.grace_s)
        self.should_exit = True
