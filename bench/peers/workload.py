"""What is measured: the figures, and the requests that each is taken from."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_FIRST_TOKEN = 100  # below are tokens with a meaning of their own
_STEP_TOKENS = 512  # least tokens of prompts that any engine computes in a step
DECODED = 64

KINDS = ("decode", "context", "prefill", "mixed")  # "context" is decoding, too
_DECODE = ("decode", "context")

Run = Callable[[list[list[int]], list[int]], dict[str, Any]]  # prompts, output tokens -> `protocol.timing`


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: in tables.
        unit: "tok/s", "s" or "MB"; of the last two less is better.
        kind: one of `KINDS`, or "" for what is not taken from requests.
        requests: at once.
        prompt: tokens of each prompt.
        repeats: runs in a round, of which the median counts.
        every: it is taken in each `every`-th round, from the first on.
    """

    name: str
    unit: str
    kind: str = ""
    requests: int = 1
    prompt: int = 0
    repeats: int = 1
    every: int = 1

    @property
    def more_is_better(self) -> bool:
        return self.unit == "tok/s"


RATES = (
    Figure("decode, 1 request", "tok/s", "decode", 1, 128),
    Figure("decode, 8 requests", "tok/s", "decode", 8, 128),
    Figure("decode, 32 requests", "tok/s", "decode", 32, 128),
    Figure("decode, 8 requests, context 4,096", "tok/s", "context", 8, 4096, every=2),
    Figure("prefill, 128 tokens", "tok/s", "prefill", 1, 128, repeats=5),
    Figure("prefill, 512 tokens", "tok/s", "prefill", 1, 512, repeats=3),
    Figure("prefill, 2,048 tokens", "tok/s", "prefill", 1, 2048),
    Figure("64 requests of mixed lengths", "tok/s", "mixed", 64, every=2),
)
COLD_START = Figure("start to first token, empty cache", "s")
WARM_START = Figure("start to first token, full cache", "s")
MEMORY = Figure("peak memory", "MB")
FIGURES = (*RATES, COLD_START, WARM_START, MEMORY)

ANSWER = 8  # tokens of each engine's answer to one text
MAX_REQUESTS = 32
MAX_TOKENS = 4352  # of a request: the longest prompt and what is decoded after it, in whole blocks of 256
KV_TOKENS = 8 * MAX_TOKENS


def sample(figure: Figure, run: Run, vocab_size: int, seed: int) -> tuple[float, float]:
    """One value of the figure, and the largest share of the machine that others took meanwhile.

    Every engine gets the same requests for one seed, and no prompt comes twice.
    """
    rng = random.Random(f"{figure.name} {seed}")
    values, others = [], []
    for _ in range(figure.repeats):
        prompts, outputs = _requests(figure, rng, vocab_size)
        answer = run(prompts, outputs)
        values.append(_value(figure, prompts, outputs, answer))
        others.append(answer["others"])
    return statistics.median(values), max(others)


def _requests(figure: Figure, rng: random.Random, vocab_size: int) -> tuple[list[list[int]], list[int]]:
    """Random prompts, and how many tokens each is to get."""
    lengths, outputs = [figure.prompt] * figure.requests, [1] * figure.requests
    if figure.kind in _DECODE:  # and as many more as the first decodes while the others' prompts are computed
        outputs = [DECODED + -(-sum(lengths) // _STEP_TOKENS)] * figure.requests
    elif figure.kind == "mixed":
        lengths = [rng.randint(32, 512) for _ in lengths]
        outputs = [rng.randint(16, 128) for _ in lengths]
    return [[rng.randrange(_FIRST_TOKEN, vocab_size) for _ in range(length)] for length in lengths], outputs


def _value(figure: Figure, prompts: Sequence[Sequence[int]], outputs: Sequence[int], answer: dict[str, Any]) -> float:
    if figure.kind in _DECODE:
        return float(answer["together_tokens"] / answer["together_s"])
    if figure.kind == "prefill":
        return float(sum(map(len, prompts)) / answer["first_s"])
    return float(sum(outputs) / answer["seconds"])


def warm_up(run: Run, vocab_size: int) -> None:
    """What is not measured: each engine's first steps of many requests, and of a long prompt."""
    rng = random.Random(-1)
    for requests, prompt in ((1, 128), (8, 128), (MAX_REQUESTS, 32), (1, 2048)):
        figure = Figure("", "", "prefill", requests, prompt)
        run(_requests(figure, rng, vocab_size)[0], [4] * requests)
