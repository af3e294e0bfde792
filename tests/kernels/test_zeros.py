"""The native kernel's pages, which are zeros and take no memory until something is written there."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace import native
from headrace.kernels.native_attention import NativeAttention
from system_pages import in_large_pages, needs_large_pages

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernels are not built")

KERNEL = NativeAttention(jnp.dtype(jnp.bfloat16))


@pytest.mark.parametrize("num_pages", [1, 2, 3, 100, 2049])
def test_pages_are_zeros_in_memory_that_had_something_else(num_pages: int) -> None:
    fill = jax.jit(lambda pages: jnp.full_like(pages, 7), donate_argnums=0)
    for _ in range(3):
        pages = KERNEL.make_pages(num_pages, 16, 2, 32)
        assert pages.shape == (num_pages, 2, 2, 16, 32)
        assert not np.asarray(pages).any()
        assert (np.asarray(fill(pages)) == 7).all()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts resident pages as Linux shows them")
def test_they_take_no_memory_until_they_are_written() -> None:
    KERNEL.make_pages(1, 16, 2, 32)
    before = _resident_bytes()
    pages = KERNEL.make_pages(1 << 16, 16, 2, 32)
    pages.block_until_ready()
    assert pages.nbytes == 1 << 28
    assert _resident_bytes() - before < 1 << 25
    assert not pages[::4099].any()


@needs_large_pages
def test_they_are_in_large_pages_of_the_system() -> None:
    pages = KERNEL.make_pages(4096, 16, 2, 32)
    assert in_large_pages(pages.unsafe_buffer_pointer(), pages.nbytes)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
