"""Weight leaves of every kind with random contents."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from headrace.layers.block_formats import FORMATS, split_fields
from headrace.layers.blocks import BlockWeight
from headrace.layers.fused import FusedWeight
from headrace.layers.int8 import Int8Weight, quantize_rows
from headrace.layers.linear import DenseWeight
from weights.gguf_files import small_blocks

KINDS = ("float32", "bfloat16", "int8", *FORMATS, "fused")


def block_weight(name: str, out: int, columns: int, dtype: Any = "float32") -> tuple[BlockWeight, np.ndarray]:
    """A leaf and the float32 matrix that it stands for, by the ``gguf`` package."""
    stored = small_blocks(name, out, columns)
    fields = {field: jnp.asarray(rows) for field, rows in split_fields(name, stored).items()}
    return BlockWeight(fields, name, jnp.dtype(dtype)), dequantize(stored, GGMLQuantizationType[name])


def int8_weight(out: int, columns: int, dtype: Any = "float32") -> tuple[Int8Weight, np.ndarray]:
    """A leaf and the float32 matrix that it stands for."""
    rows = np.random.default_rng(5).normal(size=(out, columns)).astype(np.float32)
    array, scale = quantize_rows(rows)
    leaf = Int8Weight(jnp.asarray(array), jnp.asarray(scale), jnp.dtype(dtype))
    return leaf, array.astype(np.float32) * scale[:, None]


def leaf(kind: str, out: int, columns: int, dtype: Any = "float32") -> Any:
    """A leaf [out, columns] of one of `KINDS`; products with the quantised ones are in `dtype`."""
    if kind == "int8":
        return int8_weight(out, columns, dtype)[0]
    if kind == "fused":
        parts = tuple(block_weight(name, out // 3, columns, dtype)[0] for name in ("Q4_0", "Q6_K", "Q8_0"))
        return FusedWeight(parts, (1, 1, 1), out // 3)
    if kind in FORMATS:
        return block_weight(kind, out, columns, dtype)[0]
    rows = np.random.default_rng(5).normal(size=(out, columns))
    return DenseWeight(jnp.asarray(rows, jnp.dtype(kind)))
