"""Sends the requests of a run and keeps what each saw."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import random
import resource
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import tqdm
import uvloop

from headrace.benchmark.serve.datasets import Prompt
from headrace.benchmark.serve.http import Client, ExchangeError, connected
from headrace.benchmark.serve.options import LoadOptions
from headrace.benchmark.serve.records import ERROR, RequestRecord
from headrace.benchmark.serve.sender import Fate, Sender
from headrace.errors import HeadraceError

_TICK = 0.01  # seconds between two looks at the loop's own lag


@dataclass
class Run:
    """What a run left.

    Attributes:
        model: the name that was asked for.
        began: seconds since the epoch.
        lags: by how much the client's own event loop was late, in seconds, looked at every 10 ms.
        cpu_share: processor time of the client over the time of the run.
    """

    model: str
    began: float
    records: list[RequestRecord] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    cpu_share: float = 0.0


def run(options: LoadOptions) -> Run:
    """Sends all requests and waits for their ends.

    Raises:
        HeadraceError: the server cannot be reached, lists no model, or fails a warm-up request.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each request at once is a file
    return uvloop.run(_run(options))


def arrivals(rate: float, burstiness: float, rng: random.Random, count: int | None) -> Iterator[float]:
    """When requests are to be sent, in seconds from the first, which is sent at once.

    The times between them are independent draws from a gamma distribution of mean 1 / `rate` and shape `burstiness`.
    Where there are `count` requests, they are stretched so that their mean is just that: the mean of a hundred draws
    may be off by a fifth.
    """
    if math.isinf(rate):
        yield from itertools.repeat(0.0)
    gaps = (rng.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in itertools.count())
    if count is not None:
        drawn = list(itertools.islice(gaps, count - 1))
        whole = sum(drawn)
        gaps = (gap / whole * len(drawn) / rate for gap in drawn)
    yield from itertools.accumulate(gaps, initial=0.0)


async def _run(options: LoadOptions) -> Run:
    async with connected(options.address, options.headers) as client:
        model = options.model or await _first_model(client, options)
        prompts = options.dataset.prompts(options.seed)
        await _warm_up(Sender(options, client, model, time.perf_counter()), options, prompts)
        result = Run(model, time.time())
        async with _measured(result):
            result.records = await _send_all(Sender(options, client, model, time.perf_counter()), options, prompts)
        return result


async def _first_model(client: Client, options: LoadOptions) -> str:
    body = bytearray()
    try:
        async with asyncio.timeout(options.timeout):
            response = await client.request(
                "GET", f"{options.address.path}/models", b"", lambda _response, _now, data: body.extend(data)
            )
        if response.status != 200:
            raise ExchangeError(f"HTTP {response.status}", f"HTTP {response.status}: {body[:200].decode()}")
        return str(json.loads(body)["data"][0]["id"])
    except (ExchangeError, TimeoutError) as error:
        raise HeadraceError(f"url: {options.url} does not tell its models: {str(error) or 'timeout'}") from None
    except (ValueError, LookupError, TypeError):
        raise HeadraceError(f"url: {options.url} lists no models; give one with --model") from None


@contextlib.asynccontextmanager
async def _measured(result: Run) -> AsyncIterator[None]:
    """Notes what the client itself takes meanwhile."""

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_TICK)
            result.lags.append(max(time.perf_counter() - before - _TICK, 0.0))

    watcher = asyncio.create_task(watch())
    began, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        watcher.cancel()
        result.cpu_share = (time.process_time() - cpu) / (time.perf_counter() - began)


def _record(index: int, due: float, prompt: Prompt) -> RequestRecord:
    return RequestRecord(index=index, due=due, max_tokens=prompt.max_tokens, input_tokens=prompt.tokens)


async def _warm_up(sender: Sender, options: LoadOptions, prompts: Iterator[Prompt]) -> None:
    """Sends requests of which nothing is counted, all at once."""
    chosen = list(itertools.islice(prompts, options.warmup))
    records = [_record(index, 0.0, prompt) for index, prompt in enumerate(chosen)]
    await asyncio.gather(*(sender.send(*one, Fate()) for one in zip(records, chosen, strict=True)))
    for record in records:
        if record.outcome == ERROR:
            raise HeadraceError(f"a warm-up request to {options.url} failed: {record.kind}: {record.error}")


async def _send_all(sender: Sender, options: LoadOptions, prompts: Iterator[Prompt]) -> list[RequestRecord]:
    """Sends each when its time has come and there is room for it, and waits for the last."""
    rng, fates = random.Random(f"arrivals {options.seed}"), random.Random(f"fates {options.seed}")
    dues = arrivals(options.request_rate, options.burstiness, rng, options.count)
    indices = itertools.count() if options.count is None else range(options.count)
    room = asyncio.Semaphore(options.concurrency) if options.concurrency else contextlib.nullcontext()
    records: list[RequestRecord] = []
    tasks: set[asyncio.Task[None]] = set()
    with tqdm.tqdm(total=options.count, unit="request", leave=False, disable=None) as bar:

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            bar.update()
            if isinstance(room, asyncio.Semaphore):
                room.release()

        for index, due, prompt in zip(indices, dues, prompts, strict=False):
            if due > (now := sender.now()):
                await asyncio.sleep(due - now)
            if isinstance(room, asyncio.Semaphore):
                await room.acquire()
            now = sender.now()
            if options.duration is not None and now >= options.duration:
                break
            # All at once means: as soon as there is room.
            record = _record(index, now if math.isinf(options.request_rate) else due, prompt)
            records.append(record)
            task = asyncio.create_task(sender.send(record, prompt, Fate.draw(fates, options, prompt.max_tokens)))
            tasks.add(task)
            task.add_done_callback(ended)
        await asyncio.gather(*tasks)
    return records
