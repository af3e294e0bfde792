"""The block formats of GGUF: where the fields of a block lie, and what values they stand for.

A block holds 32 or 256 consecutive elements of a row. Decoding gives the elements in planes: all that come from the
low halves of the bytes, then all from the high halves, and so on. A plane is a plain loop over bytes, which XLA:CPU
vectorises; putting the elements of a row in order is not, so products leave them in planes (`layers/blocks.py`).

The formulas are those of ggml's reference, operation by operation, so values have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

Fields = Mapping[str, jax.Array]  # each [rows, blocks, count]
Planes = tuple[jax.Array, ...]  # each [rows, in / planes] float32


@dataclass(frozen=True)
class BlockFormat:
    """How a block is stored and decoded.

    Attributes:
        elements: per block.
        fields: name -> (dtype, count), in the order of their bytes.
        planes, inner: columns seen as [in / (planes * inner), planes, inner] have plane p at [:, p].
        decode: fields -> planes.
    """

    elements: int
    fields: Mapping[str, tuple[str, int]]
    planes: int
    inner: int
    decode: Callable[[Fields], Planes]


def split_fields(name: str, stored: np.ndarray) -> dict[str, np.ndarray]:
    """The bytes of whole blocks [rows, bytes] uint8, as a file has them -> each field [rows, blocks * count].

    A field of every block in one array: aligned for whoever reads it, and of the same rows and columns as the matrix.
    """
    fields = FORMATS[name].fields
    record = np.dtype([(field, dtype, (count,)) for field, (dtype, count) in fields.items()])
    blocks = stored.view(record)
    return {field: np.ascontiguousarray(blocks[field]).reshape(len(stored), -1) for field in fields}


def _float(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x & 15, x >> 4


def _flat(planes: tuple[jax.Array, ...]) -> Planes:
    return tuple(plane.reshape(plane.shape[0], -1) for plane in planes)


def _q4_0(f: Fields) -> Planes:
    scale = _float(f["scale"])
    return _flat(tuple(scale * _float(q.astype(jnp.int8) - 8) for q in _halves(f["quants"])))


def _q4_1(f: Fields) -> Planes:
    scale, least = _float(f["scale"]), _float(f["min"])
    return _flat(tuple(scale * _float(q) + least for q in _halves(f["quants"])))


def _five_bits(f: Fields) -> tuple[jax.Array, jax.Array]:
    """Bit i of `high` is the fifth bit of element i."""
    bits = jnp.arange(16, dtype=jnp.uint32)
    low, high = _halves(f["quants"])
    fifth = [((f["high"] >> (bits + first)) & 1).astype(jnp.uint8) << 4 for first in (0, 16)]
    return low | fifth[0], high | fifth[1]


def _q5_0(f: Fields) -> Planes:
    scale = _float(f["scale"])
    return _flat(tuple(scale * _float(q.astype(jnp.int8) - 16) for q in _five_bits(f)))


def _q5_1(f: Fields) -> Planes:
    scale, least = _float(f["scale"]), _float(f["min"])
    return _flat(tuple(scale * _float(q) + least for q in _five_bits(f)))


def _q8_0(f: Fields) -> Planes:
    return _flat((_float(f["scale"]) * _float(f["quants"]),))


def _group_scales(f: Fields) -> tuple[jax.Array, jax.Array]:
    """Scale and minimum [rows, blocks, 8] of the groups of 32 elements, 6 bits each in 12 bytes."""
    packed = f["scales"]
    a, b, c = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = jnp.concatenate([a & 0x3F, (c & 0x0F) | ((a >> 2) & 0x30)], -1)
    least = jnp.concatenate([b & 0x3F, (c >> 4) | ((b >> 2) & 0x30)], -1)
    # Without the barrier XLA unpacks them anew for every element.
    whole = _float(f["scale"]) * _float(scale), _float(f["min"]) * _float(least)
    both: tuple[jax.Array, jax.Array] = jax.lax.optimization_barrier(whole)
    return both


def _groups_of_32(f: Fields, quants: tuple[jax.Array, jax.Array]) -> Planes:
    """Groups 0, 2, 4, 6 are in the low halves, groups 1, 3, 5, 7 in the high ones; quants [rows, blocks, 4, 32]."""
    scale, least = _group_scales(f)
    return _flat(
        tuple(scale[..., p::2, None] * _float(q) - least[..., p::2, None] for p, q in enumerate(quants)),
    )


def _q4_k(f: Fields) -> Planes:
    return _groups_of_32(f, _halves(_chunks(f["quants"], 4)))


def _q5_k(f: Fields) -> Planes:
    low, high = _halves(_chunks(f["quants"], 4))
    group = jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None]
    fifth = [((f["high"][..., None, :] >> (group + p)) & 1) << 4 for p in (0, 1)]
    return _groups_of_32(f, (low | fifth[0], high | fifth[1]))


def _q6_k(f: Fields) -> Planes:
    """Two halves of 128 elements; in each, 64 come from the low halves of the bytes and 64 from the high ones."""
    scale = _float(f["scale"]) * _float(f["scales"])
    scale = jax.lax.optimization_barrier(scale.reshape(*scale.shape[:2], 2, 2, 4, 1))
    shift = jnp.array([[0], [2]], jnp.uint8)
    planes = []
    for p, q in enumerate(_halves(_chunks(f["quants"], 2))):
        top = (_chunks(f["high"], 2)[..., None, :] >> (shift + 4 * p)) & 3
        value = (q | (top.reshape(q.shape) << 4)).astype(jnp.int8) - 32
        planes.append(scale[..., p, :, :] * _float(value.reshape(*q.shape[:3], 4, 16)))
    return _flat(tuple(planes))


def _q2_k(f: Fields) -> Planes:
    """Two halves of 128 elements, in four planes of 2 bits; a scale and a minimum of 4 bits each per 16 elements."""
    least, scale = (_float(part) for part in (f["scales"] >> 4, f["scales"] & 15))
    scale, least = jax.lax.optimization_barrier(
        tuple(_float(f[name]) * part for name, part in (("scale", scale), ("min", least)))
    )
    planes = []
    for p in range(4):
        q = _float((_chunks(f["quants"], 2) >> 2 * p) & 3)
        planes.append(_sixteens(scale, p) * q.reshape(*q.shape[:3], 2, 16) - _sixteens(least, p))
    return _flat(tuple(planes))


def _q3_k(f: Fields) -> Planes:
    """As Q2_K, with a third bit in `mask` and signed scales of 6 bits."""
    packed = f["scales"]
    low = jnp.concatenate(_halves(packed[..., :8]), -1)
    high = jnp.concatenate([packed[..., 8:] >> shift for shift in (0, 2, 4, 6)], -1) & 3
    scale = _float(f["scale"]) * _float((low | (high << 4)).astype(jnp.int8) - 32)
    scale = jax.lax.optimization_barrier(scale)
    half = jnp.array([[0], [4]], jnp.uint8)
    planes = []
    for p in range(4):
        q = ((_chunks(f["quants"], 2) >> 2 * p) & 3).astype(jnp.int8)
        absent = ((f["mask"][..., None, :] >> (half + p)) & 1) ^ 1
        value = _float(q - (absent << 2).astype(jnp.int8))
        planes.append(_sixteens(scale, p) * value.reshape(*q.shape[:3], 2, 16))
    return _flat(tuple(planes))


def _sixteens(x: jax.Array, plane: int) -> jax.Array:
    """What 16 elements each have in common [rows, blocks, 16] -> that of one of four planes [rows, blocks, 2, 2, 1]."""
    return x.reshape(*x.shape[:2], 2, 4, 2, 1)[..., plane, :, :]


def _iq4_nl(f: Fields) -> Planes:
    values = jnp.array(_IQ4_VALUES, jnp.float32)
    return _flat(tuple(_float(f["scale"]) * values[q] for q in _halves(f["quants"])))


def _chunks(x: jax.Array, count: int) -> jax.Array:
    """[rows, blocks, n] -> [rows, blocks, count, n / count]."""
    return x.reshape(*x.shape[:2], count, -1)


_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_SCALE, _MIN = {"scale": ("<f2", 1)}, {"min": ("<f2", 1)}
_K_HEAD = {**_SCALE, **_MIN, "scales": ("u1", 12)}

FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, {**_SCALE, "quants": ("u1", 16)}, 2, 16, _q4_0),
    "Q4_1": BlockFormat(32, {**_SCALE, **_MIN, "quants": ("u1", 16)}, 2, 16, _q4_1),
    "Q5_0": BlockFormat(32, {**_SCALE, "high": ("<u4", 1), "quants": ("u1", 16)}, 2, 16, _q5_0),
    "Q5_1": BlockFormat(32, {**_SCALE, **_MIN, "high": ("<u4", 1), "quants": ("u1", 16)}, 2, 16, _q5_1),
    "Q8_0": BlockFormat(32, {**_SCALE, "quants": ("i1", 32)}, 1, 32, _q8_0),
    "IQ4_NL": BlockFormat(32, {**_SCALE, "quants": ("u1", 16)}, 2, 16, _iq4_nl),
    "Q2_K": BlockFormat(256, {"scales": ("u1", 16), "quants": ("u1", 64), **_SCALE, **_MIN}, 4, 32, _q2_k),
    "Q3_K": BlockFormat(256, {"mask": ("u1", 32), "quants": ("u1", 64), "scales": ("u1", 12), **_SCALE}, 4, 32, _q3_k),
    "Q4_K": BlockFormat(256, {**_K_HEAD, "quants": ("u1", 128)}, 2, 32, _q4_k),
    "Q5_K": BlockFormat(256, {**_K_HEAD, "high": ("u1", 32), "quants": ("u1", 128)}, 2, 32, _q5_k),
    "Q6_K": BlockFormat(256, {"quants": ("u1", 128), "high": ("u1", 64), "scales": ("i1", 16), **_SCALE}, 2, 64, _q6_k),
}
