"""A matrix in one of GGUF's block formats, decoded where it is multiplied."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from headrace.layers.block_formats import FORMATS, BlockFormat, Planes
from headrace.layers.linear import dot
from headrace.layers.tiles import product_in_tiles


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockWeight:
    """A matrix [out, in] as the fields of its blocks.

    Attributes:
        fields: name -> [out, blocks * count]; see `BlockFormat.fields`.
        format: key of `FORMATS`.
        dtype: of the operands of products: decoded values are rounded to it.
    """

    fields: dict[str, jax.Array]
    format: str = field(metadata={"static": True})
    dtype: jnp.dtype = field(metadata={"static": True})

    @property
    def blocks_per_row(self) -> int:
        """Blocks of a row of the matrix."""
        return self.fields["quants"].shape[1] // self._format.fields["quants"][1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.fields["quants"].shape[0], self.blocks_per_row * self._format.elements

    @property
    def _format(self) -> BlockFormat:
        return FORMATS[self.format]

    def matmul(self, x: jax.Array) -> jax.Array:
        x = x.astype(self.dtype)
        planes = self._in_planes(x)
        return product_in_tiles(x, self.shape, self.fields, lambda fields: self._product(planes, fields))

    def rows(self, index: jax.Array) -> jax.Array:
        planes = self._decode(jax.tree.map(lambda f: f[index], self.fields))
        inner = [plane.reshape(len(index), -1, self._format.inner) for plane in planes]
        return jnp.stack(inner, axis=2).reshape(len(index), -1)

    def _in_planes(self, x: jax.Array) -> Planes:
        """x [rows, in] -> the columns of each plane."""
        seen = x.reshape(len(x), -1, self._format.planes, self._format.inner)
        return tuple(seen[:, :, p].reshape(len(x), -1) for p in range(self._format.planes))

    def _product(self, x: Planes, fields: dict[str, jax.Array]) -> jax.Array:
        decoded = tuple(plane.astype(self.dtype) for plane in self._decode(fields))
        # The barrier keeps the decoding a loop of its own, as fast as its format allows.
        decoded = jax.lax.optimization_barrier(decoded)
        products = [dot(part, plane, jnp.float32) for part, plane in zip(x, decoded, strict=True)]
        return sum(products[1:], products[0])

    def _decode(self, fields: dict[str, jax.Array]) -> Planes:
        known = self._format.fields
        return self._format.decode({n: f.reshape(len(f), -1, known[n][1]) for n, f in fields.items()})
