"""The decoder: token ids in, hidden states out, keys and values through an attention kernel. Driven by a spec."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from headrace.kernels.attention import AttentionKernel, RaggedBatch
from headrace.kernels.native_attention import NativeAttention
from headrace.layers.norm import rms_norm
from headrace.layers.parallel import gather_columns
from headrace.layers.product import embed, feed_forward, product
from headrace.layers.rope import apply_rope, rope_cos_sin
from headrace.models.spec import DecoderSpec
from headrace.models.weights import DecoderWeights, LayerWeights


def decode(
    spec: DecoderSpec,
    attention: AttentionKernel,
    weights: DecoderWeights,
    pages: tuple[jax.Array, ...],
    tokens: jax.Array,
    prompt_lens: jax.Array,
    batch: RaggedBatch,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Runs all layers over the tokens of a ragged batch.

    Args:
        spec: the model's, or what one device computes of it (`device_spec`); then inside `jax.shard_map`.
        pages: the KV pages of each layer; consumed, the returned ones replace them.
        tokens: ids [tokens] int32, in range also where the batch is padded.
        prompt_lens: [tokens] int32, length of the prompt that each token follows or belongs to.
        batch: where each token belongs.

    Returns:
        Hidden states [tokens, hidden] float32 after the final norm, and the new pages. Rows of padding hold values
        without meaning.
    """
    with jax.named_scope("embed"):
        num_rows = batch.query_start[-1:]
        x = embed(weights.embedding, tokens, num_rows, spec.vocab_size, spec.vocab_shards)
        if spec.embedding_scale != 1.0:
            # The reference multiplies by the scale rounded to the weights' dtype.
            x = x * jnp.asarray(spec.embedding_scale, weights.embedding.dtype).astype(jnp.float32)
    rotations = [
        rope_cos_sin(rope, inv_freq, batch.positions, prompt_lens)
        for rope, inv_freq in zip(spec.ropes, weights.inv_freqs, strict=True)
    ]
    # Without the barrier XLA works out the sines anew inside every layer.
    rotations = jax.lax.optimization_barrier(rotations)
    # One trace per kind of layer rather than per layer: tracing is the part of a compilation that holds the GIL.
    layer = jax.jit(partial(_layer, spec, attention))
    prepared = {window: attention.prepare(batch, window) for window in {kind.window for kind in spec.layers}}
    new_pages = []
    for kind, layer_weights, layer_pages in zip(spec.layers, weights.layers, pages, strict=True):
        x, layer_pages = layer(layer_weights, layer_pages, x, num_rows, rotations[kind.rope], prepared[kind.window])
        new_pages.append(layer_pages)
    return rms_norm(x, weights.final_norm, spec.norm_eps), tuple(new_pages)


def logits(
    spec: DecoderSpec, weights: DecoderWeights, hidden: jax.Array, num_rows: jax.Array | None = None
) -> jax.Array:
    """hidden [rows, hidden] after the final norm -> logits [rows, vocab] float32.

    Args:
        num_rows: [1] int32, rows that are not padding, whose logits have no meaning; None is all.
    """
    with jax.named_scope("head"):
        if num_rows is None:
            num_rows = jnp.full(1, hidden.shape[0], jnp.int32)
        own = product(hidden, weights.embedding if weights.head is None else weights.head, num_rows)
        return gather_columns(own, spec.vocab_shards)


def _layer(
    spec: DecoderSpec,
    attention: AttentionKernel,
    w: LayerWeights,
    pages: jax.Array,
    x: jax.Array,
    num_rows: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    prepared: Any,
) -> tuple[jax.Array, jax.Array]:
    with jax.named_scope("attention"):
        qkv = product(x, w.qkv, num_rows, norm=w.attn_norm, bias=w.qkv_bias, eps=spec.norm_eps)
        h, pages = _attend(spec, attention, w, qkv, pages, rotation, prepared)
    with jax.named_scope("mlp"):
        norms: Any = {"o_post_norm": w.post_attn_norm, "norm": w.mlp_norm, "post_norm": w.post_mlp_norm}
        around: Any = {"o_bias": w.o_bias, "gate": spec.activation, "eps": spec.norm_eps, "shards": spec.shards}
        return feed_forward(h, x, w.o, w.gate_up, w.down, num_rows, **norms, **around), pages


def _attend(
    spec: DecoderSpec,
    attention: AttentionKernel,
    w: LayerWeights,
    qkv: jax.Array,
    pages: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    prepared: Any,
) -> tuple[jax.Array, jax.Array]:
    """qkv [tokens, (heads + 2 * kv_heads) * head_dim] -> [tokens, heads * head_dim] float32, and the new pages."""
    if isinstance(attention, NativeAttention):
        sizes: Any = {"kv_heads": spec.num_kv_heads, "head_dim": spec.head_dim}
        scale, eps = spec.attention_scale, spec.norm_eps
        return attention.attend_qkv(qkv, rotation, w.q_norm, w.k_norm, pages, prepared, scale=scale, eps=eps, **sizes)
    q, kv = _split_qkv(spec, w, qkv, rotation)
    h, pages = attention.attend(q, kv, pages, prepared, scale=spec.attention_scale)
    return h.reshape(h.shape[0], -1), pages


def _split_qkv(
    spec: DecoderSpec, w: LayerWeights, qkv: jax.Array, rotation: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """q [tokens, heads, head_dim] and kv [tokens, kv_heads, 2, head_dim], both float32 and rotated."""
    tokens, kv_heads, group, dim = qkv.shape[0], spec.num_kv_heads, spec.queries_per_kv, spec.head_dim
    grouped = qkv.reshape(tokens, kv_heads, group + 2, dim)
    q = grouped[:, :, :group].reshape(tokens, kv_heads * group, dim)
    k, v = grouped[:, :, group], grouped[:, :, group + 1]
    if w.q_norm is not None and w.k_norm is not None:
        q, k = rms_norm(q, w.q_norm, spec.norm_eps), rms_norm(k, w.k_norm, spec.norm_eps)
    q, k = apply_rope(q, *rotation), apply_rope(k, *rotation)
    return q, jnp.stack([k, v], axis=2)
