"""`headrace bench serve`: its options, and from those to a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.benchmark.serve.options import LoadOptions

# name -> (type, help). Defaults and checks are those of LoadOptions and Dataset.
LOAD = {
    "api": (str, "completions or chat; by default as the URL says, else completions."),
    "model": (str, "Name to ask for; by default the first that the server lists."),
    "num_requests": (int, "Requests to send; by default 100, or until --duration."),
    "duration": (float, "Seconds after which no more are sent."),
    "request_rate": (float, "Requests per second, at random times; inf sends them all at once, which is the default."),
    "burstiness": (float, "1 (default): arrivals are a Poisson process; below: in bursts; above: more even."),
    "concurrency": (int, "Most requests at once."),
    "warmup": (int, "Requests before the others, not counted; 1 by default."),
    "stream": (bool, "Ask for streams, which is the default; without them there is no time to first token."),
    "usage": (bool, "Ask streams for the server's count of tokens, which is the default."),
    "temperature": (float, "As the server has it by default."),
    "ignore_eos": (bool, "Ask for all tokens, for servers that know ignore_eos."),
    "cancel": (float, "Share of requests that hang up at random."),
    "slow_readers": (float, "Share of requests that read slowly, 10 kB/s."),
    "seed": (int, "Seed of texts, arrivals and of who hangs up or reads slowly."),
    "timeout": (float, "Seconds that one request may take; 600 by default."),
}
DATASET = {
    "max_tokens": (int, "Tokens to ask for; by default 128, or as many as an answer in the file has."),
    "input_tokens": (int, "Length of a random prompt, or of what follows a shared prefix; 128 by default."),
    "input_spread": (float, "Share by which that varies: 0.5 gives half to one and a half."),
    "output_spread": (float, "The same for the tokens to ask for."),
    "prefixes": (int, "Shared prefixes; 8 by default."),
    "suffixes": (int, "Prompts with each of them; 8 by default."),
    "prefix_tokens": (int, "Length of a shared prefix; 256 by default."),
}


def load_options(
    url: str,
    load: Mapping[str, Any],
    dataset: Mapping[str, Any],
    *,
    name: str,
    file: Path | None,
    api_key: str | None,
    extra_body: str | None,
    percentiles: str,
    goodput: list[str],
) -> LoadOptions:
    """The options of a run, from those of the command line.

    Raises:
        ConfigError: one of them is wrong.
    """
    from headrace.benchmark.serve.datasets import Dataset
    from headrace.benchmark.serve.options import LoadOptions

    for option, value in {**load, **dataset}.items():
        least = 0 if option in ("warmup", "seed", "stream", "usage", "ignore_eos") else 1
        if isinstance(value, int) and value < least:
            raise ConfigError(f"{option}: {value} is too small")
    return LoadOptions(
        url=url,
        dataset=Dataset(name=name, file=file, **dataset),
        api_key=api_key,
        extra_body=_body(extra_body),
        percentiles=_numbers("percentiles", percentiles.split(",")),
        goodput=_limits(goodput),
        **load,
    )


def _body(text: str | None) -> dict[str, Any]:
    try:
        body = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"extra_body: no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ConfigError("extra_body: no JSON object")
    return body


def _limits(pairs: list[str]) -> dict[str, float]:
    limits = {}
    for pair in pairs:
        name, colon, value = pair.partition(":")
        if not colon:
            raise ConfigError(f"goodput: {pair!r} is not NAME:MS as in ttft:500")
        [limits[name]] = _numbers("goodput", [value])
    return limits


def _numbers(option: str, texts: list[str]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(text) for text in texts)
    except ValueError:
        numbers = (math.nan,)
    if not all(math.isfinite(number) for number in numbers):
        raise ConfigError(f"{option}: {','.join(texts)!r} is no number, or list of them as in 50,90,99")
    return numbers
