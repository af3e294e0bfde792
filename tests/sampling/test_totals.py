"""Sums over a whole vocabulary: a row's bits do not depend on the number of rows, also where XLA fuses the sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.sampling.filters import block_sums, total
from headrace.sampling.sampler import SamplingRows, sample

ROWS = [1, 2, 3, 5, 8, 11, 12, 16, 24, 31, 32]


@pytest.mark.parametrize("vocab", [250, 49_152, 151_936, 262_144])
def test_the_total_of_a_row(vocab: int) -> None:
    x = (np.random.default_rng(0).normal(size=(48, vocab)) * 4).astype(np.float32)
    for function in (total, lambda x: total(jnp.exp(x - x.max(-1, keepdims=True))), block_sums):
        compiled = jax.jit(function)
        all_rows = np.asarray(compiled(x))
        for rows in ROWS:
            np.testing.assert_array_equal(compiled(x[:rows]), all_rows[:rows], err_msg=f"{rows} rows")


@pytest.mark.parametrize("vocab", [49_152, 151_936])
def test_the_draw_of_a_row(vocab: int) -> None:
    # So flat that each of many draws is near the border of two tokens, whose place is in the last bits of sums.
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(1, vocab)) * 0.1, jnp.float32)
    draw = jax.jit(sample)

    def tokens(rows: int, first: int) -> list[int]:
        many = jnp.ones(rows, jnp.float32)
        seeds = jnp.stack([jnp.zeros(rows, jnp.uint32), first + jnp.arange(rows, dtype=jnp.uint32)], axis=1)
        zeros = jnp.zeros(rows, jnp.int32)
        params = SamplingRows(many, zeros, many * 0.9, many * 0, seeds, zeros, zeros)
        drawn: list[int] = draw(jnp.tile(logits, (rows, 1)), params).tolist()
        return drawn

    together = tokens(32, 0)
    assert [tokens(1, i)[0] for i in range(32)] == together
    assert tokens(8, 0) + tokens(12, 8) + tokens(12, 20) == together
