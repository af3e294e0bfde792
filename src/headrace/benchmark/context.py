"""Requests with a long context, without the time that computing it takes.

Pages are filled with random numbers, and the prefix cache takes them for those of the prompts. Each request has pages
of its own, so that steps read as much memory as with a context that was computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp

from headrace.benchmark.workload import greedy
from headrace.engine.engine import Engine
from headrace.engine.prefix import CacheScope
from headrace.errors import HeadraceError
from headrace.execution.schedule import MAX_SHARED_PAGE_UPDATES


@dataclass(frozen=True)
class Decoded:
    """Some steps in each of which every request decoded a token.

    Attributes:
        seconds: from the start of each to the start of the next.
        cached: tokens that all requests together had in the cache at the start of each.
    """

    seconds: list[float]
    cached: list[int]


def steps_to_begin(requests: int, tokens: int, page_size: int, max_num_batched_tokens: int) -> int:
    """Most steps until so many requests of `tokens` each decode together: a step is told of so many shared pages, and
    computes so many tokens of what does not fill a page."""
    shared, rest = divmod(tokens - 1, page_size)
    told = -(-requests * shared // MAX_SHARED_PAGE_UPDATES)
    return told + -(-requests * (rest + 1) // max_num_batched_tokens) + 2


def fill_pages(engine: Engine, count: int) -> None:
    """Writes random numbers to the first `count` pages of each layer, which the pool hands out first."""
    engine.manager.change_pages(partial(_filled, count=count))


@partial(jax.jit, donate_argnums=0, static_argnames="count")
def _filled(pages: jax.Array, count: int) -> jax.Array:
    page = jax.random.normal(jax.random.key(0), pages.shape[1:])
    if pages.dtype == jnp.uint16:  # the bits of bfloat16
        page = jax.lax.bitcast_convert_type(page.astype(jnp.bfloat16), jnp.uint16)
    return pages.at[:count].set(page.astype(pages.dtype))


def take_for_computed(engine: Engine, prompts: Sequence[Sequence[int]]) -> int:
    """Makes the prefix cache find pages for prompts, as far as they fill some, and no others; returns their tokens.

    The engine is idle, and of one data parallel rank.
    """
    engine.reset_prefix_cache()
    pool, prefix, size = engine.pool, engine.prefix, engine.pool.page_size
    held: list[int] = []
    for prompt in prompts:
        scope = CacheScope(rope_length=engine.manager.spec.rope_length(len(prompt)))
        node, pages = prefix.root, pool.allocate((len(prompt) - 1) // size)
        for index, page in enumerate(pages):
            node = prefix.add(node, scope, prompt[index * size : (index + 1) * size], page)
        held += pages
    pool.free(reversed(held))
    return len(held) * size


def decode(engine: Engine, prompts: Sequence[Sequence[int]], steps: int, max_tokens: int) -> Decoded:
    """Takes prompts for computed and decodes them together.

    Args:
        steps: to measure.
        max_tokens: of each request; more than `steps` and `steps_to_begin`.

    Raises:
        HeadraceError: the requests' pages were not found, or there are too few such steps.
    """
    cached = expected = take_for_computed(engine, prompts)
    hits, last = engine.prefix.num_hit_tokens, engine.last_step
    for index, prompt in enumerate(prompts):
        engine.add(f"bench-{index}", prompt, greedy(max_tokens))
    starts: list[float] = []
    counts: list[int] = []
    while engine.has_unfinished and len(starts) <= steps:
        engine.step()
        step = engine.last_step
        if step is None or step is last:
            continue
        last = step
        if step.is_decode and step.rows == len(prompts):
            starts.append(step.times.start)
            counts.append(cached)
        elif starts:
            break
        cached += step.tokens
    engine.pause("abort")
    engine.resume()
    if engine.prefix.num_hit_tokens - hits != expected:
        raise HeadraceError(f"of {expected} tokens in the cache {engine.prefix.num_hit_tokens - hits} were found")
    if len(starts) <= steps:
        raise HeadraceError(f"{len(prompts)} requests decoded together in {len(starts)} steps, not {steps + 1}")
    return Decoded([b - a for a, b in pairwise(starts)], counts[:steps])
