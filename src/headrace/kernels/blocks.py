"""Query tokens of a ragged batch cut into blocks of one row each, for kernels that work on blocks."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from headrace.kernels.attention import RaggedBatch


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QueryBlocks:
    """Which tokens belong to each block.

    Attributes:
        tokens: [blocks, size] int32, index of each query token; out of range where there is none.
        positions: [blocks, size] int32, their positions, ascending; -1 where there is none, which sees no key.
        slots: [blocks] int32, the line of the page table.
        places: [tokens] int32, where each token lies in the flattened blocks.
    """

    tokens: jax.Array
    positions: jax.Array
    slots: jax.Array
    places: jax.Array


def most_blocks(batch: RaggedBatch, size: int) -> int:
    """The most blocks that a batch of these shapes can have: each row begins one, and another begins after every
    `size` tokens of a row."""
    tokens, rows = batch.positions.shape[0], batch.seq_lens.shape[0]
    return rows + max(tokens - rows, 0) // size


def query_blocks(batch: RaggedBatch, size: int, blocks: int) -> QueryBlocks:
    """Cuts the tokens of each row into blocks of `size`, and gives room for `blocks` of them; those left are empty."""
    tokens, rows = batch.positions.shape[0], batch.seq_lens.shape[0]
    counts = batch.query_start[1:] - batch.query_start[:-1]
    ends = jnp.cumsum((counts + size - 1) // size)
    starts = jnp.concatenate([jnp.zeros(1, ends.dtype), ends])

    block = jnp.arange(blocks)
    row = jnp.minimum(jnp.searchsorted(ends, block, side="right"), rows - 1)
    token = (batch.query_start[row] + (block - starts[row]) * size)[:, None] + jnp.arange(size)
    present = (token < batch.query_start[row + 1][:, None]) & (block < ends[-1])[:, None]
    positions = (batch.seq_lens[row] - batch.query_start[row + 1])[:, None] + token

    token_row = jnp.minimum(batch.token_rows, rows - 1)
    offset = jnp.arange(tokens) - batch.query_start[token_row]
    return QueryBlocks(
        tokens=jnp.where(present, token, tokens),
        positions=jnp.where(present, positions, -1),
        slots=batch.slots[row],
        places=starts[token_row] * size + offset,
    )
