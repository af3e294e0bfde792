"""Both cache layouts against one oracle: v3, whose kernels write inside the call, and v2, written before it by slices.

The kernels for GPU and TPU run in Pallas' interpreter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ref_ragged_paged_attention
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from headrace import native
from headrace.errors import ConfigError
from headrace.kernels.attention import AttentionKernel, attention_for, page_bytes
from headrace.kernels.gpu_attention import GpuAttention
from headrace.kernels.jax_attention import JaxAttention
from headrace.kernels.native_attention import NativeAttention
from headrace.kernels.tpu_attention import TpuAttention
from kernels.ragged import NATIVE, SCALE, Bucket, Chunk, World

PAGE = 64
BUCKET = (72, 8)


def tolerance(kernel: AttentionKernel) -> float:
    """On a CPU all is computed in float32; the others round queries, and the GPU weights, to the pages' dtype."""
    return 3e-2 if kernel.dtype == jnp.bfloat16 and not isinstance(kernel, JaxAttention | NativeAttention) else 3e-6


def check(world: World, chunks: list[Chunk], bucket: Bucket, window: int | None = None) -> None:
    """Each token attends as in float64, the step's keys and values are in their places, all else is as before."""
    out, after = world.attend(chunks, bucket, window)
    if chunks:
        np.testing.assert_allclose(out, world.expected(chunks, window), atol=tolerance(world.kernel))
    after = world.rows(after)
    expected = world.rows(world.pool({s: before for s, before, _ in chunks}))
    for sequence, before, count in chunks:
        rows = world.stored(world.kv[sequence, before : before + count], after.shape[1:])
        expected[world.places(sequence)[before : before + count]] = rows.astype(world.dtype).view(after.dtype)
    bits = f"u{after.itemsize}"
    np.testing.assert_array_equal(after.view(bits), expected.view(bits))


def boundaries(kernel: type[Any], window: int | None) -> None:
    """Rows that begin and end before, at and behind the edge of a page, decodes before chunks, with padding or not."""
    world = World.make(jnp.float32, page_size=PAGE, length=3 * PAGE, kernel=kernel)
    check(world, [], BUCKET, window)  # padding alone
    check(world, [(0, 0, BUCKET[0])], BUCKET, window)
    check(world, [(5, PAGE - 1, PAGE + 2)], BUCKET, window)  # the end of a page, a page, the beginning of a third
    for edge in (PAGE - 1, PAGE, PAGE + 1):
        decodes = [(1, PAGE + edge, 1), (2, edge, 1), (0, 0, 1)]
        check(world, [*decodes, (4, 0, edge)], BUCKET, window)
        check(world, [*decodes, (3, edge, 5), (6, 2, PAGE - 9)], BUCKET, window)
        check(world, [(1, edge, 1), (2, 7, 0), (3, edge, 2), (4, edge, 0), (5, edge - 1, 2)], BUCKET, window)
    last = int(np.flatnonzero((world.table == world.num_pages - 1).any(-1))[0])
    first = PAGE * int(np.flatnonzero(world.table[last] == world.num_pages - 1)[0])
    for start, count in ((0, 1), (PAGE - 1, 1), (PAGE - 3, 3), (0, PAGE)):  # on the last page that there is
        check(world, [(last, first + start, count)], BUCKET, window)


@pytest.mark.parametrize("kernel", [JaxAttention, GpuAttention, NATIVE])
@pytest.mark.parametrize("window", [None, PAGE])
def test_x8_v3_written_inside_the_call(kernel: type[Any], window: int | None) -> None:
    boundaries(kernel, window)


@pytest.mark.parametrize("window", [None, PAGE])
def test_x8_v2_written_by_slices_before_the_call(window: int | None) -> None:
    boundaries(TpuAttention, window)


@pytest.mark.parametrize(
    ("kernel", "heads", "dim", "window"),
    [
        (GpuAttention, (9, 3), 64, 1),  # three heads share
        (GpuAttention, (6, 1), 20, 65),  # no power of two, and two programs for the six
        (TpuAttention, (9, 3), 100, 65),  # padded to four key/value heads of 128
    ],
)
def test_x8_heads_and_windows_in_bfloat16(
    kernel: type[Any], heads: tuple[int, int], dim: int, window: int | None
) -> None:
    world = World.make(jnp.bfloat16, page_size=PAGE, heads=heads, dim=dim, kernel=kernel)
    check(world, [(1, 159, 1), (2, 64, 1), (0, 63, 1), (3, 62, 3), (4, 0, 40)], BUCKET, window)
    check(world, [(s, 62 + s, 1) for s in range(5)], BUCKET, window)


@pytest.mark.parametrize("kernel", [GpuAttention, TpuAttention])
def test_x8_a_bucket_for_decodes_alone_and_one_head(kernel: type[Any]) -> None:
    world = World.make(jnp.float32, page_size=PAGE, heads=(1, 1), kernel=kernel)
    check(world, [(s, max(159 - 17 * s, 0), 1) for s in range(8)], (8, 8))
    check(world, [(s, PAGE + 1 - s, 1) for s in range(3)], (8, 8))


@pytest.mark.parametrize("window", [None, PAGE])
def test_x8_the_tpu_kernel_gives_what_its_own_reference_gives(window: int | None) -> None:
    world = World.make(jnp.float32, page_size=PAGE, length=3 * PAGE, kernel=TpuAttention)
    chunks = [(1, 130, 1), (2, 63, 1), (3, 62, 5), (4, 0, 40)]
    out, pages = world.attend(chunks, BUCKET, window)
    batch = jax.tree.map(np.asarray, world.batch(chunks, BUCKET))

    @jax.jit
    def reference(q: jax.Array, pages: jax.Array) -> jax.Array:
        lens, table, start = batch.seq_lens[:4], batch.page_table[batch.slots[:4]], batch.query_start[:5]
        options = {"sm_scale": SCALE, "sliding_window": window}
        return ref_ragged_paged_attention(q, pages, lens, table, start, batch.request_distribution[2:], **options)

    q = np.pad(world.inputs(chunks, BUCKET[0])[0], ((0, 0), (0, 0), (0, pages.shape[-1] - 16)))
    np.testing.assert_allclose(out, reference(q, np.nan_to_num(pages))[..., :16], atol=3e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("heads", [(9, 3), (8, 8), (8, 1)])
@pytest.mark.parametrize(("platform", "lowered"), [("gpu", "cuda"), ("tpu", "tpu")])
def test_the_kernel_of_a_platform_lowers_for_it(
    platform: str, lowered: str, heads: tuple[int, int], dtype: jnp.dtype
) -> None:
    kernel = attention_for(dtype, platform)
    world = World.make(dtype, page_size=16, heads=heads, dim=64)
    q, kv = world.inputs([], 64)
    pages = jax.eval_shape(lambda: kernel.make_pages(world.num_pages, 16, heads[1], 64))

    def run(q: jax.Array, kv: jax.Array, pages: jax.Array, batch: Any) -> Any:
        return kernel.attend(q, kv, pages, kernel.prepare(batch, 100), scale=SCALE)

    device = AbstractDevice("TPU v5 lite", 1, "tpu") if platform == "tpu" else None
    with use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        traced = jax.jit(run, donate_argnums=2).trace(q, kv, pages, world.batch([], (64, 8)))
        text = traced.lower(lowering_platforms=(lowered,)).as_text()
    assert text.count({"gpu": "xla.gpu.triton", "tpu": "tpu_custom_call"}[platform]) >= 1


def test_each_platform_has_its_kernel_and_plain_jax_runs_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(attention_for(jnp.float32, "cpu"), NativeAttention if native.available() else JaxAttention)
    assert isinstance(attention_for(jnp.float32, "cpu", page_size=8), JaxAttention)
    assert isinstance(attention_for(jnp.float32, "cpu", devices=2), JaxAttention)
    assert isinstance(attention_for(jnp.float32, "gpu"), GpuAttention)
    assert isinstance(attention_for(jnp.float32, "tpu", "pallas"), TpuAttention)
    for platform in ("cpu", "gpu", "tpu"):
        assert isinstance(attention_for(jnp.float32, platform, "jax"), JaxAttention)
    with pytest.raises(ConfigError, match="attention: there is no Pallas kernel for cpu; give auto or jax"):
        attention_for(jnp.float32, "cpu", "pallas")
    with pytest.raises(ConfigError, match="attention: the native kernel is for a CPU, not a gpu; give auto or jax"):
        attention_for(jnp.float32, "gpu", "native")
    with monkeypatch.context() as patch:
        patch.setattr(native, "available", lambda: False)
        patch.setattr(native, "reason", lambda: "native CPU kernels were not built")
        assert isinstance(attention_for(jnp.float32, "cpu"), JaxAttention)
        with pytest.raises(ConfigError, match="attention: native CPU kernels were not built; give auto or jax"):
            attention_for(jnp.float32, "cpu", "native")


@pytest.mark.parametrize(
    ("platform", "dtype", "heads", "dim", "shape", "storage"),
    [
        ("cpu", jnp.float32, 3, 64, (6, 64), "float32"),
        ("cpu", jnp.bfloat16, 3, 64, (6, 64), "uint16"),
        ("gpu", jnp.bfloat16, 3, 80, (6, 80), "bfloat16"),
        ("tpu", jnp.float32, 1, 64, (2, 128), "float32"),
        ("tpu", jnp.float32, 3, 128, (8, 128), "float32"),
        ("tpu", jnp.bfloat16, 1, 129, (2, 256), "bfloat16"),
        ("tpu", jnp.bfloat16, 4, 64, (8, 128), "bfloat16"),
        ("tpu", jnp.bfloat16, 5, 64, (16, 128), "bfloat16"),
        ("tpu", jnp.float32, 5, 64, (16, 128), "float32"),
    ],
)
def test_the_pool_is_laid_out_as_the_kernel_wants_it(
    platform: str, dtype: jnp.dtype, heads: int, dim: int, shape: tuple[int, int], storage: str
) -> None:
    kernel = attention_for(dtype, platform, "jax" if platform == "cpu" else "auto")
    pages = kernel.make_pages(3, 16, heads, dim)
    assert pages.shape == (3, 16, *shape)
    assert pages.dtype == storage
    assert not pages.astype(jnp.float32).any()
    assert page_bytes(kernel, 16, heads, dim) == pages.nbytes // 3


def test_the_tpu_kernel_says_what_it_cannot_do() -> None:
    with pytest.raises(ConfigError, match="dtype: the TPU attention kernel takes float32 and bfloat16, not float16"):
        TpuAttention(jnp.dtype(jnp.float16)).make_pages(3, 16, 2, 64)
    with pytest.raises(ConfigError, match="page_size: 24 does not divide 256"):
        TpuAttention(jnp.dtype(jnp.float32)).make_pages(3, 24, 2, 64)
    for dtype, kv_heads in ((jnp.bfloat16, 2), (jnp.float32, 1)):
        with pytest.raises(ConfigError, match=f"attention: the TPU kernel .* not {kv_heads} of 129 in .*; give jax"):
            TpuAttention(jnp.dtype(dtype)).make_pages(3, 16, kv_heads, 129)
    # 32 rows of 4,096 pages fill half of the scalar memory; a page more does not fit.
    kernel = TpuAttention(jnp.dtype(jnp.float32))
    batch = World.make(jnp.float32, sequences=1, length=16 * 4097, heads=(1, 1), dim=1).batch([], (32, 32))
    jax.eval_shape(lambda b: kernel.prepare(b, None), replace(batch, page_table=batch.page_table[:, :4096]))
    with pytest.raises(ConfigError, match=r"page_size: .* 32 rows, 4112 pages each.* larger page_size"):
        jax.eval_shape(lambda b: kernel.prepare(b, None), batch)
