"""Ragged paged attention on a CPU by a native kernel, which also normalises and rotates heads and writes the pages.

See `native/attention.h` for how pages are laid out and why a token's bits do not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from headrace import native
from headrace.kernels.attention import RaggedBatch

KEYS = 16  # page sizes must be multiples of it
MAX_HEAD_DIM = 1024

_COLUMNS = 32  # heads are padded to multiples of it


def why_not(dtype: jnp.dtype, platform: str, page_size: int, devices: int) -> str | None:
    """What keeps the native kernel from being used, in a few words; None if nothing does."""
    if platform != "cpu":
        return f"the native kernel is for a CPU, not a {platform}"
    if not native.available():
        return native.reason()
    if dtype not in (jnp.float32, jnp.bfloat16):
        return f"the native kernel takes float32 and bfloat16, not {dtype}"
    if page_size % KEYS:
        return f"the native kernel takes pages of 16, 32 or 64 tokens, not {page_size}"
    if devices > 1:
        return f"the native kernel is for one device, not {devices}"
    return None


@partial(jax.jit, static_argnums=0)
def _zeros(form: jax.ShapeDtypeStruct) -> jax.Array:
    """An array of zeros that takes memory only where it is written to, page by page of the system's."""
    zeros: jax.Array = jax.ffi.ffi_call("headrace_zeros", form)()
    return zeros


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Work:
    batch: RaggedBatch
    window: int | None = field(metadata={"static": True})


@dataclass(frozen=True)
class NativeAttention:
    """The kernel for CPUs. Keys and values are stored in `dtype`, float32 or bfloat16; sums are float32.

    With bfloat16, queries and weights are rounded to it as well.
    """

    dtype: jnp.dtype

    def make_pages(self, num_pages: int, page_size: int, kv_heads: int, head_dim: int) -> jax.Array:
        """The pool [pages, kv_heads, 2, page_size, head_dim rounded up], where a page's keys lie transposed.

        Page sizes are multiples of 16. The dtype is float32, or uint16 for the bits of bfloat16.
        """
        assert page_size % KEYS == 0
        assert head_dim <= MAX_HEAD_DIM
        storage = jnp.uint16 if self.dtype.itemsize == 2 else jnp.float32
        shape = num_pages, kv_heads, 2, page_size, -(-head_dim // _COLUMNS) * _COLUMNS
        pages: jax.Array = _zeros(jax.ShapeDtypeStruct(shape, storage))
        return pages

    def prepare(self, batch: RaggedBatch, window: int | None) -> _Work:
        """See `AttentionKernel.prepare`."""
        return _Work(batch, window)

    def attend(
        self, q: jax.Array, kv: jax.Array, pages: jax.Array, prepared: _Work, *, scale: float
    ) -> tuple[jax.Array, jax.Array]:
        """See `AttentionKernel.attend`."""
        tokens, kv_heads, _, dim = kv.shape
        grouped = jnp.concatenate([q.reshape(tokens, kv_heads, -1, dim), kv], axis=2)
        out, pages = self.attend_qkv(
            grouped.reshape(tokens, -1), None, None, None, pages, prepared, scale=scale, kv_heads=kv_heads, head_dim=dim
        )
        return out.reshape(q.shape), pages

    def attend_qkv(
        self,
        qkv: jax.Array,
        rotation: tuple[jax.Array, jax.Array] | None,
        q_norm: jax.Array | None,
        k_norm: jax.Array | None,
        pages: jax.Array,
        prepared: _Work,
        *,
        scale: float,
        kv_heads: int,
        head_dim: int,
        eps: float = 0.0,
        softcap: float = 0.0,
    ) -> tuple[jax.Array, jax.Array]:
        """Attention from what a layer projects: norms of heads, rotation, write and attention in one call.

        Args:
            qkv: [tokens, kv_heads * (group + 2) * head_dim] float32: for each key/value head the query heads that
                share it, its key and its value.
            rotation: cos and sin [tokens, head_dim / 2] float32; None where queries and keys are rotated already.
            q_norm: weight [head_dim] of the RMS norm over each query head, before the rotation; None for no norm.
            k_norm: the same of keys.
            pages: the layer's pool; consumed.
            prepared: result of `prepare`.
            scale: multiplies q·k.
            eps: of the norms.
            softcap: scores become softcap * tanh(score / softcap), unless it is 0.

        Returns:
            [tokens, heads * head_dim] float32, zeros on padding, and the new pool in the memory of the old one.
        """
        batch, tokens = prepared.batch, qkv.shape[0]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        cos, sin = rotation if rotation is not None else (jnp.zeros((0, 0)), jnp.zeros((0, 0)))
        nothing = jnp.zeros(0)
        call = jax.ffi.ffi_call(
            "headrace_attention",
            (
                jax.ShapeDtypeStruct((tokens, heads * head_dim), jnp.float32),
                jax.ShapeDtypeStruct(pages.shape, pages.dtype),
            ),
            input_output_aliases={5: 1},
        )
        out, pages = call(
            qkv,
            cos,
            sin,
            nothing if q_norm is None else q_norm.astype(jnp.float32),
            nothing if k_norm is None else k_norm.astype(jnp.float32),
            pages,
            batch.token_rows,
            batch.positions,
            batch.write_index,
            batch.query_start,
            batch.slots,
            batch.page_table,
            scale=np.float32(scale),
            softcap=np.float32(softcap),
            eps=np.float32(eps),
            window=np.int32(prepared.window or 0),
            page_size=np.int32(batch.page_size),
            heads=np.int32(heads),
            kv_heads=np.int32(kv_heads),
            dim=np.int32(head_dim),
        )
        return out, pages
