"""Milliseconds per call of sampling and its parts: `PYTHONPATH=src python bench/sampling.py [rows] [vocabulary]`.

Logits are random; their spread decides how many tokens top-p keeps, which decides how they are searched.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headrace.sampling.chain import next_tokens
from headrace.sampling.constraints import constrain
from headrace.sampling.limits import MAX_LOGIT_BIAS
from headrace.sampling.logprobs import scores
from headrace.sampling.penalties import PenaltyRows, penalise
from headrace.sampling.sampler import SamplingRows, sample

PAGE_SIZE, HISTORY, TOP = 16, 1024, 20


def median_ms(function: Callable[..., Any], *args: Any, calls: int = 9) -> float:
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def chain(
    logits: jax.Array,
    rows: SamplingRows,
    penalties: PenaltyRows,
    pages: tuple[jax.Array, jax.Array],
    constraints: tuple[jax.Array, jax.Array, jax.Array],
    wanted: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """What a step does between its logits and its result."""
    tokens, scored = next_tokens(logits, rows, penalties, pages, constraints, "raw")
    return tokens, scores(scored, tokens, wanted, TOP)


def main(rows: int = 32, vocab: int = 262_144) -> None:
    rng = np.random.default_rng(0)
    on, off = jnp.ones(rows, bool), jnp.zeros(rows, bool)
    wide, narrow = (jnp.asarray(rng.normal(size=(rows, vocab)) * s, jnp.float32) for s in (2.0, 6.0))

    def filled(value: float, dtype: type = np.float32) -> jax.Array:
        return jnp.full(rows, value, dtype)

    def sampling(temperature: float, top_k: int = 0, top_p: float = 1.0) -> SamplingRows:
        seeds = jnp.asarray(rng.integers(0, 2**32, (rows, 2), dtype=np.uint32))
        none = jnp.zeros(rows, jnp.int32)
        return SamplingRows(filled(temperature), filled(top_k, np.int32), filled(top_p), filled(0), seeds, none, none)

    def penalties(strength: float) -> PenaltyRows:
        lengths = filled(HISTORY // 2, np.int32), filled(HISTORY, np.int32)
        return PenaltyRows(filled(1 + strength), filled(strength), filled(strength), *lengths)

    table = jnp.arange(rows * HISTORY // PAGE_SIZE, dtype=jnp.int32).reshape(rows, -1)
    pages = jnp.asarray(rng.integers(0, vocab, (table.size, PAGE_SIZE)), jnp.int32), table
    words = rng.integers(0, 2**32, (rows, -(-vocab // 32) + 2 * MAX_LOGIT_BIAS), dtype=np.uint32)
    words[:, -2 * MAX_LOGIT_BIAS :] = vocab
    rules = jnp.asarray(words)
    one_chain = jax.jit(chain)
    tokens = jnp.zeros(rows, jnp.int32)

    lines: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = []
    greedy, nucleus = sampling(0.0), sampling(1.0, top_p=0.95)
    for name, logits, params, strength, mask, wanted in (
        ("all greedy", narrow, greedy, 0.0, off, off),
        ("all greedy, logprobs", narrow, greedy, 0.0, off, on),
        ("temperature", narrow, sampling(1.0), 0.0, off, off),
        ("top-k 40", narrow, sampling(1.0, top_k=40), 0.0, off, off),
        ("top-p 0.95, a few hundred kept", narrow, nucleus, 0.0, off, off),
        ("top-p 0.95, many thousand kept", wide, nucleus, 0.0, off, off),
        ("top-p, penalties, logprobs", narrow, nucleus, 0.1, off, on),
        ("top-p, penalties, mask, logprobs", narrow, nucleus, 0.1, on, on),
    ):
        arguments = (logits, params, penalties(strength), pages, (rules, mask, off), wanted)
        lines.append((name, one_chain, arguments))
    lines += [
        ("part: penalties", jax.jit(penalise), (narrow, penalties(0.1), *pages)),
        ("part: mask", jax.jit(constrain), (narrow, rules, on, off)),
        ("part: sample, greedy", jax.jit(sample), (narrow, greedy)),
        ("part: sample, temperature", jax.jit(sample), (narrow, sampling(1.0))),
        ("part: sample, top-p", jax.jit(sample), (narrow, nucleus)),
        ("part: scores", jax.jit(scores, static_argnums=3), (narrow, tokens, on, TOP)),
        ("a copy of the logits", jax.jit(lambda x: x + 1), (narrow,)),
    ]
    print(f"{rows} rows, vocabulary {vocab:,}, history {HISTORY}")
    for name, function, arguments in lines:
        static = (TOP,) if "scores" in name else ()
        dynamic = arguments[: len(arguments) - len(static)]
        print(f"{median_ms(function, *dynamic, *static):8.2f} ms  {name}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
