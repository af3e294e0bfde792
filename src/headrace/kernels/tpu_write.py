"""Writes slices of a step's keys and values into the pool, as copies by the TPU's DMA engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from headrace.kernels.slots import SlotMapping


def write_slices(rows: jax.Array, pages: jax.Array, mapping: SlotMapping) -> jax.Array:
    """Copies each slice to its place; everything else in the pool stays as it is.

    Args:
        rows: [tokens, 2 * kv_heads, head_dim] in the dtype of the pages.
        pages: [pages, page_size, 2 * kv_heads, head_dim]; consumed.

    Returns:
        The new pool, in the memory of the old one.
    """
    longest = min(pages.shape[1], rows.shape[0])
    flat = pages.reshape(-1, *pages.shape[2:])
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    written: jax.Array = pl.pallas_call(
        partial(_copy_slices, longest),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(1,),
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct(flat.shape, flat.dtype),
        input_output_aliases={3: 0},  # the pool, counted with the two prefetched arrays
        name="write_slices",
    )(mapping.slices, mapping.num_slices, rows, flat)
    return written.reshape(pages.shape)


def _copy_slices(longest: int, slices: Any, num_slices: Any, rows: Any, _: Any, pool: Any, semaphore: Any) -> None:
    # A copy has a fixed size, so that a slice is copied in pieces of powers of two: those its length is the sum of.
    pieces = [1 << bit for bit in reversed(range(longest.bit_length()))]

    def for_each_piece(act: Callable[[Any], None]) -> None:
        def one_slice(i: jax.Array, _: None) -> None:
            to, source, length = slices[0, i], slices[1, i], slices[2, i]
            for size in pieces:
                done = length // (2 * size) * (2 * size)

                @pl.when(length & size != 0)
                def _copy(size: int = size, done: jax.Array = done) -> None:
                    here, there = rows.at[pl.ds(source + done, size)], pool.at[pl.ds(to + done, size)]
                    act(pltpu.make_async_copy(here, there, semaphore))

        jax.lax.fori_loop(0, num_slices[0], one_slice, None)

    for_each_piece(lambda copy: copy.start())
    for_each_piece(lambda copy: copy.wait())
