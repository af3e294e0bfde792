"""Several weights of one input as one: their results side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from headrace.layers.linear import WeightLeaf


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FusedWeight:
    """Matrices of the same input, for parts that are not stored in the same form.

    Attributes:
        parts: weights [groups * counts[i] * size, in].
        counts: the output has, for each of the groups, so many runs of `size` columns from each part in turn.
        size: columns of a run.
    """

    parts: tuple[WeightLeaf, ...]
    counts: tuple[int, ...] = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def matmul(self, x: jax.Array) -> jax.Array:
        return self.joined([part.matmul(x) for part in self.parts])

    def joined(self, products: Sequence[jax.Array]) -> jax.Array:
        """Products of one input with each part, side by side as the output has them."""
        runs = [y.reshape(len(y), -1, count, self.size) for y, count in zip(products, self.counts, strict=True)]
        return jnp.concatenate(runs, axis=2).reshape(len(runs[0]), -1)
