"""Top-k, top-p and min-p without sorting the vocabulary.

Each filter finds the value of the last token to keep by bisection over the bits of the float, 32 counting passes for
any vocabulary, then settles ties at that value by token id.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 128  # columns summed together first, which keeps the error of a long float32 sum small


def block_sums(x: jax.Array) -> jax.Array:
    """x [rows, n] -> sums [rows, ceil(n / BLOCK)] of `BLOCK` consecutive columns."""
    rows, n = x.shape
    return jnp.pad(x, ((0, 0), (0, -n % BLOCK))).reshape(rows, -1, BLOCK).sum(-1)


def keep_top_k(likelihood: jax.Array, k: jax.Array) -> jax.Array:
    """Keeps the k largest of likelihood [rows, vocab] ≥ 0; k [rows] int32, ≤ 0 keeps all. Others become 0."""
    vocab = likelihood.shape[1]
    k = jnp.where((k <= 0) | (k > vocab), vocab, k)
    edge = _bisect(likelihood, lambda at_least: at_least.sum(-1) >= k)
    above = (likelihood > edge[:, None]).sum(-1)
    return _keep(likelihood, edge, k - above)


def keep_top_p(likelihood: jax.Array, p: jax.Array) -> jax.Array:
    """Keeps the fewest largest of likelihood [rows, vocab] ≥ 0 whose sum reaches p [rows] of the total.

    The token that reaches the sum is kept. p ≥ 1 keeps all.
    """
    # A p that is 0 in float32 must not be reached by nothing at all.
    mass = jnp.maximum(block_sums(likelihood).sum(-1) * p, np.finfo(np.float32).tiny)

    def reaches(at_least: jax.Array) -> jax.Array:
        return block_sums(jnp.where(at_least, likelihood, 0.0)).sum(-1) >= mass

    edge = _bisect(likelihood, reaches)
    above = block_sums(jnp.where(likelihood > edge[:, None], likelihood, 0.0)).sum(-1)
    # Of the tokens tied at the edge as many as it takes; at least one, whatever rounding says.
    ties = jnp.ceil((mass - above) / jnp.maximum(edge, np.finfo(np.float32).tiny))
    ties = jnp.clip(ties, 1, likelihood.shape[1]).astype(jnp.int32)
    return jnp.where((p >= 1.0)[:, None], likelihood, _keep(likelihood, edge, ties))


def keep_min_p(likelihood: jax.Array, p: jax.Array) -> jax.Array:
    """Keeps what is at least p [rows] times the largest of likelihood [rows, vocab]."""
    return jnp.where(likelihood >= p[:, None] * likelihood.max(-1, keepdims=True), likelihood, 0.0)


def _bisect(x: jax.Array, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The largest float edge [rows] for which `enough(x >= edge)` still holds; x ≥ 0, `enough` monotone.

    Bits of non-negative floats are ordered like the floats, so the edge is built from the highest bit down.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)

    def one_bit(i: jax.Array, edge: jax.Array) -> jax.Array:
        candidate = edge | (jnp.uint32(1) << (jnp.uint32(30) - i.astype(jnp.uint32)))
        return jnp.where(enough(bits >= candidate[:, None]), candidate, edge)

    edge = jax.lax.fori_loop(0, 31, one_bit, jnp.zeros(x.shape[0], jnp.uint32))
    return jax.lax.bitcast_convert_type(edge, jnp.float32)


def _keep(x: jax.Array, edge: jax.Array, ties: jax.Array) -> jax.Array:
    """x where it is above edge [rows], and of those equal to it the first ties [rows]; elsewhere 0."""
    above, tied = x > edge[:, None], x == edge[:, None]

    def first_ties(_: None) -> jax.Array:
        return tied & (jnp.cumsum(tied, axis=-1, dtype=jnp.int32) <= ties[:, None])

    # The running count is the dear part, and hardly ever needed.
    tied = jax.lax.cond((tied.sum(-1) > ties).any(), first_ties, lambda _: tied, None)
    return jnp.where(above | tied, x, 0.0)
