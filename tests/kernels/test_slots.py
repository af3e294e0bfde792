"""The slot mapping of layout v2 and the write that follows it, against loops over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.kernels.slots import SlotMapping, most_slices, slot_mapping
from headrace.kernels.tpu_write import write_slices
from kernels.interpret import interpreted
from kernels.ragged import MIX, Bucket, Chunk, World, random_chunks

_mapping = jax.jit(slot_mapping)


def naive(world: World, chunks: Sequence[Chunk]) -> list[list[int]]:
    """Token by token: a slice goes on while the tokens stay in one page of one row."""
    slices: list[list[int]] = []
    token = 0
    for sequence, before, count in chunks:
        for position in range(before, before + count):
            if position == before or position % world.page_size == 0:
                slices.append([int(world.places(sequence)[position]), token, 0])
            slices[-1][2] += 1
            token += 1
    return slices


def check(world: World, chunks: Sequence[Chunk], bucket: Bucket) -> None:
    mapping = _mapping(world.batch(chunks, bucket))
    expected = naive(world, chunks)
    assert mapping.slices.shape == (3, most_slices(*bucket, world.page_size))
    assert mapping.slices.dtype == mapping.num_slices.dtype == jnp.int32
    assert np.asarray(mapping.num_slices).tolist() == [len(expected)]
    slices = np.asarray(mapping.slices).T
    assert slices[: len(expected)].tolist() == expected
    assert not slices[len(expected) :].any()  # a length of 0 writes nothing


@pytest.mark.parametrize("page_size", [1, 8, 16, 64])
def test_x8_v2_one_slice_for_each_page_of_each_row(page_size: int) -> None:
    world = World.make(jnp.float32, page_size=page_size, heads=(1, 1), dim=1)
    check(world, MIX, (64, 8))
    check(world, [], (64, 8))
    edges = sorted({max(n, 0) for n in (0, page_size - 1, page_size, page_size + 1, 2 * page_size)})
    for before in edges:
        for count in edges:
            if before + count <= 160:
                check(world, [(0, before, min(count, 64))], (64, 1))
                check(world, [(1, 3, 1), (0, before, min(count, 50)), (2, before, 1), (3, 7, 9)], (64, 8))
    rng = np.random.default_rng(0)
    for _ in range(10):
        check(world, random_chunks(world, rng, int(rng.integers(1, 9)), 64), (64, 8))
        check(world, [(int(s), int(rng.integers(0, 160)), 1) for s in rng.permutation(8)], (8, 8))


def test_x8_v2_rows_without_tokens_have_no_slice() -> None:
    world = World.make(jnp.float32, heads=(1, 1), dim=1)
    check(world, [(0, 16, 0), (1, 0, 0), (2, 15, 1), (3, 32, 0), (4, 15, 2), (5, 40, 0)], (64, 8))
    check(world, [(0, 16, 0), (1, 0, 0)], (8, 2))


def test_x8_v2_there_is_room_for_the_most_slices_that_a_bucket_can_have() -> None:
    world = World.make(jnp.float32, heads=(1, 1), dim=1)
    straddling = [(s, 15, 2) for s in range(8)]
    check(world, straddling, (16, 8))  # every token is a slice
    check(world, [*straddling[:7], (7, 15, 18)], (32, 8))  # one page whole, and a token on either side
    assert most_slices(8, 8, 16) == 8
    assert most_slices(16, 8, 16) == 16
    assert most_slices(512, 32, 16) == 512 // 16 + 64


@cache
def _write() -> object:
    @jax.jit
    def run(rows: jax.Array, pages: jax.Array, slices: jax.Array, count: jax.Array) -> jax.Array:
        return write_slices(rows, pages, SlotMapping(slices, count))

    return run


def written(slices: list[tuple[int, int, int]], *, pages: int = 3, page_size: int = 16) -> tuple[np.ndarray, ...]:
    """The pool [places] after a write of tokens 100, 101, …, and what a loop makes of it; -1 was there before."""
    tokens = 24
    mapping = np.zeros((3, 8), np.int32)
    mapping[:, : len(slices)] = np.array(slices, np.int32).reshape(-1, 3).T
    pool = np.full((pages, page_size, 2, 128), -1, np.float32)
    rows = np.broadcast_to(100 + np.arange(tokens, dtype=np.float32)[:, None, None], (tokens, 2, 128))
    with interpreted():
        after = np.asarray(_write()(rows, pool, mapping, np.array([len(slices)], np.int32)))
    assert (after == after[:, :, :1, :1]).all()
    expected = pool[:, :, 0, 0].reshape(-1).copy()
    for to, source, length in slices:
        expected[to : to + length] = 100 + np.arange(source, source + length)
    return after[:, :, 0, 0].reshape(-1), expected


def test_x8_v2_a_write_by_slices_of_every_length() -> None:
    np.testing.assert_array_equal(*written([]))
    for length in range(1, 17):
        np.testing.assert_array_equal(*written([(16, 24 - length, length)]))
        np.testing.assert_array_equal(*written([(16 - length, 0, length), (40, 5, 1)]))
    np.testing.assert_array_equal(*written([(31, 0, 1), (0, 1, 16), (32, 17, 2), (47, 23, 1)]))


def test_fault_11_a_slice_at_the_end_of_the_last_page_is_not_moved_to_fit() -> None:
    """The reference copies a whole page of tokens per slice and clamps where that passes the end of the pool."""
    for length in range(1, 17):
        after, expected = written([(48 - length, 3, length)])
        np.testing.assert_array_equal(after, expected)
        assert after[-1] == 100 + 3 + length - 1
        assert (after[: 48 - length] == -1).all()
    np.testing.assert_array_equal(*written([(32, 3, 1)]))  # the page's first place alone
