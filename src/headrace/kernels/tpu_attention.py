"""Ragged paged attention on a TPU: JAX's own kernel over pages that a slot-mapped write has filled before it."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

from headrace.errors import ConfigError
from headrace.kernels.attention import RaggedBatch
from headrace.kernels.slots import SlotMapping, slot_mapping
from headrace.kernels.tpu_write import write_slices

# The same in every bucket, so that a token's sums are taken in the same order.
KEY_BLOCK = 256  # keys per turn of the kernel's loop
QUERY_BLOCK = 32  # query tokens handled together, of one row or of several

_LANES = 128  # numbers in a row of a vector register; head sizes are padded to it
_SUBLANES = 8  # rows of a vector register
# The kernel keeps the page table in the 1 MiB of scalar memory; half of it is left to the compiler and other arrays.
_TABLE_BYTES = 512 * 1024


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Work:
    """A batch as the kernel takes it.

    Attributes:
        slots: where the tokens are written.
        seq_lens, query_start: of the batch.
        table: [rows, pages per sequence] int32, the pages of each row.
        num_rows: [1] int32, rows that are none of padding.
        window: keys at distance >= window are not seen; None sees all. Static.
    """

    slots: SlotMapping
    seq_lens: jax.Array
    query_start: jax.Array
    table: jax.Array
    num_rows: jax.Array
    window: int | None = field(metadata={"static": True})


@dataclass(frozen=True)
class TpuAttention:
    """The kernel for TPUs. Keys, values and queries are in `dtype`, sums in float32.

    Heads are padded to 128 numbers, and key/value heads to a count that fills the tiles of the TPU's memory.
    """

    dtype: jnp.dtype

    def make_pages(self, num_pages: int, page_size: int, kv_heads: int, head_dim: int) -> jax.Array:
        """See `AttentionKernel.make_pages`; heads and their sizes are padded.

        Raises:
            ConfigError: the kernel cannot work on pages of this size or dtype, or on heads of this size.
        """
        if self.dtype not in (jnp.float32, jnp.bfloat16):
            raise ConfigError(f"dtype: the TPU attention kernel takes float32 and bfloat16, not {self.dtype.name}")
        if KEY_BLOCK % page_size:
            raise ConfigError(f"page_size: {page_size} does not divide {KEY_BLOCK}, as the TPU attention kernel needs")
        # Keys are loaded from between values and other heads, and the compiler can skip rows only of this width. Two
        # numbers of 16 bits make a row of words: a key and its value, which need no skipping where there are no others.
        if head_dim > _LANES and (kv_heads > 1 or self.dtype == jnp.float32):
            raise ConfigError(
                f"attention: the TPU kernel takes heads wider than {_LANES} only in bfloat16 with one key/value head, "
                f"not {kv_heads} of {head_dim} in {self.dtype.name}; give jax"
            )
        shape = (num_pages, page_size, 2 * self._padded_heads(kv_heads), head_dim + -head_dim % _LANES)
        return jnp.zeros(shape, self.dtype)

    def prepare(self, batch: RaggedBatch, window: int | None) -> _Work:
        """See `AttentionKernel.prepare`.

        Raises:
            ConfigError: the page tables of the rows do not fit into the TPU's scalar memory.
        """
        table = batch.page_table.at[batch.slots].get(mode="clip")
        table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % (KEY_BLOCK // batch.page_size))))
        rows, pages = table.shape
        size = 4 * (rows + -rows % _SUBLANES) * (pages + -pages % _LANES)
        if size > _TABLE_BYTES:
            raise ConfigError(
                f"page_size: the page tables of {rows} rows, {pages} pages each, take {size} bytes, but the TPU's "
                f"scalar memory has room for {_TABLE_BYTES}; give a larger page_size, or a smaller max_num_seqs or "
                f"max_model_len"
            )
        # The kernel begins to read the first row's keys before it looks whether there is a row, and only a row's
        # computation waits for them. So a step of padding alone is told of a row with one token, which is padding too.
        return _Work(
            slots=slot_mapping(batch),
            seq_lens=batch.seq_lens.at[0].max(1),
            query_start=batch.query_start.at[1:].max(1),
            table=table,
            num_rows=jnp.maximum(batch.request_distribution[2:], 1),
            window=window,
        )

    def attend(
        self, q: jax.Array, kv: jax.Array, pages: jax.Array, prepared: _Work, *, scale: float
    ) -> tuple[jax.Array, jax.Array]:
        """See `AttentionKernel.attend`."""
        work = prepared
        tokens, heads, dim = q.shape
        kv_heads, (_, page_size, stored_heads, stored_dim) = kv.shape[1], pages.shape
        pad_heads, pad_dim = stored_heads // 2 - kv_heads, stored_dim - dim
        kv = jnp.pad(kv.astype(self.dtype), ((0, 0), (0, pad_heads), (0, 0), (0, pad_dim)))
        pages = write_slices(kv.reshape(tokens, stored_heads, stored_dim), pages, work.slots)

        sharers = heads // kv_heads
        # The kernel takes four float32 key/value heads at a time, and the compiler eight query heads or all of them.
        pad_sharers = int(self.dtype == jnp.float32 and sharers == 1 and stored_heads > 2 * 4)
        q = q.astype(self.dtype).reshape(tokens, kv_heads, sharers, dim)
        q = jnp.pad(q, ((0, 0), (0, pad_heads), (0, pad_sharers), (0, pad_dim)))
        out = ragged_paged_attention(
            q.reshape(tokens, -1, stored_dim),
            pages,
            work.seq_lens,
            work.table,
            work.query_start,
            work.num_rows,
            sm_scale=scale,
            sliding_window=work.window,
            num_kv_pages_per_block=KEY_BLOCK // page_size,
            num_queries_per_block=min(QUERY_BLOCK, tokens),
        )
        out = out.reshape(q.shape)[:, :kv_heads, :sharers, :dim]
        return out.reshape(tokens, heads, dim).astype(jnp.float32), pages

    def _padded_heads(self, kv_heads: int) -> int:
        """Keys and values of so many heads fill tiles: 1, 2, 4 or a multiple of 8 words of 32 bits."""
        packing = 4 // self.dtype.itemsize
        while (words := 2 * kv_heads // packing) not in (1, 2, 4) and words % _SUBLANES:
            kv_heads += 1
        return kv_heads
