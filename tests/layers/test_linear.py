"""Products with a weight: the right numbers, and a row's bits do not depend on how many rows there are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.layers.linear import DenseWeight, linear

apply = jax.jit(linear)
DTYPES = [jnp.float32, jnp.bfloat16]


def operands(dtype: jnp.dtype, inputs: int, outputs: int) -> tuple[jax.Array, DenseWeight, jax.Array]:
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=shape) for shape in ((64, inputs), (outputs, inputs), (outputs,)))
    return jnp.asarray(x, jnp.float32), DenseWeight(jnp.asarray(w, dtype)), jnp.asarray(b, jnp.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 96), (576, 192)])
def test_a_row_has_the_same_bits_for_1_to_64_rows(dtype: jnp.dtype, inputs: int, outputs: int) -> None:
    x, weight, bias = operands(dtype, inputs, outputs)
    all_rows = np.asarray(apply(x, weight, bias))
    for rows in (1, 2, 3, 4, 7, 8, 9, 16, 31, 33, 63):
        few = np.asarray(apply(x[64 - rows :], weight, bias))
        np.testing.assert_array_equal(few.view(np.int32), all_rows[64 - rows :].view(np.int32), err_msg=f"{rows} rows")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 64])
def test_products_are_those_of_the_rounded_operands(dtype: jnp.dtype, rows: int) -> None:
    x, weight, bias = operands(dtype, 64, 96)
    x = x[:rows]
    exact = np.asarray(x.astype(dtype), np.float64) @ np.asarray(weight.array, np.float64).T + np.asarray(bias)
    got = np.asarray(apply(x, weight, bias))
    assert got.dtype == np.float32
    assert got.shape == (rows, 96)
    np.testing.assert_allclose(got, exact, atol=2e-5)


def test_without_a_bias_nothing_is_added() -> None:
    x, weight, bias = operands(jnp.float32, 64, 96)
    np.testing.assert_allclose(apply(x, weight, bias) - apply(x, weight), np.tile(bias, (64, 1)), atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_weight_are_looked_up_in_float32(dtype: jnp.dtype) -> None:
    _, weight, _ = operands(dtype, 64, 96)
    index = jnp.array([0, 95, 3, 3])
    np.testing.assert_array_equal(weight.rows(index), np.asarray(weight.array, np.float32)[[0, 95, 3, 3]])
    assert weight.rows(index).dtype == jnp.float32
