"""The attention seam: what the models ask of a kernel, and the kernel chosen for a platform."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from headrace.errors import ConfigError

AttentionChoice = Literal["auto", "jax", "pallas", "native"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RaggedBatch:
    """Where the tokens of a batch belong; shared by all layers of a step.

    Rows are requests: first those with one token in this step, then those with more, longest context first in both. A
    token's row, position and place in the cache say everything: nothing depends on the size of the buckets.

    Kernels that write inside the call (layout v3) go by `write_index`, those that write before it (v2) by `slots.py`.

    Attributes:
        positions: [tokens] int32, position of each token in its sequence.
        token_rows: [tokens] int32, row of each token; rows or more for padding.
        write_index: [tokens] int32, place in the pool (page * page_size + offset) that takes the token's key and
            value; distinct, and out of range for padding, whose write is dropped.
        query_start: [rows + 1] int32, first token of each row; padded rows repeat the total.
        seq_lens: [rows] int32, tokens of the row in the cache once this step has written its own; 0 for padding.
        slots: [rows] int32, the row's line in `page_table`; out of range for padding.
        page_table: [slots, pages per sequence] int32; lines hold stale entries past their sequence's pages.
        request_distribution: [3] int32: rows with one token, those and the rows with more, all rows but padding.
        page_size: tokens per page; static.
    """

    positions: jax.Array
    token_rows: jax.Array
    write_index: jax.Array
    query_start: jax.Array
    seq_lens: jax.Array
    slots: jax.Array
    page_table: jax.Array
    request_distribution: jax.Array
    page_size: int = field(metadata={"static": True})


class AttentionKernel(Protocol):
    """Writes a step's keys and values into the pages and attends over them, in one call per layer."""

    def make_pages(self, num_pages: int, page_size: int, kv_heads: int, head_dim: int) -> jax.Array:
        """The empty pool of one layer, [pages, page_size, 2 * kv_heads, head_dim], in the kernel's storage dtype.

        The heads alternate key, value, key, value. A kernel may ask for more heads, or wider ones, than the model has,
        and may order what is in a page in its own way; the first axis is always the pages.
        """
        ...

    def prepare(self, batch: RaggedBatch, window: int | None) -> Any:
        """What `attend` needs of the batch in layers with this window, worked out once per step.

        Args:
            window: keys at distance >= window are not seen; None sees all.
        """
        ...

    def attend(
        self, q: jax.Array, kv: jax.Array, pages: jax.Array, prepared: Any, *, scale: float
    ) -> tuple[jax.Array, jax.Array]:
        """Causal attention of each token over its own sequence.

        What one token gets is bitwise the same however the batch is put together.

        Args:
            q: [tokens, heads, head_dim] float32, rotated.
            kv: [tokens, kv_heads, 2, head_dim] float32, keys rotated.
            pages: the layer's pool; consumed.
            prepared: result of `prepare`.
            scale: multiplies q·k.

        Returns:
            [tokens, heads, head_dim] float32, without meaning on padding, and the new pool.
        """
        ...


def attention_for(
    dtype: jnp.dtype, platform: str, choice: AttentionChoice = "auto", *, page_size: int = 16, devices: int = 1
) -> AttentionKernel:
    """The kernel for an element type of keys and values.

    Args:
        platform: "cpu", "gpu" or "tpu", as `jax.default_backend` has it.
        choice: "jax" is plain JAX, which runs everywhere; "pallas" the platform's own kernel; "native" the compiled one
            for a CPU; "auto" what the platform has of the two, else plain JAX.
        page_size: tokens per page; the native kernel takes multiples of 16.
        devices: over how many devices a step is divided; the native kernel is for one.

    Raises:
        ConfigError: "pallas" or "native" where there is no such kernel.
    """
    dtype = jnp.dtype(dtype)
    if choice == "native" or (choice == "auto" and platform == "cpu"):
        from headrace.kernels.native_attention import NativeAttention, why_not

        reason = why_not(dtype, platform, page_size, devices)
        if reason is None:
            return NativeAttention(dtype)
        if choice == "native":
            raise ConfigError(f"attention: {reason}; give auto or jax")
    if choice != "jax" and platform == "tpu":
        from headrace.kernels.tpu_attention import TpuAttention

        return TpuAttention(dtype)
    if choice != "jax" and platform == "gpu":
        from headrace.kernels.gpu_attention import GpuAttention

        return GpuAttention(dtype)
    if choice == "pallas":
        raise ConfigError(f"attention: there is no Pallas kernel for {platform}; give auto or jax")
    from headrace.kernels.jax_attention import JaxAttention

    return JaxAttention(dtype)


def page_bytes(kernel: AttentionKernel, page_size: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of one page of one layer as the kernel stores it."""
    page = jax.eval_shape(lambda: kernel.make_pages(1, page_size, kv_heads, head_dim))
    size: int = math.prod(page.shape) * page.dtype.itemsize
    return size
