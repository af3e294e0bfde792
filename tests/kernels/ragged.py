"""Sequences in a paged pool, ragged batches over them, and attention over them in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.kernels.attention import AttentionKernel, RaggedBatch
from headrace.kernels.jax_attention import JaxAttention
from headrace.kernels.native_attention import NativeAttention
from headrace.native import available
from kernels.interpret import interpreted

Chunk = tuple[int, int, int]  # (sequence, tokens before the chunk, tokens in the chunk)
Bucket = tuple[int, int]  # (tokens, rows)

SCALE = 0.3
NATIVE = pytest.param(NativeAttention, marks=pytest.mark.skipif(not available(), reason="no native kernels"))
CPU_KERNELS = [JaxAttention, NATIVE]
MIX: list[Chunk] = [
    (3, 130, 1),
    (0, 63, 1),
    (6, 0, 1),
    (1, 95, 30),
    (4, 0, 17),
    (2, 7, 9),
]  # at the edges of pages and tiles, and across


@dataclass(frozen=True)
class World:
    """Random sequences and a pool that holds as much of each as a batch says.

    A sequence's line of the page table begins with its pages, which lie anywhere in the pool; the stale entries behind
    them name pages of other sequences. Everything that was never written is NaN.

    Attributes:
        kernel: what is tested; the pool is laid out as it wants it, with zeros where it pads.
        q: [sequences, length, heads, dim]; kv: [sequences, length, kv_heads, 2, dim], both float32.
    """

    dtype: jnp.dtype
    kernel: AttentionKernel
    page_size: int
    q: np.ndarray
    kv: np.ndarray
    table: np.ndarray
    num_pages: int

    @classmethod
    def make(
        cls,
        dtype: jnp.dtype,
        *,
        sequences: int = 8,
        length: int = 160,
        heads: tuple[int, int] = (4, 2),
        dim: int = 16,
        page_size: int = 16,
        seed: int = 0,
        kernel: type[Any] = JaxAttention,
    ) -> World:
        rng = np.random.default_rng(seed)
        q = rng.normal(size=(sequences, length, heads[0], dim)).astype(np.float32)
        kv = rng.normal(size=(sequences, length, heads[1], 2, dim)).astype(np.float32)
        per_sequence = -(-length // page_size)
        pages = rng.permutation(sequences * per_sequence).reshape(sequences, per_sequence)
        return cls(jnp.dtype(dtype), kernel(jnp.dtype(dtype)), page_size, q, kv, pages.astype(np.int32), pages.size)

    def pool(self, before: dict[int, int]) -> np.ndarray:
        """Pages as the kernel stores them, with `before[s]` tokens written."""
        form = jax.eval_shape(lambda: self.kernel.make_pages(self.num_pages, self.page_size, *self.kv.shape[2::2]))
        if isinstance(self.kernel, NativeAttention):
            return self._native_pool(form, before)
        pages = np.full((self.num_pages * self.page_size, *form.shape[2:]), np.nan, np.float32)
        for sequence, count in before.items():
            pages[self.places(sequence)[:count]] = self.stored(self.kv[sequence, :count], form.shape[2:])
        return pages.astype(self.dtype).reshape(form.shape).view(form.dtype)

    def _native_pool(self, form: jax.ShapeDtypeStruct, before: dict[int, int]) -> np.ndarray:
        rows = np.full((self.num_pages * self.page_size, *self.kv.shape[2:]), np.nan, np.float32)
        for sequence, count in before.items():
            rows[self.places(sequence)[:count]] = self.kv[sequence, :count]
        pages = np.moveaxis(rows.reshape(self.num_pages, self.page_size, *rows.shape[1:]), 2, 1)
        pool = np.full((*form.shape[:2], int(np.prod(form.shape[2:]))), np.nan, self.dtype)
        pool[..., native_order(self.page_size, rows.shape[-1], pool.itemsize)] = pages
        return pool.reshape(form.shape).view(form.dtype)

    def rows(self, pool: np.ndarray) -> np.ndarray:
        """What a pool holds at each place [places, …], without what the kernel pads a native pool with."""
        if isinstance(self.kernel, NativeAttention):
            flat = pool.reshape(*pool.shape[:2], -1)
            pages = flat[..., native_order(self.page_size, self.kv.shape[-1], pool.itemsize)]
            pool = np.moveaxis(pages, 1, 2)
            return pool.reshape(self.num_pages * self.page_size, 2 * pool.shape[2], -1)
        return pool.reshape(self.num_pages * self.page_size, *pool.shape[2:])

    def stored(self, kv: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Keys and values [tokens, kv_heads, 2, dim] of tokens as [tokens, *shape], with zeros where that is more."""
        tokens, kv_heads, _, dim = kv.shape
        rows = np.zeros((tokens, *shape), np.float32)
        rows[:, : 2 * kv_heads, :dim] = kv.reshape(tokens, 2 * kv_heads, dim)
        return rows

    def places(self, sequence: int) -> np.ndarray:
        """Where in the flat pool each token of a sequence lies."""
        return (self.table[sequence][:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)

    def batch(self, chunks: Sequence[Chunk], bucket: Bucket) -> RaggedBatch:
        """The ragged batch of these rows, in this order, padded to the bucket."""
        tokens, rows = bucket
        total = sum(count for _, _, count in chunks)
        assert total <= tokens
        assert len(chunks) <= rows
        positions, token_rows = np.zeros(tokens, np.int32), np.full(tokens, rows, np.int32)
        write = self.num_pages * self.page_size + np.arange(tokens, dtype=np.int32)
        start = np.full(rows + 1, total, np.int32)
        lens, slots = np.zeros(rows, np.int32), np.full(rows, len(self.q), np.int32)
        table = self.table.copy()
        at = 0
        for row, (sequence, before, count) in enumerate(chunks):
            start[row] = at
            here = slice(at, at + count)
            positions[here] = np.arange(before, before + count)
            token_rows[here], write[here] = row, self.places(sequence)[before : before + count]
            lens[row], slots[row] = before + count, sequence
            used = -(-(before + count) // self.page_size)
            table[sequence, used:] = self.table[sequence - 1, : table.shape[1] - used]
            at += count
        distribution = np.array([sum(count == 1 for _, _, count in chunks), len(chunks), len(chunks)], np.int32)
        arrays = (positions, token_rows, write, start, lens, slots, table, distribution)
        return RaggedBatch(*map(jnp.asarray, arrays), page_size=self.page_size)

    def inputs(self, chunks: Sequence[Chunk], tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """q and kv of the rows' tokens; what stands on padding is NaN."""
        q = np.full((tokens, *self.q.shape[2:]), np.nan, np.float32)
        kv = np.full((tokens, *self.kv.shape[2:]), np.nan, np.float32)
        at = 0
        for sequence, before, count in chunks:
            q[at : at + count] = self.q[sequence, before : before + count]
            kv[at : at + count] = self.kv[sequence, before : before + count]
            at += count
        return q, kv

    def attend(self, chunks: Sequence[Chunk], bucket: Bucket, window: int | None) -> tuple[np.ndarray, np.ndarray]:
        """What the kernel gives for the rows' tokens [tokens present, heads, dim], and the pool after it."""
        q, kv = self.inputs(chunks, bucket[0])
        pool = self.pool({sequence: before for sequence, before, _ in chunks})
        with interpreted():
            out, pages = _attend(self.kernel, window)(q, kv, pool, self.batch(chunks, bucket))
        return np.asarray(out)[: sum(count for _, _, count in chunks)], np.asarray(pages)

    def expected(self, chunks: Sequence[Chunk], window: int | None) -> np.ndarray:
        """The same in float64, one token after another, over keys and values rounded to the storage dtype."""
        kv = self.kv.astype(self.dtype).astype(np.float64)
        sharers = self.q.shape[2] // kv.shape[2]
        out = []
        for sequence, before, count in chunks:
            for position in range(before, before + count):
                first = 0 if window is None else max(0, position - window + 1)
                seen = np.repeat(kv[sequence, first : position + 1], sharers, axis=1)  # [keys, heads, 2, dim]
                scores = np.einsum("hd,thd->ht", self.q[sequence, position].astype(np.float64), seen[:, :, 0]) * SCALE
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                out.append(np.einsum("ht,thd->hd", weights / weights.sum(-1, keepdims=True), seen[:, :, 1]))
        return np.stack(out)


def native_order(page_size: int, dim: int, itemsize: int) -> np.ndarray:
    """Where in a native page of one head the elements [page_size, 2, dim] of keys and values lie."""
    width, bits16 = dim + -dim % 32, itemsize == 2
    token, d = np.arange(page_size)[:, None], np.arange(dim)
    keys = (token // 16 * (width // 2) + d // 2) * 32 + (token % 16 * 2 + d % 2 if bits16 else d % 2 * 16 + token % 16)
    values = token // 2 * 2 * width + 2 * d + token % 2 if bits16 else token * width + d
    return np.stack([keys, values + page_size * width], axis=1)


def random_chunks(world: World, rng: np.random.Generator, rows: int, tokens: int) -> list[Chunk]:
    """Decode rows first and then prefill chunks, the longest context first in both."""
    sequences = rng.permutation(len(world.q))[:rows].tolist()
    length = world.q.shape[1]
    chunks = []
    for i, sequence in enumerate(sequences):
        spare = tokens - sum(chunk[2] for chunk in chunks) - (rows - 1 - i)
        count = 1 if rng.random() < 0.5 else int(rng.integers(1, min(spare, length) + 1))
        chunks.append((sequence, int(rng.integers(0, length - count + 1)), count))
    return sorted(chunks, key=lambda chunk: (chunk[2] > 1, -chunk[1]))


@cache
def _attend(kernel: AttentionKernel, window: int | None) -> object:
    @jax.jit
    def run(q: jax.Array, kv: jax.Array, pages: jax.Array, batch: RaggedBatch) -> tuple[jax.Array, jax.Array]:
        return kernel.attend(q, kv, pages, kernel.prepare(batch, window), scale=SCALE)

    return run
