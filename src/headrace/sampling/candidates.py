"""The columns that can be among the largest of a long row, found in one pass over it."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from headrace import native

GROUP = 16  # neighbouring columns that are candidates together


@dataclass(frozen=True)
class Candidates:
    """Some columns of each row, among them all whose value is larger than a bound.

    Attributes:
        values: [rows, n], the row's values there.
        columns: [rows, n] int32.
        bound: [rows]; −inf if these are all columns.
    """

    values: jax.Array
    columns: jax.Array
    bound: jax.Array


def candidates(x: jax.Array, groups: int, padding: float) -> Candidates:
    """The columns of the `groups` groups of x [rows, n] whose largest value is largest, of ties the first.

    As many columns as there are groups, the largest with ties to the lowest, are always among them. Where n is not a
    multiple of `GROUP` there may be columns ≥ n, with the value `padding`, which nothing in x is below.
    """
    rows, n = x.shape
    if n <= groups * GROUP:
        columns = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), x.shape)
        return Candidates(x, columns, jnp.full(rows, -jnp.inf))
    grouped = jnp.pad(x, ((0, 0), (0, -n % GROUP)), constant_values=padding).reshape(rows, -1, GROUP)
    peaks = grouped.max(-1)
    # top_k puts −0 below 0, comparisons and argmax do not. What it gives must not be cut: XLA:CPU would sort instead.
    largest, chosen = jax.lax.top_k(jnp.where(peaks == 0, 0.0, peaks), groups)
    values = jnp.take_along_axis(grouped, chosen[:, :, None], axis=1, mode="promise_in_bounds")
    columns = chosen[:, :, None] * GROUP + jnp.arange(GROUP, dtype=jnp.int32)
    return Candidates(values.reshape(rows, -1), columns.reshape(rows, -1), largest.min(-1))


def argmax(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest value [rows] of x [rows, n] and its first column [rows] int32. Where a row has NaN in it the value is
    NaN, and the column has no meaning."""
    rows, n = x.shape
    if native.available() and jax.default_backend() == "cpu":
        forms = (jax.ShapeDtypeStruct((rows,), jnp.float32), jax.ShapeDtypeStruct((rows,), jnp.int32))
        value, column = jax.ffi.ffi_call("headrace_argmax", forms)(x)
        return value, column
    group = 128  # XLA:CPU takes ten times as long for the argmax of a row as for its maximum
    grouped = jnp.pad(x, ((0, 0), (0, -n % group)), constant_values=-jnp.inf).reshape(rows, -1, group)
    peaks = grouped.max(-1)
    first = jnp.argmax(peaks, axis=-1)
    members = jnp.take_along_axis(grouped, first[:, None, None], axis=1, mode="promise_in_bounds")[:, 0]
    # A NaN is seen in the sum: XLA:CPU's maximum passes over it.
    value = jnp.where(jnp.isnan(x.sum(-1)), jnp.nan, peaks.max(-1))
    return value, (first * group + jnp.argmax(members, axis=-1)).astype(jnp.int32)
