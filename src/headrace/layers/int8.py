"""A matrix in 8-bit integers with a scale per output."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from headrace.layers.linear import dot
from headrace.layers.tiles import product_in_tiles

_MOST = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8Weight:
    """A matrix [out, in] as int8 `array` times float32 `scale` [out]; see `quantize_rows`.

    Products take their operands in `product_dtype`, which holds every int8 exactly; the scale multiplies the result.
    """

    array: jax.Array
    scale: jax.Array
    product_dtype: jnp.dtype = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> jnp.dtype:
        return self.scale.dtype

    def matmul(self, x: jax.Array) -> jax.Array:
        x = x.astype(self.product_dtype)

        def product(array: jax.Array) -> jax.Array:
            # The barrier keeps the conversion a loop of its own.
            return dot(x, jax.lax.optimization_barrier(array.astype(self.product_dtype)), jnp.float32)

        return product_in_tiles(x, self.shape, self.array, product) * self.scale

    def rows(self, index: jax.Array) -> jax.Array:
        return self.array[index].astype(jnp.float32) * self.scale[index, None]


def quantize_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """rows [out, in] float32 -> int8 of the same shape and scale [out] float32.

    Symmetric: the scale of a row is its largest magnitude / 127; a row of zeros has scale 0.
    """
    scale = np.abs(rows).max(axis=1) / np.float32(_MOST)
    steps = np.zeros_like(rows)
    # A damaged weight may be infinite or NaN; its row is then NaN, without NumPy's warnings.
    with np.errstate(invalid="ignore"):
        np.divide(rows, scale[:, None], out=steps, where=scale[:, None] > 0)
        array = np.rint(steps, out=steps).clip(-_MOST, _MOST).astype(np.int8)
    return array, scale
