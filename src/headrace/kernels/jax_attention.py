"""Ragged paged attention in plain JAX.

The query tokens of each row are cut into blocks, and blocks are worked on in groups. A group walks over its keys in
tiles counted from key 0 with a running maximum and sum (Milakov and Gimelshein, arXiv:1805.02867). All groups share one
loop, whose trip count is the number of (group, tile) pairs present. A tile that a query cannot see changes nothing, bit
for bit, and products have at least `MIN_ROWS` rows, from where on a row's bits do not depend on the others: neither
chunking nor the neighbours show in a token's result.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from headrace.kernels.attention import RaggedBatch
from headrace.kernels.blocks import QueryBlocks, most_blocks, query_blocks
from headrace.layers.linear import MIN_ROWS
from headrace.layers.reduce import row_sum

KEY_TILE = 64  # keys per tile; page sizes must divide it
QUERY_BLOCK = 8  # query tokens of one row handled together, except where a batch has one per row
GROUP = 8  # most blocks handled together

# The bits of weights times values depend on the number of queries unless a value is a multiple of this wide.
VALUE_WIDTH = 64

_MASKED = -1e30  # finite, so that a tile without visible keys gives exp(0), not NaN


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Work:
    """The blocks and groups of a batch.

    Attributes:
        blocks: the tokens of each block.
        tile_ends: [groups] int32, running total of the groups' tiles: the steps of the loop that belong to a group.
        tile_offsets: [groups] int32, what to add to a step of the loop to get the tile.
        window: int32 scalar; a distance that no two tokens have where the layer sees all.
        write_index, page_table: of the batch.
    """

    blocks: QueryBlocks
    tile_ends: jax.Array
    tile_offsets: jax.Array
    window: jax.Array
    write_index: jax.Array
    page_table: jax.Array


@dataclass(frozen=True)
class JaxAttention:
    """The kernel for any platform. Keys and values are stored in `dtype`; all arithmetic is float32."""

    dtype: jnp.dtype

    @property
    def _storage(self) -> jnp.dtype:
        # XLA:CPU widens a 16-bit float scatter to float32 and converts the whole pool back and forth in every layer;
        # an integer of the same width is scattered in place.
        return jnp.dtype(jnp.uint16) if self.dtype.itemsize == 2 else self.dtype

    def make_pages(self, num_pages: int, page_size: int, kv_heads: int, head_dim: int) -> jax.Array:
        """See `AttentionKernel.make_pages`."""
        return jnp.zeros((num_pages, page_size, 2 * kv_heads, head_dim), self._storage)

    def prepare(self, batch: RaggedBatch, window: int | None) -> _Work:
        """See `AttentionKernel.prepare`."""
        tokens, rows = batch.positions.shape[0], batch.seq_lens.shape[0]
        size = QUERY_BLOCK if tokens > rows else 1
        count = most_blocks(batch, size)
        group = min(GROUP, count)
        blocks = query_blocks(batch, size, count + -count % group)
        positions = blocks.positions

        reach = positions.max(-1).reshape(-1, group)
        if window is None:
            window, first_tiles = np.iinfo(np.int32).max, jnp.zeros(reach.shape[0], jnp.int32)
        else:
            nearest = jnp.where(reach < 0, np.iinfo(np.int32).max, positions[:, 0].reshape(-1, group)).min(-1)
            first_tiles = jnp.maximum(nearest - (window - 1), 0) // KEY_TILE
        tiles = jnp.maximum(reach.max(-1) // KEY_TILE + 1 - first_tiles, 0)  # -1 // KEY_TILE is -1: no tile
        tile_ends = jnp.cumsum(tiles)

        return _Work(
            blocks=blocks,
            tile_ends=tile_ends,
            tile_offsets=first_tiles - (tile_ends - tiles),
            window=jnp.int32(window),
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
        sharers = heads // kv_heads
        pages = self._write(kv, pages, work.write_index)

        q = (q * scale).reshape(tokens, kv_heads, sharers, dim)
        q = q.at[work.blocks.tokens].get(mode="clip")  # [blocks, block, kv_heads, sharers, dim]
        blocks, size = q.shape[:2]
        groups = work.tile_ends.shape[0]
        q = jnp.moveaxis(q, 1, 2).reshape(groups, blocks // groups, kv_heads, size * sharers, dim)
        queries = max(size * sharers, MIN_ROWS)
        q = jnp.pad(q, ((0, 0), (0, 0), (0, 0), (0, queries - size * sharers), (0, 0)))

        def one_tile(step: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
            group = (work.tile_ends <= step).sum(dtype=jnp.int32)
            tile = step + work.tile_offsets[group]
            keys, values, visible = self._tile(pages, work, group, tile)
            visible = jnp.repeat(visible, sharers, axis=1)
            visible = jnp.pad(visible, ((0, 0), (0, queries - size * sharers), (0, 0)))[:, None]
            peak, total, acc = (_at(x, group) for x in carry)
            scores = jnp.einsum("gkqd,gktd->gkqt", _at(q, group), keys)
            scores = jnp.where(visible, scores, _MASKED)
            new_peak = jnp.maximum(peak, scores.max(-1))
            weights = jnp.where(visible, jnp.exp(scores - new_peak[..., None]), 0.0)
            decay = jnp.exp(peak - new_peak)
            update = jnp.einsum("gkqt,gktd->gkqd", weights, values)
            new = (new_peak, total * decay + row_sum(weights), acc * decay[..., None] + update)
            return tuple(jax.lax.dynamic_update_index_in_dim(x, y, group, 0) for x, y in zip(carry, new, strict=True))

        shape = q.shape[:-1]
        start = (jnp.full(shape, _MASKED), jnp.zeros(shape), jnp.zeros((*shape, dim + -dim % VALUE_WIDTH)))
        _, total, acc = jax.lax.fori_loop(0, work.tile_ends[-1], one_tile, start)
        out = acc[..., :dim] / jnp.where(total > 0, total, 1.0)[..., None]
        out = out[..., : size * sharers, :].reshape(blocks, kv_heads, size, sharers, dim)
        out = jnp.moveaxis(out, 2, 1).reshape(blocks * size, heads, dim)
        return out.at[work.blocks.places].get(mode="clip"), pages

    def _write(self, kv: jax.Array, pages: jax.Array, write_index: jax.Array) -> jax.Array:
        tokens, kv_heads, _, dim = kv.shape
        rows = kv.astype(self.dtype).reshape(tokens, 2 * kv_heads, dim)
        if self._storage != self.dtype:
            rows = jax.lax.bitcast_convert_type(rows, self._storage)
        flat = pages.reshape(-1, 2 * kv_heads, dim)
        return flat.at[write_index].set(rows, mode="drop", unique_indices=True).reshape(pages.shape)

    def _tile(
        self, pages: jax.Array, work: _Work, group: jax.Array, tile: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Keys and values [blocks, kv_heads, KEY_TILE, dim] of a group's tile, the values padded to `VALUE_WIDTH`, and
        which query token sees which key [blocks, block, KEY_TILE]."""
        per_tile = KEY_TILE // pages.shape[1]
        blocks = work.blocks.slots.shape[0] // work.tile_ends.shape[0]
        slots = jax.lax.dynamic_slice_in_dim(work.blocks.slots, group * blocks, blocks)
        positions = jax.lax.dynamic_slice_in_dim(work.blocks.positions, group * blocks, blocks)[..., None]
        # Past the table's end the last page is read again; those keys lie beyond every sequence.
        index = jnp.minimum(tile * per_tile + jnp.arange(per_tile), work.page_table.shape[1] - 1)
        page_ids = work.page_table.at[slots[:, None], index].get(mode="clip")
        key = tile * KEY_TILE + jnp.arange(KEY_TILE)
        visible = (key <= positions) & (positions - key < work.window)

        kv = pages.at[page_ids].get(mode="clip")
        if self._storage != self.dtype:
            kv = jax.lax.bitcast_convert_type(kv, self.dtype)
        kv = kv.astype(jnp.float32).reshape(blocks, KEY_TILE, -1, 2, pages.shape[-1])
        # A page not yet written may hold NaN, and 0 * NaN is NaN: hidden values are replaced, not only weighted by 0.
        values = jnp.where(visible.any(1)[:, :, None, None], kv[..., 1, :], 0.0)
        values = jnp.pad(values, ((0, 0), (0, 0), (0, 0), (0, -values.shape[-1] % VALUE_WIDTH)))
        return jnp.moveaxis(kv[..., 0, :], 1, 2), jnp.moveaxis(values, 1, 2), visible


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
    row: jax.Array = jax.lax.dynamic_index_in_dim(x, index, keepdims=False)
    return row
