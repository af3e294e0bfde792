"""One request, from its body to the end of its record."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass

from headrace.benchmark.serve.answers import HUNG_UP, Answer
from headrace.benchmark.serve.datasets import Prompt
from headrace.benchmark.serve.http import Client, ExchangeError, Pace
from headrace.benchmark.serve.options import CHAT, LoadOptions
from headrace.benchmark.serve.records import CANCELLED, RequestRecord

_SLOW = Pace(size=512, pause=0.05)  # 10 kB/s
_LEFT_EARLY = 0.1  # seconds within which those who leave early do


@dataclass(frozen=True, slots=True)
class Fate:
    """What a request's client does on purpose.

    Attributes:
        slow: reads slowly.
        leaves_within: seconds after which it hangs up, unless the answer is there; None for never.
        leaves_after: chunks with output after which it hangs up; None for never.
    """

    slow: bool = False
    leaves_within: float | None = None
    leaves_after: int | None = None

    @classmethod
    def draw(cls, rng: random.Random, options: LoadOptions, max_tokens: int) -> Fate:
        """By the shares that the options give."""
        slow = rng.random() < options.slow_readers
        if rng.random() >= options.cancel:
            return cls(slow)
        if rng.random() < 0.25:
            return cls(slow, leaves_within=rng.uniform(0, _LEFT_EARLY))
        return cls(slow, leaves_after=rng.randint(1, max(max_tokens - 1, 1)))


def body_of(options: LoadOptions, model: str, prompt: Prompt) -> bytes:
    """The JSON to send. A field that `extra_body` gives as null is left out."""
    message = {"role": "user", "content": prompt.text}
    fields = {
        "model": model,
        **({"messages": [message]} if options.endpoint == CHAT else {"prompt": prompt.text}),
        "max_tokens": prompt.max_tokens,
        "stream": options.stream,
        "stream_options": {"include_usage": True} if options.stream and options.usage else None,
        "temperature": options.temperature,
        "ignore_eos": options.ignore_eos or None,
        **options.extra_body,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


class Sender:
    """Sends requests of one run.

    Args:
        began: the run's begin, on `time.perf_counter`.
    """

    def __init__(self, options: LoadOptions, client: Client, model: str, began: float) -> None:
        self._options, self._client, self._model, self._began = options, client, model, began

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    async def send(self, record: RequestRecord, prompt: Prompt, fate: Fate) -> None:
        """Sends it and waits for its end. Whatever goes wrong is in the record."""
        options = self._options
        body = body_of(options, self._model, prompt)
        answer = Answer(record, self._began, stream=options.stream, hang_up_after=fate.leaves_after)
        limit = options.timeout if fate.leaves_within is None else fate.leaves_within
        record.slow, record.start = fate.slow, self.now()
        try:
            async with asyncio.timeout(limit):
                response = await self._client.request(
                    "POST", options.path, body, answer.receive, _SLOW if fate.slow else None
                )
            answer.finish(response)
        except TimeoutError:
            if fate.leaves_within is None:
                record.fail("timeout", f"no whole answer within {limit:g} s", self.now())
            else:
                record.outcome, record.end = CANCELLED, self.now()
        except ExchangeError as error:
            if error.kind == HUNG_UP:
                record.outcome, record.end = CANCELLED, self.now()
            else:
                record.fail(error.kind, str(error), self.now())
