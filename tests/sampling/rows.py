"""Batches of sampling parameters, made the way the engine makes them: through the sequence table."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from headrace.execution.sequences import SequenceTable
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import SamplingRows, sample

GREEDY = SamplingParams(temperature=0.0)

draw = jax.jit(sample)


def rows_of(
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int] | None = None,
    choices: Sequence[int] | None = None,
) -> SamplingRows:
    """One row per request; position and choice are 0 unless given."""
    table = SequenceTable(len(params), 1)
    for slot, (one, seed) in enumerate(zip(params, seeds, strict=True)):
        table.load(slot, [0], 1, one, seed)
    zeros = [0] * len(params)
    return SamplingRows(
        temperature=jnp.asarray(table.temperature),
        top_k=jnp.asarray(table.top_k),
        top_p=jnp.asarray(table.top_p),
        min_p=jnp.asarray(table.min_p),
        seeds=jnp.asarray(table.seeds),
        choices=jnp.asarray(zeros if choices is None else choices, jnp.int32),
        output_positions=jnp.asarray(zeros if positions is None else positions, jnp.int32),
    )


def draws(logits: np.ndarray, params: SamplingParams, count: int, seeds: int = 8) -> np.ndarray:
    """`count` tokens drawn for one row of logits, over `seeds` seeds and as many output positions as it takes."""
    table = SequenceTable(1, 1)
    words = []
    for seed in range(seeds):
        table.load(0, [0], 1, params, seed)
        words.append(table.seeds[0].copy())
    index = np.arange(count)
    rows = SamplingRows(
        temperature=jnp.full(count, table.temperature[0]),
        top_k=jnp.full(count, table.top_k[0]),
        top_p=jnp.full(count, table.top_p[0]),
        min_p=jnp.full(count, table.min_p[0]),
        seeds=jnp.asarray(np.stack(words)[index % seeds]),
        choices=jnp.zeros(count, jnp.int32),
        output_positions=jnp.asarray(index // seeds, jnp.int32),
    )
    return np.asarray(draw(jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, len(logits))), rows))
