"""Search by bisection, for every row of a batch at once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def largest(bits: int, rows: int, holds: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The largest value [rows] uint32 of so many bits for which `holds` is true.

    Args:
        holds: values [rows] uint32 -> [rows] bool; true of 0, and once false it stays false for larger values.
    """

    def one_bit(i: jax.Array, value: jax.Array) -> jax.Array:
        candidate = value | (jnp.uint32(1) << (jnp.uint32(bits - 1) - i.astype(jnp.uint32)))
        return jnp.where(holds(candidate), candidate, value)

    value: jax.Array = jax.lax.fori_loop(0, bits, one_bit, jnp.zeros(rows, jnp.uint32))
    return value
