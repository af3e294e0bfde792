"""Matrix products. A weight leaf carries its own storage; `linear` is how every layer multiplies by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

# XLA:CPU computes a product of one or two rows by another algorithm than a taller one: it is slower for bfloat16 and
# its bits differ. From four rows up a row's bits do not depend on the number of rows; eight is also fast everywhere.
MIN_ROWS = 8

_CONTRACT_LAST = (((1,), (1,)), ((), ()))


class WeightLeaf(Protocol):
    """A matrix [out, in] in some form of storage, as a pytree of arrays whose first axis is the output rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the matrix that is stored."""
        ...

    def matmul(self, x: jax.Array) -> jax.Array:
        """x [rows, in] in any float dtype -> [rows, out] float32.

        From `MIN_ROWS` rows up the bits of a row do not depend on the others, nor on how many there are.
        """
        ...


class EmbeddingLeaf(WeightLeaf, Protocol):
    """A weight whose rows can be looked up."""

    @property
    def dtype(self) -> jnp.dtype:
        """The floating-point dtype that the matrix is taken to have."""
        ...

    def rows(self, index: jax.Array) -> jax.Array:
        """Rows by index [n] -> [n, in] float32. Indices must be in range."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DenseWeight:
    """A plain matrix [out, in] in float32, bfloat16 or float16; products round their operands to its dtype."""

    array: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> jnp.dtype:
        return self.array.dtype

    def matmul(self, x: jax.Array) -> jax.Array:
        return dot(x.astype(self.array.dtype), self.array, jnp.float32)

    def rows(self, index: jax.Array) -> jax.Array:
        return self.array[index].astype(jnp.float32)


def dot(x: jax.Array, matrix: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """x [rows, in] times matrix [out, in] -> [rows, out], added up in `dtype`."""
    return jax.lax.dot_general(x, matrix, _CONTRACT_LAST, preferred_element_type=dtype)


def linear(x: jax.Array, weight: WeightLeaf, bias: jax.Array | None = None) -> jax.Array:
    """x [rows, in] -> [rows, out] float32; short inputs are padded to `MIN_ROWS`."""
    rows = x.shape[0]
    if rows < MIN_ROWS:
        x = jnp.pad(x, ((0, MIN_ROWS - rows), (0, 0)))
    y = weight.matmul(x)[:rows]
    return y if bias is None else y + bias
