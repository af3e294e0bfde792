"""The slot mapping: where the tokens of a step go in the pool, as slices that each lie within one page (layout v2)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from headrace.kernels.attention import RaggedBatch


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlotMapping:
    """One slice for each page that a row writes to in this step.

    Attributes:
        slices: [3, slices] int32: the first place in the pool (page * page_size + offset), the first token of the
            batch, and the length. Padding has length 0, which writes nothing.
        num_slices: [1] int32, the slices that are none of padding.
    """

    slices: jax.Array
    num_slices: jax.Array


def most_slices(num_tokens: int, num_rows: int, page_size: int) -> int:
    """The most slices that a step of this bucket can have: a row's first and last page may be filled in part."""
    return min(num_tokens, num_tokens // page_size + 2 * num_rows)


def slot_mapping(batch: RaggedBatch) -> SlotMapping:
    """The slices of a batch, row by row and page by page.

    It is worked out on the device, once per step, because the page table is there: the host would have to keep another
    and send three numbers per slice.
    """
    tokens, rows, page_size = batch.positions.shape[0], batch.seq_lens.shape[0], batch.page_size
    starts, lens = batch.query_start[:-1], batch.seq_lens
    counts = batch.query_start[1:] - starts
    firsts = lens - counts  # position of each row's first token
    spans = jnp.where(counts > 0, (lens - 1) // page_size - firsts // page_size + 1, 0)
    ends = jnp.cumsum(spans)

    slices = jnp.arange(most_slices(tokens, rows, page_size), dtype=jnp.int32)
    row = jnp.minimum(jnp.searchsorted(ends, slices, side="right"), rows - 1)
    index = firsts[row] // page_size + slices - (ends[row] - spans[row])  # of the page in its sequence
    begin = jnp.maximum(firsts[row], index * page_size)
    end = jnp.minimum(lens[row], (index + 1) * page_size)
    page = batch.page_table.at[batch.slots[row], index].get(mode="clip")
    mapping = jnp.stack([page * page_size + begin % page_size, starts[row] + begin - firsts[row], end - begin])
    return SlotMapping(jnp.where(slices < ends[-1], mapping, 0), ends[-1:])
