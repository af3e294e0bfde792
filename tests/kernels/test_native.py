"""The native kernel: norms, rotation, write and attention in one call, against float64; the same bits everywhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace import native
from headrace.errors import ConfigError
from headrace.kernels.attention import attention_for
from headrace.kernels.native_attention import NativeAttention
from kernels.ragged import Chunk, World, random_chunks

pytestmark = pytest.mark.skipif(not native.available(), reason="no native kernels")

TOKENS = 64
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """A random call. norms [2, dim] of queries and keys, angles [tokens, dim / 2]; None where the call has none."""

    world: World
    chunks: list[Chunk]
    window: int | None
    softcap: float
    scale: float
    norms: np.ndarray | None
    angles: np.ndarray | None

    @classmethod
    def random(cls, seed: int, longest: int) -> Case:
        rng = np.random.default_rng(seed)
        kv_heads, group, rows = int(rng.integers(1, 4)), int(rng.integers(1, 14)), int(rng.integers(1, 6))
        dim = 2 * int(rng.integers(1, 70)) if rng.random() < 0.5 else int(rng.choice([8, 16, 64, 80, 128, 256]))
        world = World.make(
            jnp.float32 if rng.random() < 0.5 else jnp.bfloat16,
            sequences=rows,
            length=int(rng.integers(TOKENS, longest)),
            heads=(kv_heads * group, kv_heads),
            dim=dim,
            page_size=int(rng.choice([16, 32, 64])),
            seed=seed,
            kernel=NativeAttention,
        )
        return cls(
            world=world,
            chunks=random_chunks(world, rng, rows, TOKENS),
            window=int(rng.choice([1, 2, 16, 63, 200, 512])) if rng.random() < 0.5 else None,
            softcap=float(rng.choice([1.0, 10.0, 50.0])) if rng.random() < 0.3 else 0.0,
            scale=float(rng.choice([1.0, 2.0])) * dim**-0.5,
            norms=rng.uniform(0.5, 1.5, (2, dim)).astype(np.float32) if rng.random() < 0.5 else None,
            angles=rng.uniform(0, 6, (TOKENS, dim // 2)).astype(np.float32) if rng.random() < 0.7 else None,
        )

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Heads of the tokens present [tokens, heads, dim], and the pool."""
        world, count = self.world, sum(count for _, _, count in self.chunks)
        q, kv = world.inputs(self.chunks, TOKENS)
        kv_heads, dim = kv.shape[1], kv.shape[-1]
        qkv = np.concatenate([q.reshape(TOKENS, kv_heads, -1, dim), kv], axis=2).reshape(TOKENS, -1)
        rotation = None if self.angles is None else (np.cos(self.angles), np.sin(self.angles))
        q_norm, k_norm = (None, None) if self.norms is None else self.norms
        batch = world.batch(self.chunks, (TOKENS, len(self.chunks) + 1))
        attend = partial(
            world.kernel.attend_qkv,
            scale=self.scale,
            kv_heads=kv_heads,
            head_dim=dim,
            eps=EPS,
            softcap=self.softcap,
        )
        pool = world.pool({sequence: before for sequence, before, _ in self.chunks})
        out, pages = jax.jit(attend)(qkv, rotation, q_norm, k_norm, pool, world.kernel.prepare(batch, self.window))
        assert np.isfinite(np.asarray(out)).all()
        return np.asarray(out)[:count].reshape(count, -1, dim), np.asarray(pages)

    def check(self) -> None:
        """The keys and values written are those of float64, and so is the attention over what is stored."""
        out, pages = self.run()
        world = self.world
        rounding = 2**-8 if world.dtype == jnp.bfloat16 else 0
        stored = world.rows(pages).view(world.dtype).astype(np.float64)
        stored = stored.reshape(len(stored), -1, 2, stored.shape[-1])
        token = 0
        for sequence, before, count in self.chunks:
            places = world.places(sequence)
            for position in range(before, before + count):
                key, value = np.moveaxis(world.kv[sequence, position].astype(np.float64), 1, 0)
                here = stored[places[position]]
                np.testing.assert_allclose(here[:, 0], self.turned(key, 1, token), rtol=rounding, atol=2e-6)
                assert (here[:, 1] == value.astype(world.dtype)).all()
                first = 0 if self.window is None else max(0, position - self.window + 1)
                q = self.turned(world.q[sequence, position].astype(np.float64), 0, token)
                expected, limit = self.attended(q, stored[places[first : position + 1]], rounding / 2)
                assert (np.abs(out[token] - expected) <= limit + 2e-5).all()
                token += 1

    def turned(self, x: np.ndarray, norm: int, token: int) -> np.ndarray:
        """x [heads, dim] normalised and rotated."""
        if self.norms is not None:
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * self.norms[norm]
        if self.angles is not None:
            (a, b), angle = np.split(x, 2, axis=-1), self.angles[token].astype(np.float64)
            x = np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)
        return x

    def attended(self, q: np.ndarray, seen: np.ndarray, rounding: float) -> tuple[np.ndarray, np.ndarray]:
        """q [heads, dim] over seen [keys, kv_heads, 2, dim] -> [heads, dim], and how far from it one may be who rounds
        queries and weights by this share."""
        seen = np.repeat(seen, len(q) // seen.shape[1], axis=1)
        keys, values = seen[:, :, 0], seen[:, :, 1]
        scores = np.einsum("hd,thd->ht", q, keys) * self.scale
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        result: np.ndarray = np.einsum("ht,thd->hd", weights, values)
        # A weight is wrong by its own rounding and by what the rounded query does to its score, to the first order.
        wrong = rounding * (1 + np.einsum("hd,thd->ht", np.abs(q), np.abs(keys)) * self.scale)
        limit = np.einsum("ht,thd->hd", weights * wrong, np.abs(values - result))
        return result, 1.1 * limit


@pytest.mark.parametrize("seed", range(24))
def test_random_shapes(seed: int) -> None:
    Case.random(seed, 700).check()


@pytest.mark.soak
def test_a_thousand_random_shapes() -> None:
    for seed in range(1000, 2000):
        Case.random(seed, 1500).check()
        if seed % 50 == 0:
            jax.clear_caches()


def digest_of_cases() -> str:
    """Of the bits of some calls: long contexts that many threads divide, decodes, chunks, all kinds of shapes."""
    digest = hashlib.sha256()
    for seed in range(6):
        for x in Case.random(300 + seed, 1500).run():
            digest.update(x.tobytes())
    return digest.hexdigest()


def test_every_instruction_set_gives_the_same_bits() -> None:
    handle = native.loader.handle()
    names = handle.headrace_isas().split(b",")
    assert b"scalar" in names
    found = {}
    try:
        for name in names:
            assert handle.headrace_choose(name)
            found[name] = digest_of_cases()
    finally:
        handle.headrace_choose(native.isa().encode())
    assert len(set(found.values())) == 1, found


def test_any_number_of_threads_gives_the_same_bits() -> None:
    """XLA makes so many threads as NPROC says, and the work is divided accordingly."""
    script = "from kernels.test_native import digest_of_cases; print(digest_of_cases())"
    found = {digest_of_cases()}
    for threads in ("1", "13"):
        env = {**os.environ, "NPROC": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
        found.add(
            subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True)
            .stdout.decode()
            .strip()
        )
    assert len(found) == 1


def test_the_pool_is_updated_in_place() -> None:
    kernel = NativeAttention(jnp.dtype(jnp.bfloat16))
    world = World.make(jnp.bfloat16, kernel=NativeAttention)
    pool = world.pool({})
    batch = world.batch([], (TOKENS, 8))

    def step(q: jax.Array, kv: jax.Array, pools: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        prepared, new = kernel.prepare(batch, None), []
        for pages in pools:
            q, pages = kernel.attend(q, kv, pages, prepared, scale=1.0)
            new.append(pages)
        return q, new

    q, kv = world.inputs([], TOKENS)
    text = jax.jit(step, donate_argnums=2).lower(q, kv, [pool, pool]).compile().as_text()
    shape = f"u16[{','.join(map(str, pool.shape))}]"
    assert text.count("headrace_attention") >= 2
    assert shape in text
    assert not [line for line in text.splitlines() if shape in line.split("=")[-1].split("(")[0] and " copy(" in line]


def test_what_the_kernel_does_not_take() -> None:
    for dtype, page_size, devices, what in (
        (jnp.float32, 8, 1, "pages of 16, 32 or 64 tokens, not 8"),
        (jnp.float32, 16, 2, "one device, not 2"),
        (jnp.float16, 16, 1, "float32 and bfloat16, not float16"),
    ):
        with pytest.raises(ConfigError, match=f"attention: the native kernel .*{what}; give auto or jax"):
            attention_for(dtype, "cpu", "native", page_size=page_size, devices=devices)
    assert isinstance(attention_for(jnp.float32, "cpu", "native"), NativeAttention)
