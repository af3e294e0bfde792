"""Many streams at a server of few slots, of which a share is left at random and some are not read: do all others say
what they say alone, does the event loop stay free, and is everything given back?

    python bench/soak_server.py --model smollm2 --streams 200 --rounds 1

Prints the times to the first token and the loop's lag; exits with 1 when anything is not as it has to be. The clients
are another process, so that they do not slow the server down more than they have to.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from headrace import LLM
from server.running import Running, running

PATH = "/v1/completions"
TEXT = "The river ran past the old mill and under the bridge where three boats lay waiting for the tide"
WORST_LAG_S = 0.020


@dataclass
class Tally:
    """What the clients saw."""

    first_token_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: int = 0
    read: int = 0


def requests(count: int, seed: int) -> list[dict[str, Any]]:
    """Prompts that share beginnings, greedy and drawn, short and long answers."""
    rng, made, all_words = random.Random(seed), [], TEXT.split()
    for index in range(count):
        words = all_words[: rng.randrange(4, len(all_words))] + rng.sample(all_words, rng.randrange(1, 8))
        drawn = {"temperature": 0.8, "seed": index} if index % 2 else {"temperature": 0}
        made.append({"prompt": " ".join(words), "max_tokens": rng.randrange(8, 64), **drawn})
    return made


async def whole(client: httpx.AsyncClient, body: dict[str, Any], gate: asyncio.Semaphore) -> str:
    async with gate:
        response = await client.post(PATH, json=body)
    response.raise_for_status()
    text: str = response.json()["choices"][0]["text"]
    return text


async def stream(
    client: httpx.AsyncClient, body: dict[str, Any], leaves: int | None, pause: float, tally: Tally
) -> str:
    """Reads a streamed answer, or its beginning; `pause` seconds are slept after each event."""
    began, text, number = time.perf_counter(), "", 0
    async with client.stream("POST", PATH, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            number += 1
            if number == 1:
                tally.first_token_s.append(time.perf_counter() - began)
            text += json.loads(line[6:])["choices"][0]["text"]
            if number == leaves:
                tally.left += 1
                return text
            await asyncio.sleep(pause)
    tally.read += 1
    return text


async def play(url: str, streams: int, cancelled: float, seed: int) -> Tally:
    """One round: all answers alone, a few at a time; then all at once."""
    rng, tally = random.Random(seed), Tally()
    asked = requests(streams, seed)
    leaves = {i: rng.randrange(1, 20) for i in rng.sample(range(streams), int(streams * cancelled))}
    slow = {*rng.sample(range(streams), streams // 10)}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=1200, trust_env=False, limits=limits) as client:
        gate = asyncio.Semaphore(8)
        alone = await asyncio.gather(*(whole(client, body, gate) for body in asked))
        texts = await asyncio.gather(
            *(stream(client, body, leaves.get(i), 0.1 * (i in slow), tally) for i, body in enumerate(asked))
        )
    for i, (text, expected) in enumerate(zip(texts, alone, strict=True)):
        if not (expected.startswith(text) if i in leaves else expected == text):
            tally.wrong.append(f"{asked[i]}: {text!r}, alone {expected!r}")
    return tally


def clients(url: str, streams: int, cancelled: float, seed: int, result: Any) -> None:
    """The clients' process."""
    result.put(asyncio.run(play(url, streams, cancelled, seed)))


class Lag:
    """How late a loop is that wants to wake up every 5 ms."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + 0.005
            await asyncio.sleep(0.005)
            self.seconds.append(time.perf_counter() - due)


def percentiles(values: list[float]) -> str:
    ordered = sorted(values) or [0.0]
    picked = {p: ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] for p in (50, 90, 99)}
    return ", ".join(f"p{p} {1e3 * value:.1f} ms" for p, value in picked.items()) + f", most {1e3 * ordered[-1]:.1f} ms"


def idle(server: Running) -> bool:
    """Whether nothing is left, after some seconds."""
    for _ in range(200):
        now = server.server.bridge.snapshot
        if (now.running, now.waiting, now.free_pages) == (0, 0, now.pages) and not server.server.bridge._generations:
            return True
        time.sleep(0.05)
    return False


def main() -> int:
    """Returns 0 when all is well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--cancelled", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    llm = LLM(given.model, max_num_seqs=8, max_model_len=512, kv_cache_bytes=256 << 20, max_queued_requests=1024)
    process, faults = psutil.Process(), 0
    with running(llm.engine) as server:
        lag = Lag()
        task = asyncio.run_coroutine_threadsafe(lag.watch(), server.http.loop)
        for number in range(given.rounds):
            result: Any = multiprocessing.get_context("spawn").Queue()
            arguments = (server.url, given.streams, given.cancelled, number, result)
            multiprocessing.get_context("spawn").Process(target=clients, args=arguments).start()
            began = time.perf_counter()
            tally: Tally = result.get()
            is_idle = idle(server)
            print(
                f"round {number}: {given.streams} streams in {time.perf_counter() - began:.1f} s, {tally.left} left, "
                f"{tally.read} read, {len(tally.wrong)} wrong, idle afterwards: {is_idle}, "
                f"memory {process.memory_info().rss >> 20} MiB"
            )
            print(f"  first token: {percentiles(tally.first_token_s)}")
            print(f"  loop's lag:  {percentiles(lag.seconds)}")
            print(*tally.wrong[:3], sep="\n")
            p99 = sorted(lag.seconds)[int(len(lag.seconds) * 0.99)]
            faults += len(tally.wrong) + (not is_idle) + (p99 >= WORST_LAG_S)
            lag.seconds.clear()
        faults += server.server.bridge.snapshot.compilations
        task.cancel()
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
