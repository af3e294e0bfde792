"""The paged attention kernel: right against float64, deaf to its neighbours, and never writing where it should not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.kernels.jax_attention import GROUP, KEY_TILE, QUERY_BLOCK, JaxAttention
from headrace.kernels.native_attention import NativeAttention
from kernels.ragged import CPU_KERNELS, MIX, NATIVE, Bucket, Chunk, World, random_chunks


def check(world: World, chunks: list[Chunk], bucket: Bucket, window: int | None) -> None:
    out, _ = world.attend(chunks, bucket, window)
    # The native kernel rounds queries and weights to bfloat16 too; test_native.py has a limit for each case.
    rounds = world.dtype == jnp.bfloat16 and isinstance(world.kernel, NativeAttention)
    np.testing.assert_allclose(out, world.expected(chunks, window), atol=1e-2 if rounds else 3e-6)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize(
    ("dtype", "window"),
    [*((jnp.float32, window) for window in (None, 1, 64, 65)), *((jnp.bfloat16, window) for window in (None, 5))],
)
def test_random_mixes_of_decodes_and_chunks(dtype: jnp.dtype, window: int | None, kernel: type[Any]) -> None:
    world = World.make(dtype, kernel=kernel)
    rng = np.random.default_rng(1)
    check(world, MIX, (64, 8), window)
    for _ in range(12):
        rows = int(rng.integers(1, 9))
        check(world, random_chunks(world, rng, rows, 64), (64, 8), window)
    decodes = [(s, int(rng.integers(0, 160)), 1) for s in range(8)]
    check(world, decodes, (8, 8), window)
    check(world, decodes[2:5], (8, 8), window)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (8, 1)])
def test_shapes_of_heads(heads: tuple[int, int], kernel: type[Any]) -> None:
    world = World.make(jnp.float32, heads=heads, kernel=kernel)
    check(world, MIX, (64, 8), None)
    check(world, [(s, before, 1) for s, before in enumerate((0, 15, 16, 63, 64, 159))], (8, 8), 65)


@pytest.mark.parametrize(
    ("kernel", "page_size"),
    [(JaxAttention, 8), (JaxAttention, 64), *(pytest.param(*NATIVE.values, n, marks=NATIVE.marks) for n in (32, 64))],
)
def test_page_sizes(kernel: type[Any], page_size: int) -> None:
    check(World.make(jnp.float32, page_size=page_size, kernel=kernel), MIX, (64, 8), 65)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("edge", [8, 16, 64, 128])
def test_lengths_around_each_boundary(edge: int, kernel: type[Any]) -> None:
    """Pages of 16, tiles of 64, blocks of 8: contexts and chunks that end just before, at and just behind each."""
    assert (KEY_TILE, QUERY_BLOCK) == (64, 8)
    world = World.make(jnp.float32, kernel=kernel)
    for before in (edge - 1, edge, edge + 1):
        check(world, [(s, max(before - s, 0), 1) for s in range(8)], (8, 8), None)
        for count in (7, 8, 9, 16):
            check(world, [(0, before, 1), (1, before, count), (2, max(before - count, 0), count)], (64, 8), 65)
    for count in (edge - 1, edge, edge + 1):
        if count <= 64:
            check(world, [(5, 0, count)], (64, 8), None)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize("bucket", [(8, 8), (8, 1), (16, 2), (72, 64)])
def test_small_steps_in_any_bucket(bucket: Bucket, kernel: type[Any]) -> None:
    world = World.make(jnp.float32, kernel=kernel)
    check(world, [(1, 100, 8)], bucket, None)
    if bucket[1] > 1:
        check(world, [(2, 150, 1), (1, 90, 7)], bucket, None)
        check(world, [(2, 150, 1), (1, 90, 1)], bucket, 64)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_a_context_that_fills_the_table_to_its_end(kernel: type[Any]) -> None:
    world = World.make(jnp.float32, length=144, kernel=kernel)  # nine pages: the last tile is a quarter full
    check(world, [(0, 143, 1), (1, 128, 16)], (64, 8), None)
    check(world, [(s, 143, 1) for s in range(8)], (8, 8), None)


@pytest.mark.parametrize("kernel", CPU_KERNELS)
@pytest.mark.parametrize(("dtype", "bucket"), [(jnp.float32, (72, 64)), (jnp.bfloat16, (64, 8))])
def test_fault_11_padding_writes_nowhere_and_tokens_only_their_own_places(
    dtype: jnp.dtype, bucket: Bucket, kernel: type[Any]
) -> None:
    world = World.make(dtype, kernel=kernel)
    last = int(np.flatnonzero((world.table == world.num_pages - 1).any(-1))[0])  # the owner of the last physical page
    chunks = [(s, before, count) for s, before, count in MIX if s != last]
    before = world.rows(world.pool({s: n for s, n, _ in chunks}))
    _, after = world.attend(chunks, bucket, None)
    after = world.rows(after)

    own = np.zeros(len(before), bool)
    for sequence, start, count in chunks:
        places = world.places(sequence)[start : start + count]
        own[places] = True
        written = world.kv[sequence, start : start + count].astype(dtype).reshape(count, *after.shape[1:])
        np.testing.assert_array_equal(after[places], written.view(before.dtype))
    assert own.sum() == sum(count for _, _, count in chunks)
    assert not own[-world.page_size :].any()
    bits = np.uint16 if before.itemsize == 2 else np.uint32
    np.testing.assert_array_equal(after[~own].view(bits), before[~own].view(bits))


@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_a_step_of_padding_alone_changes_nothing(kernel: type[Any]) -> None:
    world = World.make(jnp.float32, kernel=kernel)
    out, after = world.attend([], (64, 8), None)
    assert len(out) == 0
    assert np.isnan(after).all()


_prepare = jax.jit(JaxAttention(jnp.dtype(jnp.float32)).prepare, static_argnums=1)


def steps(chunks: list[Chunk], bucket: Bucket, window: int | None = None) -> int:
    """Turns of the kernel's loop for a batch: one for each (group of blocks, tile of keys) present."""
    world = World.make(jnp.float32, sequences=64, length=1100, heads=(1, 1), dim=1)
    return int(_prepare(world.batch(chunks, bucket), window).tile_ends[-1])


def test_work_grows_with_the_tokens_present_not_with_the_bucket() -> None:
    assert (GROUP, QUERY_BLOCK, KEY_TILE) == (8, 8, 64)
    assert steps([], (8, 8)) == steps([], (512, 64)) == 0
    # Eight decodes are one group, which walks as far as its longest context: positions 0..63 are one tile.
    assert steps([(0, 63, 1)], (8, 8)) == 1
    assert steps([(0, 64, 1)], (8, 8)) == 2
    assert steps([(s, n, 1) for s, n in enumerate((1000, 5, 4, 3))], (8, 8)) == 16
    # 64 rows are eight groups, of which three have rows: 1000, 200 and 5 as their longest.
    contexts = [1000] * 8 + [200] * 8 + [5] * 3
    assert steps([(s, n, 1) for s, n in enumerate(contexts)], (64, 64)) == 16 + 4 + 1
    # 128 tokens of a prompt are 16 blocks in two groups, up to positions 63 and 127.
    assert steps([(0, 0, 128)], (128, 8)) == steps([(0, 0, 128)], (512, 64)) == 1 + 2
    # Three decodes and five blocks of 36 tokens share the first group; the context of 300 decides.
    assert steps([(0, 300, 1), (1, 9, 1), (2, 8, 1), (3, 0, 36)], (64, 8)) == 5


def test_a_window_bounds_the_work() -> None:
    # Positions 937..1000 lie in tiles 14 and 15; with one key more the first of them is 936, in tile 14 still.
    assert steps([(0, 1000, 1)], (8, 8), window=64) == 2
    assert steps([(0, 1000, 1)], (8, 8), window=1) == 1
    assert steps([(0, 1023, 1)], (8, 8), window=64) == 1
    assert steps([(0, 1023, 1)], (8, 8), window=65) == 2
    # Blocks at 640..703 see from 577 on (tile 9), those at 704..767 from 641 on (tile 10).
    assert steps([(0, 640, 128)], (128, 8), window=64) == 2 + 2
