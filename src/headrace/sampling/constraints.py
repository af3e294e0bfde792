"""What a request's rules add to its logits, and which tokens they allow."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headrace.sampling.limits import MAX_LOGIT_BIAS

_CHUNK = 32  # biases of each row that are added in one pass of the loop


def constrain(logits: jax.Array, constraints: jax.Array, has_mask: jax.Array, has_bias: jax.Array) -> jax.Array:
    """Adds biases to logits [rows, vocab] float32, then makes those of tokens that are not allowed −inf.

    Args:
        constraints: [rows, ceil(vocab / 32) + 2 * MAX_LOGIT_BIAS] uint32. First the words of the mask: bit i of word w
            allows id 32 w + i. Then the ids of the biases, each at most once and first those that are; what is ≥ vocab
            is padding. Then their values, bits of float32.
        has_mask: [rows] bool; the mask of another row is not looked at.
        has_bias: [rows] bool, in the same way.
    """
    words = -(-logits.shape[1] // 32)
    mask, bias = constraints[:, :words], constraints[:, words:]
    logits = jax.lax.cond(has_bias.any(), lambda: _biased(logits, bias, has_bias), lambda: logits)
    result: jax.Array = jax.lax.cond(has_mask.any(), lambda: _masked(logits, mask, has_mask), lambda: logits)
    return result


def _biased(logits: jax.Array, bias: jax.Array, on: jax.Array) -> jax.Array:
    """Logits plus biases, in a loop as long as the longest row of biases."""
    vocab = logits.shape[1]
    ids = jnp.where(on[:, None], bias[:, :MAX_LOGIT_BIAS], jnp.uint32(vocab))
    values = jax.lax.bitcast_convert_type(bias[:, MAX_LOGIT_BIAS:], jnp.float32)
    row = jnp.arange(len(ids))[:, None]

    def add_chunk(i: jax.Array, out: jax.Array) -> jax.Array:
        some = [jax.lax.dynamic_slice_in_dim(x, i * _CHUNK, _CHUNK, axis=1) for x in (ids, values)]
        return out.at[row, some[0]].add(some[1], mode="drop")

    chunks = (ids < vocab).any(0).reshape(-1, _CHUNK).any(1).sum()
    result: jax.Array = jax.lax.fori_loop(0, chunks, add_chunk, logits)
    return result


def _masked(logits: jax.Array, mask: jax.Array, on: jax.Array) -> jax.Array:
    rows, vocab = logits.shape
    bits = (mask[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    allowed = bits.reshape(rows, -1)[:, :vocab] > 0
    return jnp.where(allowed | ~on[:, None], logits, -jnp.inf)
