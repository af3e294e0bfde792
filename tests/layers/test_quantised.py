"""X10: weight leaves that store a matrix in fewer bits: the right values, and bits that do not depend on the batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from headrace.layers.block_formats import FORMATS, split_fields
from headrace.layers.blocks import BlockWeight
from headrace.layers.fused import FusedWeight
from headrace.layers.int8 import quantize_rows
from headrace.layers.linear import linear
from headrace.layers.tiles import TILE_ELEMENTS, product_in_tiles
from layers.weight_leaves import KINDS, block_weight, int8_weight, leaf
from weights.gguf_files import stored_rows

apply = jax.jit(linear)
look_up = jax.jit(lambda weight, index: weight.rows(index))


@pytest.mark.parametrize("name", FORMATS)
def test_x10_decoded_blocks_have_the_bits_of_the_package(name: str) -> None:
    stored = stored_rows(name, 67, 768, seed=1)
    fields = {field: jnp.asarray(rows) for field, rows in split_fields(name, stored).items()}
    weight = BlockWeight(fields, name, jnp.dtype(jnp.float32))
    assert weight.shape == (67, 768)
    assert sum(rows.nbytes for rows in fields.values()) == stored.nbytes
    expected = dequantize(stored, GGMLQuantizationType[name])
    for index in (np.arange(67), np.array([66, 0, 3, 3])):
        got = np.asarray(look_up(weight, index))
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected[index])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMATS)
def test_x10_products_with_blocks_are_those_with_their_values(name: str, dtype: str) -> None:
    weight, values = block_weight(name, 96, 512, dtype)
    x = np.random.default_rng(0).normal(size=(9, 512)).astype(np.float32)
    rounded = [np.asarray(jnp.asarray(a, dtype), np.float64) for a in (x, values)]
    got = apply(jnp.asarray(x), weight)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, rounded[0] @ rounded[1].T, atol=1e-4, rtol=1e-5)


def test_x10_int8_has_a_scale_per_output() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 100)).astype(np.float32) * np.logspace(-9, 9, 40)[:, None]
    rows = rows.astype(np.float32)
    rows[7] = 0
    array, scale = quantize_rows(rows)
    assert (array.dtype, scale.dtype) == (np.int8, np.float32)
    np.testing.assert_allclose(scale, np.abs(rows).max(1) / 127, rtol=1e-6)
    error = np.abs(array * scale[:, None].astype(np.float64) - rows)
    assert (error <= 0.5001 * scale[:, None]).all()
    assert (np.abs(array).max(1)[np.arange(40) != 7] == 127).all()
    assert (array[7] == 0).all()
    tiny, endless, none = np.float32(1e-44), np.float32(np.inf), np.float32(np.nan)
    array, scale = quantize_rows(np.array([[tiny, -tiny], [1, endless], [none, 1]], np.float32))
    assert (np.abs(array[0]) * scale[0] <= 2 * tiny).all()
    assert not np.isfinite(scale[1:]).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 8, 33])
def test_x10_int8_products_are_those_of_the_formula(dtype: str, rows: int) -> None:
    weight, values = int8_weight(96, 320, dtype)
    x = np.random.default_rng(1).normal(size=(rows, 320)).astype(np.float32)
    rounded = np.asarray(jnp.asarray(x, dtype), np.float64)
    np.testing.assert_allclose(apply(jnp.asarray(x), weight), rounded @ values.T.astype(np.float64), atol=2e-4)
    index = np.array([95, 0, 4, 4])
    np.testing.assert_allclose(look_up(weight, index), values[index], rtol=1e-6)


def test_x10_parts_of_any_form_stand_side_by_side() -> None:
    """Three groups of: two runs of 32 columns from the first part, one from the second."""
    (first, a), (second, b) = block_weight("Q4_1", 192, 256), int8_weight(96, 256)
    weight = FusedWeight((first, second), (2, 1), 32)
    assert weight.shape == (288, 256)
    whole = np.concatenate([a.reshape(3, 2, 32, 256), b.reshape(3, 1, 32, 256)], axis=1).reshape(288, 256)
    x = np.random.default_rng(0).normal(size=(8, 256)).astype(np.float32)
    np.testing.assert_allclose(apply(jnp.asarray(x), weight), x @ whole.T, atol=1e-3)


@pytest.mark.parametrize("out", [4096, 4097, 8191, 8193, 12289])
def test_x10_tiles_give_every_output_once(out: int) -> None:
    columns = TILE_ELEMENTS // 4096
    matrix = jnp.arange(out, dtype=jnp.float32)[:, None] * jnp.ones((1, columns))
    seen = []

    def product(rows: jax.Array) -> jax.Array:
        seen.append(rows.shape[0])
        return jnp.stack([rows[:, 0], 2 * rows[:, 1]])

    got = product_in_tiles(jnp.ones((2, columns)), (out, columns), matrix, product)
    np.testing.assert_array_equal(got, [np.arange(out), 2 * np.arange(out)])
    assert max(seen) <= 4096


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, "bfloat16") for kind in KINDS), *((kind, "float32") for kind in ("int8", "Q4_1", "Q6_K", "fused"))],
)
def test_x10_a_row_has_the_same_bits_among_1_to_512(kind: str, dtype: str) -> None:
    weight = leaf(kind, 96, 768, dtype)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 768)).astype(np.float32)
    x[100:110] *= 1e4  # company of another size
    everything = np.asarray(apply(jnp.asarray(x), weight)).view(np.int32)
    for rows in (1, 7, 9, 64):
        few = np.asarray(apply(jnp.asarray(x[512 - rows :]), weight)).view(np.int32)
        np.testing.assert_array_equal(few, everything[512 - rows :], err_msg=f"{rows} rows")
    padded = np.zeros((128, 768), np.float32)
    padded[5:8] = x[7:10]
    np.testing.assert_array_equal(np.asarray(apply(jnp.asarray(padded), weight)).view(np.int32)[5:8], everything[7:10])


@pytest.mark.parametrize("kind", ["int8", "Q8_0", "Q4_K"])
def test_x10_tiled_products_have_the_same_bits_among_1_to_64_rows(kind: str) -> None:
    weight = leaf(kind, TILE_ELEMENTS // 256 + 96, 256, "bfloat16")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 256)), jnp.float32)
    everything = np.asarray(apply(x, weight)).view(np.int32)
    for rows in (1, 8, 33):
        few = np.asarray(apply(x[64 - rows :], weight)).view(np.int32)
        np.testing.assert_array_equal(few, everything[64 - rows :], err_msg=f"{rows} rows")


@pytest.mark.parametrize("kind", ["int8", "Q4_1", "Q3_K", "Q6_K", "fused"])
def test_x10_one_matrix_is_decoded_at_a_time(kind: str) -> None:
    """Decoded ahead of their products, the matrices of a chain would all be in memory at once."""
    weights = [leaf(kind, 768, 768, "bfloat16") for _ in range(8)]

    def chain(weights: list[Any], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(linear(x, weight))
        return x

    compiled = jax.jit(chain).lower(weights, jnp.ones((8, 768))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * (768 * 768 * 2)
