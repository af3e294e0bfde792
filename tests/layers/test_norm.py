"""RMS norm against float64."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from headrace.layers.norm import rms_norm


@pytest.mark.parametrize("shape", [(1, 8), (5, 64), (3, 2, 576), (7, 1)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rms_norm(shape: tuple[int, ...], scale: float) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * scale).astype(np.float32)
    weight, eps = rng.normal(size=shape[-1]).astype(np.float32), 1e-5
    exact = x.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + eps) * weight
    got = np.asarray(jax.jit(rms_norm)(x, weight, eps))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, rtol=3e-6, atol=1e-12)


def test_a_row_of_zeros_stays_zero() -> None:
    np.testing.assert_array_equal(rms_norm(np.zeros((2, 4), np.float32), np.ones(4, np.float32), 1e-6), 0)
