"""What lives on the device from step to step: one pytree, donated to each step and replaced by its result."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from headrace.kernels.attention import AttentionKernel
from headrace.models.spec import DecoderSpec


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceState:
    """KV pages and per-slot state.

    Attributes:
        pages: one pool per layer, [pages, page_size, 2 * kv_heads, head_dim] in the kernel's storage dtype.
        page_table: [slots, pages per sequence] int32; entries past a sequence's pages are stale.
        page_tokens: [pages, page_size] int32, the tokens whose keys and values the pages hold.
        last_tokens: [slots] int32, the token sampled last for each slot.
    """

    pages: tuple[jax.Array, ...]
    page_table: jax.Array
    page_tokens: jax.Array
    last_tokens: jax.Array


def new_state(
    spec: DecoderSpec, kernel: AttentionKernel, num_pages: int, page_size: int, num_slots: int, max_model_len: int
) -> DeviceState:
    """An empty state."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # filling a large pool takes a core half a second
        make = pool.submit
        pages = [make(kernel.make_pages, num_pages, page_size, spec.num_kv_heads, spec.head_dim) for _ in spec.layers]
    table = jnp.zeros((num_slots, -(-max_model_len // page_size)), jnp.int32)
    tokens, last = jnp.zeros((num_pages, page_size), jnp.int32), jnp.zeros(num_slots, jnp.int32)
    return DeviceState(tuple(page.result() for page in pages), table, tokens, last)
