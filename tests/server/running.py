"""A real server in a thread, on a port of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from headrace.engine.engine import Engine
from headrace.server.context import Server
from headrace.server.listener import bind
from headrace.server.options import ServerOptions
from headrace.server.run import HTTPServer, serve_on

T = TypeVar("T")


@dataclass
class Running:
    """A server that runs.

    Attributes:
        url: its address, without a slash at the end.
        server: what its routes see.
        http: uvicorn, on whose loop everything of it runs.
        client: an HTTP client for it.
    """

    url: str
    server: Server
    http: HTTPServer
    client: httpx.Client

    def offline(self, function: Callable[[], T]) -> T:
        """The result of a function that uses the engine, as the offline API does, in the engine's thread."""
        call = self.server.bridge.call(lambda engine: function())
        return asyncio.run_coroutine_threadsafe(call, self.http.loop).result(60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        """A JSON request."""
        return self.client.post(path, json=body)

    def stream(self, path: str, **body: Any) -> list[str]:
        """The data of all events of a streamed answer, whose status is 200."""
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


@contextmanager
def running(engine: Engine, **options: Any) -> Iterator[Running]:
    """Serves an engine while the block runs."""
    options_ = ServerOptions(**{"port": 0, "served_model_names": ("tiny",), "grace_s": 0.0, **options})
    listener = bind(options_)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    started: list[HTTPServer] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve_on(engine, options_, listener, started.append)))
    thread.start()
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        client.get("/health")  # answered as soon as it listens
        yield Running(url, started[0].config.app.state.server, started[0], client)
    if thread.is_alive():
        started[0].loop.call_soon_threadsafe(started[0].drain)
    thread.join(20)
    assert not thread.is_alive()
