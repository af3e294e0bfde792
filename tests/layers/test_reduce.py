"""Sums along rows: right, and a row's bits do not depend on the number of rows."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headrace.layers.norm import rms_norm
from headrace.layers.reduce import row_sum

ROWS = [1, 3, 8, 9, 33, 64]
TAILS = [(64,), (1, 256), (5, 64), (576,), (5000,)]

sums = jax.jit(row_sum)
norms = jax.jit(rms_norm)


@pytest.mark.parametrize("tail", TAILS)
def test_row_sum(tail: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(128, *tail)).astype(np.float32)
    all_rows = np.asarray(sums(x))
    np.testing.assert_allclose(all_rows, x.astype(np.float64).sum(-1), atol=2e-4)
    for rows in ROWS:
        np.testing.assert_array_equal(sums(x[:rows]), all_rows[:rows], err_msg=f"{rows} rows")


@pytest.mark.parametrize("tail", TAILS)
def test_rms_norm(tail: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(128, *tail)).astype(np.float32)
    weight = np.random.default_rng(1).normal(size=tail[-1]).astype(np.float32)
    all_rows = np.asarray(norms(x, weight, 1e-6))
    for rows in ROWS:
        np.testing.assert_array_equal(norms(x[:rows], weight, 1e-6), all_rows[:rows], err_msg=f"{rows} rows")
