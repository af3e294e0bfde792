"""Memory of logits that nobody needs any more, kept for later steps."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

_MOST = 2  # results that are in use at once, with overlap
_ROOM = 256 << 20  # bytes that may lie idle for other sizes than the present one


class SpareLogits:
    """Arrays of logits by their number of rows, to be donated to a step that makes as many.

    32 rows of a vocabulary of 262,144 are 34 MB, which malloc takes from the system and gives back each time: page
    faults of 13 ms of processor time per step.
    """

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._arrays: dict[int, list[jax.Array]] = {}
        self._make: dict[int, jax.stages.Compiled] = {}

    @classmethod
    def where_it_pays(cls, vocab: int, mesh: Mesh | None) -> SpareLogits | None:
        """On one CPU. Devices have memory of their own, which costs no page faults."""
        return cls(vocab) if mesh is None and jax.default_backend() == "cpu" else None

    def prepare(self, sizes: Collection[int]) -> None:
        """Compiles what makes new arrays of so many rows each, so that `take` need not, and forgets other sizes."""
        self._make = {rows: self._make.get(rows) or self._compile(rows) for rows in sizes}
        self._arrays = {rows: arrays for rows, arrays in self._arrays.items() if rows in sizes}

    def take(self, rows: int) -> jax.Array:
        """An array [rows, vocab] float32 of any content, for the caller to donate."""
        if arrays := self._arrays.get(rows):
            return arrays.pop()
        if rows not in self._make:
            self._make[rows] = self._compile(rows)
        made: jax.Array = self._make[rows]()
        return made

    def put(self, logits: jax.Array) -> None:
        """Takes logits [rows, vocab] back, which the caller may not read any more."""
        rows = logits.shape[0]
        arrays = self._arrays.setdefault(rows, [])
        if len(arrays) < _MOST:
            arrays.append(logits)
        others = sum(array.nbytes for size, each in self._arrays.items() if size != rows for array in each)
        if others > _ROOM:
            self._arrays = {rows: arrays}

    def _compile(self, rows: int) -> jax.stages.Compiled:
        return jax.jit(partial(jnp.zeros, (rows, self._vocab), jnp.float32)).lower().compile()
