"""Clients that leave, that do not read, and many at once: nobody else notices, and nothing of them stays."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from headrace.engine.engine import Engine
from headrace.text.tokenizer import Tokenizer
from server.running import Running, running
from server.scripted import scripted_engine
from smol import RIVER

PATH = "/v1/completions"
LONG = 600  # tokens; a slow engine needs some seconds for them


class Pace:
    """Slows the steps of an engine on paper down, and counts them."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._execute, self.seconds, self.steps = engine.manager.execute, seconds, 0
        engine.manager.execute = self  # type: ignore[method-assign]

    def __call__(self, prepared: Any) -> Any:
        self.steps += 1
        time.sleep(self.seconds)
        return self._execute(prepared)


def wait_until(condition: Callable[[], bool]) -> None:
    """Fails after some seconds, which are more than enough."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def is_idle(server: Running) -> bool:
    now = server.server.bridge.snapshot
    return (now.running, now.waiting, now.free_pages) == (0, 0, now.pages)


@pytest.fixture(scope="module")
def slow(smol_tokenizer: Tokenizer) -> Iterator[tuple[Running, Pace]]:
    """A server whose engine says " river" for ever, a token every few milliseconds."""
    engine = scripted_engine(smol_tokenizer, lambda prompt: [RIVER] * 1023)
    pace = Pace(engine, 0.003)
    with running(engine) as one:
        yield one, pace


def leave(server: Running, stream: bool, after: Callable[[], bool], **given: Any) -> None:
    """Sends a request and hangs up once something is so."""
    body = {"prompt": "go", "max_tokens": LONG, "stream": stream, **given}
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port)) as one:
        data = json.dumps(body).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        )
        one.sendall(head.encode() + b"\r\n\r\n" + data)
        wait_until(after)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "given",
    [{}, {"n": 3, "temperature": 1}, {"prompt": ["a", "b"]}, {"prompt": [5] * 400}],
    ids=["one", "n", "two", "long"],
)
def test_cac_08_who_leaves_while_running_frees_all_within_a_step(
    slow: tuple[Running, Pace], stream: bool, given: dict[str, Any]
) -> None:
    server, pace = slow
    wait_until(lambda: is_idle(server))
    before = pace.steps
    leave(server, stream, lambda: pace.steps > before + 2, **given)
    left = pace.steps
    wait_until(lambda: not server.server.bridge.engine.has_unfinished)
    assert pace.steps - left < LONG // 4  # far from the end that it would have come to
    wait_until(lambda: is_idle(server))
    steps = pace.steps
    assert server.post(PATH, prompt="a", max_tokens=1).status_code == 200
    assert pace.steps - steps <= 2  # and nothing else ran beside it


@pytest.mark.parametrize("stream", [False, True])
def test_cac_08_who_leaves_the_queue_is_never_computed(slow: tuple[Running, Pace], stream: bool) -> None:
    server, _ = slow
    engine = server.server.bridge.engine
    wait_until(lambda: is_idle(server))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, PATH, prompt="a", n=8, temperature=1, max_tokens=200)
        wait_until(lambda: len(engine.scheduler.running) == 8)
        leave(server, stream, lambda: len(engine.scheduler.waiting) == 1)
        wait_until(lambda: not engine.scheduler.waiting)
        assert len(engine.scheduler.running) == 8
        assert first.result().status_code == 200
    wait_until(lambda: is_idle(server))


def test_a_client_that_does_not_read_holds_nobody_up(slow: tuple[Running, Pace]) -> None:
    server, _ = slow
    # With small buffers between the two the server notices soon.
    for listener in server.http.servers[0].sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = json.dumps({"prompt": "go", "max_tokens": LONG, "stream": True, "user": "x"}).encode()
    url = httpx.URL(server.url)
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((url.host, url.port))
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        one.sendall(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        wait_until(lambda: len(server.server.bridge.engine.scheduler.running) == 1)
        assert server.post(PATH, prompt="a", max_tokens=5).json()["choices"][0]["text"] == " river" * 5
        wait_until(lambda: is_idle(server))  # its tokens are all there, and the engine is done with it
        one.settimeout(20)
        raw = b"".join(iter(lambda: one.recv(65536), b""))
    events = [
        line[6:] for line in raw.decode().split("\r\n") for line in line.splitlines() if line.startswith("data: ")
    ]
    assert events[-1] == "[DONE]"
    texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == " river" * LONG
    assert len(texts) < LONG  # what had piled up came in fewer events


def test_sixty_streams_of_which_many_are_left_are_what_they_are_alone(server: Running) -> None:
    rng = random.Random(0)
    words = ["river", "stone", "The sea is", "once upon", "A B C"]
    asked = [
        {
            "prompt": f"{rng.choice(words)} {i}",
            "max_tokens": rng.randrange(1, 17),
            "temperature": rng.choice([0, 1]),
            "seed": i,
            "n": rng.choice([1, 1, 1, 2]),
        }
        for i in range(60)
    ]
    leaves = {i: rng.randrange(1, 6) for i in rng.sample(range(60), 18)}
    with ThreadPoolExecutor(8) as pool:
        whole = list(pool.map(lambda body: server.post(PATH, **body).json()["choices"], asked))
    gate = threading.Barrier(60)

    def read(i: int) -> dict[int, str]:
        texts: dict[int, str] = {}
        gate.wait()
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client, contextlib.ExitStack() as stack:
            response = stack.enter_context(client.stream("POST", PATH, json={**asked[i], "stream": True}))
            assert response.status_code == 200
            for number, line in enumerate(filter(None, response.iter_lines())):
                if number == leaves.get(i) or line == "data: [DONE]":
                    break  # and hangs up
                for choice in json.loads(line[6:])["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        return texts

    with ThreadPoolExecutor(60) as pool:
        streamed = list(pool.map(read, range(60)))
    for i, (texts, choices) in enumerate(zip(streamed, whole, strict=True)):
        for choice in choices:
            text = texts.get(choice["index"], "")
            assert choice["text"].startswith(text) if i in leaves else choice["text"] == text
    wait_until(lambda: is_idle(server))
    assert server.server.bridge.snapshot.compilations == 0


def test_a_grammar_that_takes_long_keeps_nobody_without_one_waiting(
    smol_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight bad schemas, each given up after some seconds, kept everybody waiting for half a minute."""
    engine, freed = scripted_engine(smol_tokenizer, "yes"), threading.Event()
    check = engine.check

    def slow(ids: Any, params: Any, *, cache_salt: str | None = None) -> None:
        if params.structured_outputs is not None:
            assert freed.wait(60)
        check(ids, params, cache_salt=cache_salt)

    monkeypatch.setattr(engine, "check", slow)
    form = {"structured_outputs": {"choice": ["yes"]}}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    tool = {"type": "function", "function": {"name": "f"}}
    with running(engine) as server, ThreadPoolExecutor(12) as pool:
        try:
            held = [pool.submit(server.post, PATH, prompt="a", **form) for _ in range(4)]
            held += [
                pool.submit(server.post, "/v1/chat/completions", **chat, tools=[tool], tool_choice="required")
                for _ in range(4)
            ]
            wait_until(lambda: server.server.metrics.http_open == len(held))
            assert server.client.post(PATH, json={"prompt": "a"}, timeout=10).status_code == 200
            assert server.client.post("/v1/chat/completions", json=chat, timeout=10).status_code == 200
            assert not any(each.done() for each in held)
        finally:
            freed.set()
        assert [each.result(60).status_code for each in held[:4]] == [200] * 4
