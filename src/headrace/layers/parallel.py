"""What tensor parallel devices tell each other, inside `jax.shard_map`; with one shard there is nothing to tell."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headrace.layers.linear import EmbeddingLeaf

TP = "tp"  # the axis of the mesh that the devices lie along


def sum_over(x: jax.Array, shards: int) -> jax.Array:
    """x [...] float32, a part of a sum on each device -> the sum, in the order of the devices.

    Not `psum`: a ring's reduction begins each piece of x at another device, so that an element's bits would depend on
    where in the batch it lies.
    """
    if shards == 1:
        return x
    parts: jax.Array = jax.lax.all_gather(x, TP)
    total = parts[0]
    for i in range(1, shards):
        total = total + parts[i]
    return total


def gather_columns(x: jax.Array, shards: int) -> jax.Array:
    """x [rows, n] on each device -> [rows, shards * n] on all."""
    return x if shards == 1 else jax.lax.all_gather(x, TP, axis=1, tiled=True)


def lookup(weight: EmbeddingLeaf, index: jax.Array, num_rows: int, shards: int) -> jax.Array:
    """Rows [n, in] float32 by index [n] of a matrix of which each device has the next `num_rows` rows."""
    if shards == 1:
        return weight.rows(index)
    local = index - jax.lax.axis_index(TP) * num_rows
    here = (local >= 0) & (local < num_rows)
    rows = jnp.where(here[:, None], weight.rows(jnp.clip(local, 0, num_rows - 1)), 0.0)
    row: jax.Array = jax.lax.psum(rows, TP)  # all but one are 0: exact in any order
    return row
