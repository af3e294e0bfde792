"""Products with a matrix that is decoded for them, a tile at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Most elements decoded at a time. What is decoded stays in the cache then, and the memory for it small: a tied head of
# 28M elements takes 9 ms per step in tiles and 37 ms as a whole on two cores.
TILE_ELEMENTS = 1 << 21


def product_in_tiles(
    x: jax.Array, shape: tuple[int, int], stored: Any, product: Callable[[Any], jax.Array]
) -> jax.Array:
    """The product of an input and a stored matrix, from products with tiles of the matrix's output rows.

    Args:
        x: [rows, in].
        shape: (out, in).
        stored: pytree of arrays whose first axis is the output rows.
        product: some rows of `stored` -> [rows, those outputs].
    """
    out, columns = shape
    count = -(-out * columns // TILE_ELEMENTS)
    if count == 1:
        return product(_once_known(x, stored))
    tile = -(-out // count)

    def product_from(start: jax.Array) -> jax.Array:
        return product(jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, start, tile), stored))

    # The last tile begins early so as to be whole; what it has in common with the one before is dropped.
    y = jax.lax.map(product_from, jnp.minimum(jnp.arange(count) * tile, out - tile))
    whole = y[:-1].swapaxes(0, 1).reshape(y.shape[1], -1)
    return jnp.concatenate([whole, y[-1, :, count * tile - out :]], axis=1)


def _once_known(x: jax.Array, stored: Any) -> Any:
    """`stored` itself, but such that what is decoded from it is not before x is known.

    What a matrix decodes to does not depend on x, so XLA:CPU would decode the matrices of all layers at the start of a
    step, far from their products: it takes the memory of all of them and three times as long. The zero here is one that
    XLA does not see through while it orders the step. LLVM, which comes later, does; `optimization_barrier` is gone
    by then. It goes into the smallest array, a scale where there is one: no element is decoded without.
    """
    arrays, tree = jax.tree.flatten(stored)
    smallest = min(range(len(arrays)), key=lambda i: arrays[i].size)
    array = arrays[smallest]
    bits = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    zero = (jax.lax.bitcast_convert_type(x[0, 0].astype(jnp.float32), jnp.uint32) >> 31) >> 1
    same = jax.lax.bitcast_convert_type(array, bits) | zero.astype(bits)
    arrays[smallest] = jax.lax.bitcast_convert_type(same, array.dtype)
    return jax.tree.unflatten(tree, arrays)
