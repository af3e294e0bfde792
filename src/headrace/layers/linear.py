"""Matrix products. A weight leaf carries its own storage; `linear` is how every layer multiplies by it."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

# XLA:CPU computes a product of one or two rows by another algorithm than a taller one: it is slower for bfloat16 and
# its bits differ. From four rows up a row's bits do not depend on the number of rows; eight is also fast everywhere.
MIN_ROWS = 8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DenseWeight:
    """A plain matrix [out, in] in float32, bfloat16 or float16."""

    array: jax.Array

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype that products with this weight take their operands in."""
        return self.array.dtype

    def matmul(self, x: jax.Array) -> jax.Array:
        """x [rows, in] in any float dtype -> [rows, out] float32. Operands are rounded to the weight's dtype."""
        contract_last = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(
            x.astype(self.array.dtype), self.array, contract_last, preferred_element_type=jnp.float32
        )

    def rows(self, index: jax.Array) -> jax.Array:
        """Rows by index [n] -> [n, in] float32 (embedding lookup). Indices must be in range."""
        return self.array[index].astype(jnp.float32)


def linear(x: jax.Array, weight: DenseWeight, bias: jax.Array | None = None) -> jax.Array:
    """x [rows, in] -> [rows, out] float32; short inputs are padded to `MIN_ROWS`."""
    rows = x.shape[0]
    if rows < MIN_ROWS:
        x = jnp.pad(x, ((0, MIN_ROWS - rows), (0, 0)))
    y = weight.matmul(x)[:rows]
    return y if bias is None else y + bias
