"""An HTTP server that writes what it is told, byte for byte."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Step = bytes | float | None  # bytes to write, seconds to wait, or: close the connection


@dataclass
class Asked:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int


@dataclass
class ScriptedServer:
    """What it was asked and what it saw."""

    answer: Callable[[Asked], Iterable[Step]]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    running: int = 0
    most_running: int = 0
    left: int = 0  # clients that hung up within an answer

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        connection = self.connections
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                asked = await self._read(head, reader, connection)
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                try:
                    if not await self._play(asked, reader, writer):
                        return
                finally:
                    self.running -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _read(self, head: bytes, reader: asyncio.StreamReader, connection: int) -> Asked:
        first, *lines = head.decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        asked = Asked(method, path, headers, json.loads(body or b"{}"), connection)
        self.asked.append(asked)
        return asked

    async def _play(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        for step in self.answer(asked):
            if step is None:
                return False
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            else:
                await asyncio.sleep(step)
            if reader.at_eof() or reader.exception():
                self.left += 1
                return False
        return True


@contextmanager
def scripted(answer: Callable[[Asked], Iterable[Step]]) -> Iterator[ScriptedServer]:
    """The server, in a thread of its own, on a free port."""
    server, ready, loop = ScriptedServer(answer), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        ready.set()
        async with listener:
            await stop.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def main() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=main)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def head(*, status: str = "200 OK", kind: str = "text/event-stream", length: int | None = None) -> bytes:
    """The head of an answer: in chunks, or of a length."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{size}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    """A chunk of HTTP's; the empty one ends the answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(**fields: Any) -> bytes:
    """An event of JSON, as a chunk."""
    return chunk(b"data: " + json.dumps(fields).encode() + b"\n\n")


def text(piece: str, finish_reason: str | None = None) -> bytes:
    """An event of a completion."""
    return event(choices=[{"index": 0, "text": piece, "finish_reason": finish_reason}])


def usage(prompt: int, completion: int) -> bytes:
    """The event that counts tokens."""
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})


DONE = chunk(b"data: [DONE]\n\n")
END = chunk(b"")


def document(body: bytes | dict[str, Any], status: str = "200 OK") -> bytes:
    """An answer that is no stream."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(status=status, kind="application/json", length=len(data)) + data


def completion(asked: Asked) -> Iterator[Step]:
    """A model `m` that says as many words as it may."""
    if asked.method == "GET":
        yield document({"data": [{"id": "m"}]})
        return
    words = asked.body["max_tokens"]
    yield head()
    for _ in range(words):
        yield text(" word")
        yield 0.0
    yield text("", "length") + usage(7, words) + DONE + END
