"""Top-k, top-p and min-p without sorting the vocabulary.

Top-k and top-p both keep the fewest most likely tokens whose weights add up to a goal: weights of one and a goal of k,
or the likelihoods themselves and a goal of p times their sum. So one search serves both. It finds the value of the last
token to keep by bisection over the bits of the float, 31 passes whatever the vocabulary, then settles ties at that
value by token id. The passes go over the most likely tokens alone; a row that they do not suffice for is searched by
itself, all of it. Which of the two a row gets depends on that row only.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headrace.layers.reduce import row_sum
from headrace.sampling.candidates import candidates

BLOCK = 128  # columns summed together first, which keeps the error of a long float32 sum small
SEARCHED = 512  # groups of candidates that all rows are searched in together

_VALUE_BITS, _COLUMN_BITS = 31, 24
_LAST_BIT = _VALUE_BITS + _COLUMN_BITS - 1
_ALL = 2**_COLUMN_BITS  # a column after all others


class Edge(NamedTuple):
    """The last token that each row keeps: all of a larger likelihood are kept, and of its own those up to its column.

    Attributes:
        bits: [rows] uint32, bits of its likelihood.
        column: [rows] int32.
    """

    bits: jax.Array
    column: jax.Array


def block_sums(x: jax.Array) -> jax.Array:
    """x [rows, n] -> sums [rows, ceil(n / BLOCK)] of `BLOCK` consecutive columns."""
    rows, n = x.shape
    sums = row_sum(jnp.pad(x, ((0, 0), (0, -n % BLOCK))).reshape(rows, -1, BLOCK))
    # Or XLA would make one sum of a sum of these, in an order that depends on the number of rows.
    barred: jax.Array = jax.lax.optimization_barrier(sums)
    return barred


def total(x: jax.Array) -> jax.Array:
    """Sums [rows] of x [rows, n]; a row's bits do not depend on the others."""
    return row_sum(block_sums(x))


def keep(likelihood: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array) -> jax.Array:
    """Keeps the k largest of likelihood [rows, vocab] ≥ 0, then the fewest largest that reach top_p of what is left,
    then what is at least min_p times the largest. What is not kept becomes 0.

    top_k [rows] int32 ≤ 0, top_p [rows] float32 ≥ 1 and min_p [rows] float32 of 0 keep all. Of equals top-k and top-p
    keep the lower ids. The token that reaches top_p is kept too.
    """
    rows, vocab = likelihood.shape
    k = jnp.where(top_k < vocab, jnp.maximum(top_k, 0), 0)
    everything = Edge(jnp.zeros(rows, jnp.uint32), jnp.full(rows, _ALL, jnp.int32))
    asked = ((k > 0) | (top_p < 1)).any()
    edge: Edge = jax.lax.cond(asked, lambda: _edge(likelihood, k, top_p), lambda: everything)
    least = min_p * likelihood.max(-1)  # which top-k and top-p always keep
    kept = _kept(likelihood, jnp.arange(vocab, dtype=jnp.int32), edge) & (likelihood >= least[:, None])
    return jnp.where(kept, likelihood, 0.0)


def _edge(likelihood: jax.Array, k: jax.Array, p: jax.Array) -> Edge:
    """The edge of top-k, then top-p, among all columns."""
    rows, vocab = likelihood.shape
    some, sums = candidates(likelihood, SEARCHED, padding=0.0), total(likelihood)
    edge = _search(some.values, some.columns, sums, k, p)
    if some.values.shape == likelihood.shape:
        return edge

    def search_all(state: tuple[Edge, jax.Array]) -> tuple[Edge, jax.Array]:
        edge, missed = state
        row = jnp.argmax(missed)
        line, *alone = (jax.lax.dynamic_slice_in_dim(x, row, 1) for x in (likelihood, sums, k, p))
        right = _search(line, jnp.arange(vocab, dtype=jnp.int32)[None], *alone)
        edge = Edge(*(jax.lax.dynamic_update_slice_in_dim(x, y, row, 0) for x, y in zip(edge, right, strict=True)))
        return edge, missed & (jnp.arange(rows) != row)

    # What is larger than the bound is a candidate, so an edge beyond it is that of all columns.
    missed = ((k > 0) | (p < 1)) & ~(jax.lax.bitcast_convert_type(edge.bits, jnp.float32) > some.bound)
    edge, _ = jax.lax.while_loop(lambda state: state[1].any(), search_all, (edge, missed))
    return edge


def _search(x: jax.Array, columns: jax.Array, sums: jax.Array, k: jax.Array, p: jax.Array) -> Edge:
    """The edge of top-k, then top-p, among the likelihoods x [rows, n] of some columns [rows or 1, n].

    Args:
        sums: [rows], of the likelihoods of all columns.
    """
    rows = len(k)

    def one_filter(stage: jax.Array, edge: Edge) -> Edge:
        by_count = stage == 0
        on = jnp.where(by_count, k > 0, p < 1)
        kept = jnp.where(_kept(x, columns, edge), x, 0.0)
        weights = jnp.where(by_count, 1.0, kept)
        share = p * jnp.where(k > 0, total(kept), sums)
        goal = jnp.where(by_count, k.astype(jnp.float32), share)
        goal = jnp.maximum(goal, np.finfo(np.float32).tiny)  # a goal of 0, from a tiny p, nothing would reach for
        new = _reach(kept, columns, weights, goal, on)
        column = jnp.where(new.bits == edge.bits, jnp.minimum(new.column, edge.column), new.column)
        return Edge(jnp.where(on, new.bits, edge.bits), jnp.where(on, column, edge.column))

    first, last = jnp.where((k > 0).any(), 0, 1), jnp.where((p < 1).any(), 2, 1)
    start = Edge(jnp.zeros(rows, jnp.uint32), jnp.full(rows, _ALL, jnp.int32))
    edge: Edge = jax.lax.fori_loop(first, last, one_filter, start)
    return edge


def _reach(x: jax.Array, columns: jax.Array, weights: jax.Array, goal: jax.Array, on: jax.Array) -> Edge:
    """The last of the fewest largest of x [rows, n] ≥ 0 whose weights [rows, n] reach goal [rows], for rows that are
    on [rows] bool.

    The bits of its value are found one by one, then those of its column where others have the same value.
    """
    rows, bits = len(x), _bits(x)

    def one_bit(i: jax.Array, edge: Edge) -> Edge:
        by_value, bit = i < _VALUE_BITS, 1 << jnp.where(i < _VALUE_BITS, _VALUE_BITS - 1 - i, _LAST_BIT - i)
        value = edge.bits | jnp.where(by_value, bit, 0).astype(jnp.uint32)
        column = jnp.where(by_value, _ALL, edge.column | bit)
        limit, end = value[:, None], column[:, None]
        reached = total(jnp.where((bits > limit) | ((bits == limit) & (columns < end)), weights, 0.0)) >= goal
        # The largest value from which on the goal is reached, and the largest column before which it is not.
        return Edge(
            jnp.where(by_value & ~reached, edge.bits, value),
            jnp.where(by_value | reached, edge.column, column),
        )

    def one_part(part: jax.Array, state: tuple[Edge, jax.Array]) -> tuple[Edge, jax.Array]:
        edge, several = state
        first = jnp.where(part == 0, 0, _VALUE_BITS)
        edge = jax.lax.fori_loop(first, jnp.where(several, _LAST_BIT + 1, _VALUE_BITS), one_bit, edge)
        # A float32 counts exactly, in any order: XLA:CPU cuts a long sum of integers into many kernels.
        tied = (bits == edge.bits[:, None]).astype(jnp.float32).sum(-1)
        return edge, (on & (tied > 1)).any()

    zero = Edge(jnp.zeros(rows, jnp.uint32), jnp.zeros(rows, jnp.int32))
    edge, several = jax.lax.fori_loop(0, 2, one_part, (zero, jnp.zeros((), bool)))
    return Edge(edge.bits, jnp.where(several, edge.column, _ALL))


def _kept(x: jax.Array, columns: jax.Array, edge: Edge) -> jax.Array:
    bits, limit, end = _bits(x), edge.bits[:, None], edge.column[:, None]
    return (bits > limit) | ((bits == limit) & (columns <= end))


def _bits(x: jax.Array) -> jax.Array:
    """Ordered like the floats, which are not negative."""
    return jax.lax.bitcast_convert_type(x, jnp.uint32)
