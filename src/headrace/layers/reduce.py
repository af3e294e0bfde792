"""Sums along rows."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

# XLA:CPU adds up fewer elements than this, over all rows, by another algorithm than more of them, in another order.
MIN_SUMMED = 4096


def row_sum(x: jax.Array) -> jax.Array:
    """x [..., n] float32 -> sums [...] over the last axis; a row's bits do not depend on the number of rows."""
    rows, n = math.prod(x.shape[:-1]), x.shape[-1]
    missing = -(-MIN_SUMMED // n) - rows
    if missing <= 0:
        return x.sum(-1)
    padded = jnp.pad(x.reshape(rows, n), ((0, missing), (0, 0)))
    return padded.sum(-1)[:rows].reshape(x.shape[:-1])
