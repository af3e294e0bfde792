"""Memory of logits that nobody needs any more, kept for later steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp


class SpareLogits:
    """Arrays of logits by their number of rows, to be donated to a step that makes as many.

    32 rows of a vocabulary of 262,144 are 34 MB, which malloc takes from the system and gives back each time: page
    faults of 13 ms of processor time per step. There are as many arrays as results that are in use at once, two with
    overlap.
    """

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._arrays: dict[int, list[jax.Array]] = defaultdict(list)
        self._make: dict[int, jax.stages.Compiled] = {}

    def prepare(self, sizes: Iterable[int]) -> None:
        """Compiles what makes new arrays of so many rows each, so that `take` need not."""
        for rows in sizes:
            if rows not in self._make:
                form = (rows, self._vocab)
                self._make[rows] = jax.jit(partial(jnp.zeros, form, jnp.float32)).lower().compile()

    def take(self, rows: int) -> jax.Array:
        """An array [rows, vocab] float32 of any content, for the caller to donate."""
        if self._arrays[rows]:
            return self._arrays[rows].pop()
        self.prepare([rows])
        made: jax.Array = self._make[rows]()
        return made

    def put(self, logits: jax.Array) -> None:
        """Takes logits [rows, vocab] back, which the caller may not read any more."""
        self._arrays[logits.shape[0]].append(logits)
