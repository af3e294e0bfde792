"""What the products of a decode step take alone, each kind of matrix by itself in all layers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from headrace.benchmark.work import Counted
from headrace.layers.linear import WeightLeaf
from headrace.layers.native import Gate
from headrace.layers.product import product

_RUNS = 9


def time_products(counted: Counted, rows: int) -> dict[str, float]:
    """Seconds for all products of so many rows by the names of `Counted.products`; medians.

    As in a step, but without norms and residuals, and one kind after another.
    """
    return {name: _seconds(counted, name, matrices, rows) for name, matrices in counted.matrices.items()}


def _seconds(counted: Counted, name: str, matrices: Sequence[WeightLeaf], rows: int) -> float:
    x = jax.random.normal(jax.random.key(0), (rows, matrices[0].shape[1]))
    run = jax.jit(partial(_chain, gate=counted.spec.activation if name == "gate_up" else None))
    run(x, matrices).block_until_ready()
    seconds = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        run(x, matrices).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _chain(x: jax.Array, matrices: Sequence[WeightLeaf], *, gate: Gate | None) -> jax.Array:
    """The last product; each waits for the one before."""
    num_rows = jnp.full(1, x.shape[0], jnp.int32)
    for matrix in matrices:
        y = product(x, matrix, num_rows, gate=gate)
        x = x + 0 * y[:1, :1]
    return y
