"""Ragged paged attention on a GPU: one Pallas kernel, through Triton, for decodes and chunks of prompts alike.

The tokens of each row are cut into blocks, and one program works on a block's queries of one key/value head. It walks
over its keys in tiles counted from key 0 with a running maximum and sum (Milakov and Gimelshein, arXiv:1805.02867), and
finds them through the page table. Programs and tiles have one size whatever the batch, a decode being a block with one
token, and a tile that a query cannot see changes nothing, so a token's bits do not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from headrace.kernels.attention import RaggedBatch
from headrace.kernels.blocks import QueryBlocks, most_blocks, query_blocks

QUERY_BLOCK = 16  # most query tokens of one row handled together
HEADS = 4  # most query heads of one key/value head handled together

_MIN_WIDTH = 16  # the least that a product on a GPU takes on each side
_MASKED = -1e30  # finite, so that a tile without visible keys gives exp(0), not NaN


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Work:
    """A batch cut into blocks.

    Attributes:
        blocks: the tokens of each block.
        bounds: [blocks, 4] int32: line of the page table, position of the first query, queries, first key to look at.
        window: [1] int32; a distance that no two tokens have where the layer sees all.
        write_index, page_table: of the batch.
    """

    blocks: QueryBlocks
    bounds: jax.Array
    window: jax.Array
    write_index: jax.Array
    page_table: jax.Array


@dataclass(frozen=True)
class GpuAttention:
    """The kernel for GPUs. Keys, values and queries are in `dtype`, sums in float32."""

    dtype: jnp.dtype

    def make_pages(self, num_pages: int, page_size: int, kv_heads: int, head_dim: int) -> jax.Array:
        """See `AttentionKernel.make_pages`."""
        return jnp.zeros((num_pages, page_size, 2 * kv_heads, head_dim), self.dtype)

    def prepare(self, batch: RaggedBatch, window: int | None) -> _Work:
        """See `AttentionKernel.prepare`."""
        blocks = query_blocks(batch, QUERY_BLOCK, most_blocks(batch, QUERY_BLOCK))
        reach = np.iinfo(np.int32).max if window is None else window
        first = blocks.positions[:, 0]
        count = (blocks.positions >= 0).sum(-1, dtype=jnp.int32)
        first_key = jnp.maximum(first - (reach - 1), 0)
        return _Work(
            blocks=blocks,
            bounds=jnp.stack([blocks.slots, first, count, first_key], axis=1),
            window=jnp.full(1, reach, jnp.int32),
            write_index=batch.write_index,
            page_table=batch.page_table,
        )

    def attend(
        self, q: jax.Array, kv: jax.Array, pages: jax.Array, prepared: _Work, *, scale: float
    ) -> tuple[jax.Array, jax.Array]:
        """See `AttentionKernel.attend`."""
        work = prepared
        tokens, heads, dim = q.shape
        kv_heads = kv.shape[1]
        flat = pages.reshape(-1, 2 * kv_heads, dim)
        rows = kv.astype(self.dtype).reshape(tokens, 2 * kv_heads, dim)
        flat = flat.at[work.write_index].set(rows, mode="drop", unique_indices=True)

        # A program takes so many of the query heads that share a key/value head; the last of each may lack some.
        sharers = heads // kv_heads
        taken = min(sharers, HEADS)
        q = q.astype(self.dtype).reshape(tokens, kv_heads, sharers, dim)
        q = jnp.pad(q, ((0, 0), (0, 0), (0, -sharers % taken), (0, 0)))
        q = q.at[work.blocks.tokens].get(mode="clip")  # [blocks, block, kv_heads, sharers, dim]
        blocks, size = q.shape[:2]
        q = jnp.moveaxis(q.reshape(blocks, size, -1, taken, dim), 2, 1)
        queries, width = (max(pl.next_power_of_2(n), _MIN_WIDTH) for n in (size * taken, dim))
        q = q.reshape(blocks, -1, size * taken, dim)
        q = jnp.pad(q, ((0, 0), (0, 0), (0, queries - size * taken), (0, width - dim)))
        out = self._call(q, flat, work, taken, pages.shape[1], scale)
        out = jnp.moveaxis(out[:, :, : size * taken, :dim].reshape(blocks, -1, size, taken, dim), 2, 1)
        out = out.reshape(blocks * size, kv_heads, -1, dim)[:, :, :sharers].reshape(blocks * size, heads, dim)
        return out.at[work.blocks.places].get(mode="clip"), flat.reshape(pages.shape)

    def _call(self, q: jax.Array, flat: jax.Array, work: _Work, taken: int, page_size: int, scale: float) -> jax.Array:
        """q [blocks, programs of all heads, queries, width] -> the same in float32."""
        blocks, programs, queries, width = q.shape
        one_block = pl.BlockSpec((None, None, queries, width), lambda block, head: (block, head, 0, 0))
        tables = (work.bounds, work.window, work.page_table, flat)
        # Keys per tile and warps per program, such that nothing spills out of the registers (compiled for an H100).
        tile, warps = (16, 8) if self.dtype.itemsize > 2 else (32 if width > 128 else 64, 4)
        kernel = partial(_one_block, taken=taken, page_size=page_size, tile=tile, scale=scale)
        out: jax.Array = pl.pallas_call(
            kernel,
            grid=(blocks, programs),
            in_specs=[*(pl.BlockSpec(x.shape, lambda *_, n=x.ndim: (0,) * n) for x in tables), one_block],
            out_specs=one_block,
            out_shape=jax.ShapeDtypeStruct(q.shape, jnp.float32),
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=2),
            name="ragged_paged_attention",
        )(*tables, q)
        return out


def _one_block(
    bounds: Any, window: Any, table: Any, pool: Any, q: Any, out: Any, *, taken: int, page_size: int, tile: int,
    scale: float,
) -> None:  # fmt: skip
    block = pl.program_id(0)
    head = pl.program_id(1) // (pl.num_programs(1) // (pool.shape[1] // 2))  # of keys and values
    slot, first, count, first_key = (bounds[block, i] for i in range(4))
    last, reach = first + count - 1, window[0]
    query = q[...]
    queries, width = query.shape
    position = first + jax.lax.broadcasted_iota(jnp.int32, (queries, 1), 0) // taken
    dim = jax.lax.broadcasted_iota(jnp.int32, (1, width), 1)

    def one_tile(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        peak, total, acc = carry
        key = i * tile + jnp.arange(tile)
        there = key <= last
        page = plgpu.load(table.at[jnp.full(tile, slot), key // page_size], mask=there, other=0)
        place = (page * page_size + key % page_size)[:, None]
        # A page not yet written may hold NaN, and 0 * NaN is NaN: what lies beyond the keys is not read.
        mask = there[:, None] & (dim < pool.shape[-1])
        keys, values = (
            plgpu.load(pool.at[place, jnp.full((1, 1), 2 * head + part), dim], mask=mask, other=0) for part in (0, 1)
        )
        scores = plgpu.dot(query, keys, trans_b=True, allow_tf32=False) * scale
        distance = position - key[None]
        visible = (distance >= 0) & (distance < reach) & there[None]
        scores = jnp.where(visible, scores, _MASKED)
        new_peak = jnp.maximum(peak, scores.max(-1))
        weights = jnp.where(visible, jnp.exp(scores - new_peak[:, None]), 0.0)
        decay = jnp.exp(peak - new_peak)
        update = plgpu.dot(weights.astype(values.dtype), values, allow_tf32=False)
        return new_peak, total * decay + weights.sum(-1), acc * decay[:, None] + update

    start = (jnp.full(queries, _MASKED), jnp.zeros(queries), jnp.zeros((queries, width)))
    _, total, acc = jax.lax.fori_loop(first_key // tile, last // tile + 1, one_tile, start)
    out[...] = acc / jnp.where(total > 0, total, 1.0)[:, None]
