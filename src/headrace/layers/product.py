"""A matrix product with what stands around it in a decoder layer: one call where a native kernel does it all."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from headrace.layers import native
from headrace.layers.fused import FusedWeight
from headrace.layers.linear import EmbeddingLeaf, WeightLeaf, linear
from headrace.layers.native import Gate, NativeWeight
from headrace.layers.norm import rms_norm
from headrace.layers.parallel import lookup, sum_over


def product(
    x: jax.Array,
    weight: WeightLeaf,
    num_rows: jax.Array,
    *,
    norm: jax.Array | None = None,
    bias: jax.Array | None = None,
    gate: Gate | None = None,
    post_norm: jax.Array | None = None,
    residual: jax.Array | None = None,
    eps: float = 0.0,
    shards: int = 1,
) -> jax.Array:
    """x [rows, in] -> norm, product, bias, gate, norm, residual, each where it is given -> [rows, out] float32.

    Args:
        num_rows: [1] int32, rows that are not padding; what padding gives has no meaning.
        norm, post_norm: weights of RMS norms over x and over the result, with `eps`.
        gate: the outputs are a gate and an up matrix's; the result is this activation of the first times the second.
        shards: devices that each have a part of the inputs, over whom products are summed; their bias is the whole's.
    """
    if isinstance(weight, NativeWeight) and (gate is None or weight.paired):
        return weight.product(
            x, num_rows, norm=norm, bias=bias, gate=gate, post_norm=post_norm, residual=residual, eps=eps
        )
    x = x if norm is None else rms_norm(x, norm, eps)
    y = _apart(x, weight, num_rows) if isinstance(weight, FusedWeight) else linear(x, weight)
    y = sum_over(y, shards)
    if bias is not None:
        y = y + bias
    if gate is not None:
        first, second = jnp.split(y, 2, axis=-1)
        y = (jax.nn.silu(first) if gate == "silu" else jax.nn.gelu(first, approximate=True)) * second
    if post_norm is not None:
        y = rms_norm(y, post_norm, eps)
    return y if residual is None else residual + y


def feed_forward(
    h: jax.Array,
    x: jax.Array,
    o: WeightLeaf,
    gate_up: WeightLeaf,
    down: WeightLeaf,
    num_rows: jax.Array,
    *,
    o_bias: jax.Array | None,
    o_post_norm: jax.Array | None,
    norm: jax.Array,
    post_norm: jax.Array | None,
    gate: Gate,
    eps: float,
    shards: int = 1,
) -> jax.Array:
    """What follows the attention h [rows, heads * head_dim] of a layer with input x [rows, hidden] -> [rows, hidden].

    The product of h with o is added to x, and to that its product with gate and up, gated, and down; with norms before
    and after. The other arguments are as in `product`.
    """
    if (
        isinstance(o, NativeWeight)
        and isinstance(gate_up, NativeWeight)
        and isinstance(down, NativeWeight)
        and gate_up.paired
    ):
        around: Any = {"o_bias": o_bias, "o_post_norm": o_post_norm, "norm": norm, "post_norm": post_norm}
        return native.feed_forward(h, x, o, gate_up, down, num_rows, gate=gate, eps=eps, **around)
    mul = partial(product, num_rows=num_rows, eps=eps)
    x = mul(h, o, bias=o_bias, post_norm=o_post_norm, residual=x, shards=shards)
    h = mul(x, gate_up, norm=norm, gate=gate)
    return mul(h, down, post_norm=post_norm, residual=x, shards=shards)


def _apart(x: jax.Array, weight: FusedWeight, num_rows: jax.Array) -> jax.Array:
    return weight.joined([product(x, part, num_rows) for part in weight.parts])


def embed(weight: EmbeddingLeaf, index: jax.Array, num_rows: jax.Array, vocab: int, shards: int) -> jax.Array:
    """Rows [n, in] float32 by index [n] of a matrix of which each device has the next `vocab` rows; see `product`."""
    return weight.rows(index, num_rows) if isinstance(weight, NativeWeight) else lookup(weight, index, vocab, shards)


def all_packed(weights: Any) -> bool:
    """Whether native kernels multiply by every matrix among weights, so that padding costs nothing."""
    leaves = jax.tree.leaves(weights, is_leaf=lambda leaf: isinstance(leaf, NativeWeight))
    return all(isinstance(leaf, NativeWeight) or leaf.ndim < 2 for leaf in leaves)
