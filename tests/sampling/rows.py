"""Batches of sampling parameters, made the way the engine makes them: through the sequence table."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from headrace.execution.sequences import SAMPLING_FIELDS, SequenceTable
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import SamplingRows, sample

GREEDY = SamplingParams(temperature=0.0)

draw = jax.jit(sample)


def fields_of(lines: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of lines [rows, fields] of a sequence table's sampling parameters."""
    names = SAMPLING_FIELDS.items()
    return {name: np.ascontiguousarray(lines[:, i]).view(dtype) for i, (name, dtype) in enumerate(names)}


def rows_from(lines: np.ndarray, positions: Sequence[int] | np.ndarray) -> SamplingRows:
    """Rows of such lines, at these output positions."""
    fields = fields_of(lines)
    names = ("temperature", "top_k", "top_p", "min_p")
    return SamplingRows(
        **{name: jnp.asarray(fields[name]) for name in names},
        seeds=jnp.asarray(np.stack([fields["seed_high"], fields["seed_low"]], axis=1)),
        choices=jnp.asarray(fields["choice"]),
        output_positions=jnp.asarray(positions, jnp.int32),
    )


def rows_of(
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int] | None = None,
    choices: Sequence[int] | None = None,
) -> SamplingRows:
    """One row per request; position and choice are 0 unless given."""
    table, zeros = SequenceTable(len(params), 1), [0] * len(params)
    for slot, (one, seed, choice) in enumerate(zip(params, seeds, choices or zeros, strict=True)):
        table.load(slot, [0], 1, one, seed, choice)
    return rows_from(table.sampling, positions or zeros)


def draws(logits: np.ndarray, params: SamplingParams, count: int, seeds: int = 8) -> np.ndarray:
    """`count` tokens drawn for one row of logits, over `seeds` seeds and as many output positions as it takes."""
    table = SequenceTable(seeds, 1)
    for seed in range(seeds):
        table.load(seed, [0], 1, params, seed)
    index = np.arange(count)
    rows = rows_from(table.sampling[index % seeds], index // seeds)
    return np.asarray(draw(jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, len(logits))), rows))
