"""What the measurements run: random prompts, greedy, of a fixed length whatever the model says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from headrace.engine.engine import Engine
from headrace.errors import ConfigError
from headrace.execution.metrics import StepMetrics
from headrace.llm import LLM
from headrace.sampling.params import SamplingParams

Load = Callable[[dict[str, Any]], LLM]  # engine options -> the loaded model


def load_for(load: Load, chosen: dict[str, Any], requests: int, tokens: int) -> LLM:
    """The model with just the room that `requests` at once of `tokens` each need.

    Args:
        chosen: engine options of the user's own.

    Raises:
        ConfigError: they leave less room.
    """
    needed = {"max_num_seqs": requests, "max_model_len": tokens}
    for name, least in needed.items():
        if chosen.get(name, least) < least:
            raise ConfigError(
                f"{name}: {chosen[name]} is less than the {least} that {requests} requests of {tokens} need"
            )
    return load({**needed, **chosen})


def random_prompts(llm: LLM, count: int, length: int) -> list[list[int]]:
    """The same ones each time."""
    rng = random.Random(count)
    vocab_size = llm.engine.manager.options.vocab_limit
    return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def greedy(max_tokens: int) -> SamplingParams:
    """The likeliest tokens, just so many of them."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def run_steps(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[StepMetrics]:
    """Runs all prompts together to their end, as if for the first time; the metrics of each step, in order."""
    engine.reset_prefix_cache()
    names = [f"bench-{i}" for i in range(len(prompts))]
    steps: list[StepMetrics] = []
    try:
        for name, prompt in zip(names, prompts, strict=True):
            engine.add(name, prompt, greedy(max_tokens))
        last = engine.last_step
        while engine.has_unfinished:
            engine.step()
            if engine.last_step is not None and engine.last_step is not last:
                steps.append(last := engine.last_step)
    finally:
        for name in names:
            engine.abort(name)
    return steps


def decode_steps(steps: Sequence[StepMetrics], requests: int) -> list[int]:
    """Indices of the steps in which every request decoded a token.

    Raises:
        ConfigError: there are no two in a row.
    """
    found = [i for i, step in enumerate(steps) if step.is_decode and step.rows == requests]
    if not following(found):
        raise ConfigError(
            f"requests: {requests} never decoded together for two steps; give fewer, or more output tokens or "
            "kv_cache_bytes"
        )
    return found


def following(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of neighbours among ascending indices."""
    return [(a, b) for a, b in pairwise(indices) if b == a + 1]
