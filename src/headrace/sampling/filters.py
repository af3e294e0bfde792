"""Top-k, top-p and min-p without sorting the vocabulary.

Top-k and top-p both keep the fewest most likely tokens whose weights add up to a goal: weights of one and a goal of k,
or the likelihoods themselves and a goal of p times their sum. So one search serves both. It finds the value of the last
token to keep by bisection over the bits of the float, 31 passes whatever the vocabulary, then settles ties at that
value by token id.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from headrace.layers.reduce import row_sum
from headrace.sampling.bisect import largest

BLOCK = 128  # columns summed together first, which keeps the error of a long float32 sum small


def block_sums(x: jax.Array) -> jax.Array:
    """x [rows, n] -> sums [rows, ceil(n / BLOCK)] of `BLOCK` consecutive columns."""
    rows, n = x.shape
    sums = row_sum(jnp.pad(x, ((0, 0), (0, -n % BLOCK))).reshape(rows, -1, BLOCK))
    # Or XLA would make one sum of a sum of these, in an order that depends on the number of rows.
    barred: jax.Array = jax.lax.optimization_barrier(sums)
    return barred


def keep_top_k_top_p(likelihood: jax.Array, k: jax.Array, p: jax.Array) -> jax.Array:
    """Keeps the k largest of likelihood [rows, vocab] ≥ 0, then the fewest largest that reach p of what is left.

    k [rows] int32 ≤ 0 or p [rows] float32 ≥ 1 keep all. Of equals the lower id is kept. The token that reaches p is
    kept too. What is not kept becomes 0.
    """
    vocab = likelihood.shape[1]
    k_on, p_on = (k > 0) & (k < vocab), p < 1.0

    def one_filter(stage: jax.Array, kept: jax.Array) -> jax.Array:
        by_count = stage == 0
        weights = jnp.where(by_count, 1.0, kept)
        goal = jnp.where(by_count, k.astype(jnp.float32), p * total(weights))
        goal = jnp.maximum(goal, np.finfo(np.float32).tiny)  # a goal of 0, from a tiny p, nothing would reach for
        on = jnp.where(by_count, k_on, p_on)
        return jnp.where(on[:, None], _keep_most_likely(kept, weights, goal), kept)

    first, last = jnp.where(k_on.any(), 0, 1), jnp.where(p_on.any(), 2, 1)
    result: jax.Array = jax.lax.fori_loop(first, last, one_filter, likelihood)
    return result


def keep_min_p(likelihood: jax.Array, p: jax.Array) -> jax.Array:
    """Keeps what is at least p [rows] times the largest of likelihood [rows, vocab]; p = 0 keeps all."""
    return jnp.where(likelihood >= p[:, None] * likelihood.max(-1, keepdims=True), likelihood, 0.0)


def total(x: jax.Array) -> jax.Array:
    """Sums [rows] of x [rows, n]; a row's bits do not depend on the others."""
    return row_sum(block_sums(x))


def _keep_most_likely(likelihood: jax.Array, weights: jax.Array, goal: jax.Array) -> jax.Array:
    """likelihood [rows, n] where it is among the fewest largest whose weights [rows, n] reach goal [rows], else 0."""
    rows, n = likelihood.shape
    bits = jax.lax.bitcast_convert_type(likelihood, jnp.uint32)  # ordered like the floats, which are not negative

    def reaches(edge: jax.Array) -> jax.Array:
        return total(jnp.where(bits >= edge[:, None], weights, 0.0)) >= goal

    edge = largest(31, rows, reaches)[:, None]
    above, tied, column = bits > edge, bits == edge, jnp.arange(n, dtype=jnp.uint32)
    missing = goal - total(jnp.where(above, weights, 0.0))

    def falls_short(end: jax.Array) -> jax.Array:
        return total(jnp.where(tied & (column < end[:, None]), weights, 0.0)) < missing

    def first_ties() -> jax.Array:
        # The columns before `end` fall short; the tied one at `end` reaches the goal.
        return tied & (column <= largest(n.bit_length(), rows, falls_short)[:, None])

    # Counted in float32 like the weights, which is exact: XLA:CPU cuts a long sum of integers into many kernels.
    several = total(tied.astype(jnp.float32)) > 1
    tied = jax.lax.cond(several.any(), first_ties, lambda: tied)
    return jnp.where(above | tied, likelihood, 0.0)
