"""What one token gets is bitwise the same alone, in any mix, bucket, order of rows and chunking, and as a decode."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from headrace.kernels.gpu_attention import GpuAttention
from headrace.kernels.jax_attention import JaxAttention
from kernels.ragged import MIX, NATIVE, Bucket, Chunk, World, random_chunks


def token_bits(world: World, chunks: list[Chunk], bucket: Bucket, window: int | None) -> dict[tuple[int, int], bytes]:
    """The bits of each (sequence, position)'s output."""
    out, _ = world.attend(chunks, bucket, window)
    tokens = [(s, before + i) for s, before, count in chunks for i in range(count)]
    return {token: row.tobytes() for token, row in zip(tokens, out, strict=True)}


@pytest.mark.parametrize(
    ("kernel", "dtype", "heads", "dim", "window"),
    [
        (JaxAttention, jnp.float32, (4, 2), 64, None),
        (JaxAttention, jnp.float32, (1, 1), 16, 5),
        (JaxAttention, jnp.float32, (8, 1), 32, None),
        (JaxAttention, jnp.float32, (4, 1), 256, 65),
        (JaxAttention, jnp.bfloat16, (9, 3), 64, None),
        (GpuAttention, jnp.bfloat16, (9, 3), 64, 65),  # in the interpreter
        *(
            pytest.param(*NATIVE.values, *shape, marks=NATIVE.marks)
            for shape in (
                (jnp.float32, (5, 1), 12, None),
                (jnp.float32, (4, 1), 256, 65),
                (jnp.bfloat16, (4, 4), 80, 17),
                (jnp.bfloat16, (9, 3), 64, None),
            )
        ),
    ],
)
def test_a_token_has_the_same_bits_in_any_batch(
    kernel: type[Any], dtype: jnp.dtype, heads: tuple[int, int], dim: int, window: int | None
) -> None:
    world = World.make(dtype, heads=heads, dim=dim, kernel=kernel)
    expected: dict[tuple[int, int], bytes] = {}
    for sequence in range(8):  # every sequence whole and alone, in chunks that a bucket takes
        for start in range(0, 160, 64):
            expected |= token_bits(world, [(sequence, start, min(64, 160 - start))], (64, 8), window)

    def same(chunks: list[Chunk], bucket: Bucket) -> None:
        for token, bits in token_bits(world, chunks, bucket, window).items():
            assert bits == expected[token], (token, chunks, bucket)

    same(MIX, (64, 8))
    same(MIX, (72, 64))
    same(MIX[::-1], (64, 8))
    same([(5, 120, 8)], (8, 1))
    same([(5, 99, 1)], (8, 1))
    same([(5, 99, 1)], (8, 8))
    rng = np.random.default_rng(3)
    for _ in range(6):
        same(random_chunks(world, rng, int(rng.integers(1, 9)), 64), (64, 8))
        same([(int(s), int(rng.integers(0, 160)), 1) for s in rng.permutation(8)], (8, 8))
        first, rest = int(rng.integers(1, 60)), int(rng.integers(1, 30))
        same([(7, 0, first)], (64, 8))  # the same prompt in chunks of any size
        same([(2, 11, 1), (7, first, rest)], (64, 8))
