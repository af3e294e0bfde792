"""Matrices packed for the native kernels: the file's values times activations rounded to 8 bits, in any company."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGMLQuantizationType

import golden
from headrace import native
from headrace.layers.int8 import Int8Weight, quantize_rows
from headrace.layers.native import FORMAT_IDS, PANEL, NativeWeight, pack_int8, pack_rows, panel_bytes
from headrace.layers.product import feed_forward, product
from headrace.weights.load import load_weights, open_checkpoint
from models import block_models
from weights.gguf_files import small_blocks

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernels are absent")

BFLOAT16 = jnp.dtype(jnp.bfloat16)
BLOCKS = [name for name in FORMAT_IDS if name.startswith("Q")]
LONG = ("Q4_K", "Q5_K", "Q6_K")  # blocks of 256 elements


def rounded(x: np.ndarray) -> np.ndarray:
    """What the kernels take x [rows, columns] float32 for: 8 bits, and for each 16 the finest step that is the row's
    largest / 127, halved at most 12 times; in float64."""
    most = np.abs(x).max(-1)[:, None, None]
    groups = x.reshape(len(x), -1, 16)
    largest = np.abs(groups).max(-1, keepdims=True)
    halved = np.minimum(np.floor(np.log2(most.astype(np.float64) / np.maximum(largest, 1e-37))), 12)
    steps = np.rint(groups * (np.float32(127) / most * np.exp2(halved).astype(np.float32))).astype(np.float64)
    return (steps * (most.astype(np.float64) / 127 / np.exp2(halved))).reshape(x.shape)


def packed(form: str, outputs: int, columns: int, rng: np.random.Generator) -> tuple[NativeWeight, np.ndarray]:
    """A random matrix in a format, and its values in float64."""
    array: Any = np.zeros(-(-outputs // PANEL) * panel_bytes(form, columns), np.uint8)
    if form == "int8":
        values, scales = quantize_rows(rng.normal(size=(outputs, columns)).astype(np.float32))
        pack_int8(values, scales, array)
        matrix = values * scales[:, None].astype(np.float64)
    elif form in BLOCKS:
        rows = small_blocks(form, outputs, columns).reshape(outputs, -1)
        rows = rows[rng.permutation(outputs)]
        pack_rows(form, rows, columns, array)
        matrix = quants.dequantize(rows, GGMLQuantizationType[form]).astype(np.float64).reshape(outputs, columns)
    else:
        plain = np.asarray(jnp.asarray(rng.normal(size=(outputs, columns)), form))
        pack_rows(form, plain, columns, array)
        matrix = plain.astype(np.float64)
        array = array.view(plain.dtype)
    runs = 0, -(-outputs // PANEL), FORMAT_IDS[form]
    return NativeWeight(jnp.asarray(array), runs, (outputs, columns), BFLOAT16), matrix


def check(form: str, outputs: int, columns: int, rows: int, rng: np.random.Generator) -> None:
    weight, matrix = packed(form, outputs, columns, rng)
    x = (rng.normal(size=(rows, columns)) * rng.choice([1e-3, 1, 30], (rows, 1))).astype(np.float32)
    if form not in ("bfloat16", "float32"):  # of very different sizes within a row
        x *= np.exp2(rng.integers(-16, 1, (rows, columns // 16))).repeat(16, 1).astype(np.float32)
    operand = x.astype(np.float64) if form in ("bfloat16", "float32") else rounded(x)
    got = np.asarray(weight.matmul(jnp.asarray(x)))
    # Float32 sums: an error of 2^-24 of each partial sum.
    limit = 1e-6 * (np.abs(operand) @ np.abs(matrix).T) * max(1, columns / 64) + 1e-30
    assert (np.abs(got - operand @ matrix.T) <= limit).all(), (form, outputs, columns, rows)
    index = rng.integers(0, outputs, 5).astype(np.int32)
    np.testing.assert_array_equal(np.asarray(weight.rows(jnp.asarray(index))), matrix[index].astype(np.float32))


def random_shapes(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(count):
        form = list(FORMAT_IDS)[i % len(FORMAT_IDS)]
        columns = int(rng.integers(1, 40)) if form in ("bfloat16", "float32") else int(rng.integers(1, 9)) * 32
        columns = columns * 8 if form in LONG else columns
        check(form, int(rng.integers(1, 70)), columns, int(rng.integers(1, 40)), rng)


def test_products_of_random_shapes_in_every_format() -> None:
    random_shapes(55, 0)


@pytest.mark.soak
def test_products_of_a_thousand_random_shapes() -> None:
    random_shapes(1001, 1)


@pytest.mark.parametrize("form", ["Q4_1", "Q6_K", "int8", "bfloat16"])
def test_a_row_has_the_same_bits_in_any_company_and_a_nan_stays_in_its_own(form: str) -> None:
    rng = np.random.default_rng(2)
    weight, _ = packed(form, 50, 256, rng)
    x = rng.normal(size=(33, 256)).astype(np.float32)
    whole = np.asarray(weight.matmul(jnp.asarray(x)))
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 17):
        np.testing.assert_array_equal(np.asarray(weight.matmul(jnp.asarray(x[:rows]))), whole[:rows])
    x[3, 17], x[8, 255], x[20, 0] = np.nan, np.inf, -np.inf
    got = np.asarray(weight.matmul(jnp.asarray(x)))
    touched = [3, 8, 20]
    assert not np.isfinite(got[touched]).any()
    np.testing.assert_array_equal(np.delete(got, touched, 0), np.delete(whole, touched, 0))


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
def test_what_stands_around_a_product(gate: Any) -> None:
    rng = np.random.default_rng(3)
    hidden, mlp, rows = 64, 96, 11
    pair, both = packed("bfloat16", 2 * mlp, hidden, rng)
    pair = NativeWeight(pair.array, pair.runs, pair.shape, BFLOAT16, paired=True)
    down, matrix = packed("bfloat16", hidden, mlp, rng)
    norm, last = rng.normal(1, 0.1, (2, hidden)).astype(np.float32)
    x, bias = rng.normal(0, 0.1, (rows, hidden)).astype(np.float32), rng.normal(size=hidden).astype(np.float32)
    present = jnp.full(1, rows, jnp.int32)

    def rms(v: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-5) * weight

    first, second = np.split(rms(x.astype(np.float64), norm) @ both.T, 2, axis=1)
    inner = first if gate == "silu" else np.sqrt(8 / np.pi) * (first + 0.044715 * first**3)
    h = first / (1 + np.exp(np.minimum(-inner, 700))) * second
    got = product(jnp.asarray(x), pair, present, norm=jnp.asarray(norm), gate=gate, eps=1e-5)
    np.testing.assert_allclose(np.asarray(got), h, rtol=2e-5, atol=2e-5)
    expected = x + rms(h @ matrix.T + bias, last)
    around: Any = {"bias": bias, "post_norm": last, "residual": x}
    got = product(got, down, present, eps=1e-5, **{name: jnp.asarray(array) for name, array in around.items()})
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-4)
    few = product(jnp.asarray(x), down_of_x(down), jnp.full(1, 4, jnp.int32))
    np.testing.assert_array_equal(np.asarray(few)[:4], np.asarray(down_of_x(down).matmul(jnp.asarray(x)))[:4])


@pytest.mark.parametrize("form", ["Q4_1", "bfloat16"])
def test_the_feed_forward_in_one_call_has_the_bits_of_three_products(form: str) -> None:
    rng = np.random.default_rng(5)
    wide, hidden, inner = 96, 64, 160
    tiles = 96 * len(os.sched_getaffinity(0))  # from so many rows on each thread has tiles of its own
    most = 2 * tiles + 17
    (o, _), (pair, _), (down, _) = (
        packed(form, *shape, rng) for shape in ((hidden, wide), (2 * inner, hidden), (hidden, inner))
    )
    pair = NativeWeight(pair.array, pair.runs, pair.shape, BFLOAT16, paired=True)
    h, x = (jnp.asarray(rng.normal(size=(most, width)), jnp.float32) for width in (wide, hidden))
    bias, *norms = (jnp.asarray(rng.normal(1, 0.1, hidden), jnp.float32) for _ in range(4))

    @partial(jax.jit, static_argnums=1)
    def whole(rows: jax.Array, full: bool) -> jax.Array:
        around: Any = dict(
            zip(("o_post_norm", "norm", "post_norm"), norms if full else (None, norms[1], None), strict=True)
        )
        around["o_bias"] = bias if full else None
        return feed_forward(h, x, o, pair, down, rows, gate="silu", eps=1e-5, **around)

    @partial(jax.jit, static_argnums=1)
    def apart(rows: jax.Array, full: bool) -> jax.Array:
        mul = partial(product, num_rows=rows, eps=1e-5)
        middle = mul(h, o, bias=bias if full else None, post_norm=norms[0] if full else None, residual=x)
        inside = mul(middle, pair, norm=norms[1], gate="silu")
        return mul(inside, down, post_norm=norms[2] if full else None, residual=middle)

    for count in (1, 7, 8, 9, tiles - 1, tiles, tiles + 1, tiles + 8, most - 1, most):
        rows = jnp.full(1, count, jnp.int32)
        for full in (False, True):
            np.testing.assert_array_equal(np.asarray(whole(rows, full))[:count], np.asarray(apart(rows, full))[:count])


def down_of_x(weight: NativeWeight) -> NativeWeight:
    """The first panels' columns seen as a matrix of 64 columns: any matrix will do."""
    return NativeWeight(weight.array[: 64 * PANEL], (0, 1, FORMAT_IDS["bfloat16"]), (PANEL, 64), BFLOAT16)


def test_runs_that_do_not_fit_are_an_error() -> None:
    weight, _ = packed("Q8_0", 32, 64, np.random.default_rng(4))
    x = jnp.ones((2, 64))
    for runs in ((0, 3, 4), (32, 2, 4), (-1, 2, 4), (0, 2, 99), (0, 1, 4, 34, 1, 10)):
        with pytest.raises(jax.errors.JaxRuntimeError, match="the runs of a packed matrix do not fit its data"):
            NativeWeight(weight.array, runs, weight.shape, BFLOAT16).matmul(x).block_until_ready()


def in_plain_numbers(leaf: Any) -> np.ndarray:
    """The matrix of a leaf of plain JAX, by its product with every unit vector."""
    return np.asarray(leaf.matmul(jnp.eye(leaf.shape[1], dtype=jnp.float32))).T.astype(np.float64)


def test_a_model_of_mixed_formats(tmp_path: Path) -> None:
    opened = open_checkpoint(block_models.write(tmp_path / "blocks"))
    plain = load_weights(opened, jnp.dtype(jnp.float32), "gguf")
    ours = load_weights(opened, BFLOAT16, "gguf", native=True)
    rng = np.random.default_rng(5)
    for i, layer in enumerate(ours.layers):
        for name in ("qkv", "o", "gate_up", "down"):
            leaf, matrix = getattr(layer, name), in_plain_numbers(getattr(plain.layers[i], name))
            x = rng.normal(size=(9, matrix.shape[1])).astype(np.float32)
            got = np.asarray(leaf.matmul(jnp.asarray(x)))
            # Some parts are dense and take x as it is.
            near, exact = rounded(x) @ matrix.T, x.astype(np.float64) @ matrix.T
            error = np.minimum(np.abs(got - near), np.abs(got - exact)).max()
            # F16 of the file is bfloat16 in memory.
            limit = 4e-3 if (i, name) == (1, "gate_up") else 1e-4
            assert error < limit * np.abs(exact).max(), (i, name)
    index = jnp.arange(opened.spec.vocab_size)
    np.testing.assert_array_equal(np.asarray(ours.embedding.rows(index)), np.asarray(plain.embedding.rows(index)))
    assert isinstance(ours.layers[0].qkv, NativeWeight)  # Q4_K and Q6_K side by side
    assert ours.layers[0].gate_up.paired


def test_float32_keeps_quantised_matrices_in_plain_jax_and_odd_int8_widths_too() -> None:
    opened = open_checkpoint(golden.ROOT / "llama3")
    exact = load_weights(opened, jnp.dtype(jnp.float32), "int8", native=True)
    assert isinstance(exact.layers[0].o, Int8Weight)
    near = load_weights(opened, BFLOAT16, "int8", native=True)
    assert isinstance(near.layers[0].o, NativeWeight)
