"""Matrices of a model file, packed for the native CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from headrace.layers.block_formats import FORMATS
from headrace.layers.native import FORMAT_IDS, PANEL, NativeWeight, pack_int8, pack_rows, panel_bytes
from headrace.models.weights import Part
from headrace.native.loader import available

_UNIT = 32  # bytes that panels' places are counted in
GROUP = 32  # inputs that the kernels quantise together


def wanted(mesh: Mesh | None) -> bool:
    """Whether matrices are to be packed: for the CPU, where there are native kernels, and for one device."""
    return mesh is None and jax.default_backend() == "cpu" and available()


def known_blocks(types: Iterable[str]) -> bool:
    """Whether the kernels know every block format among the types of a file's tensors."""
    return all(kind in FORMAT_IDS for kind in types if kind in FORMATS)


def packable(forms: Sequence[str], parts: Sequence[Part]) -> bool:
    """Whether parts in these forms can be one packed matrix: all known, dense with dense only, and of whole panels each
    where the forms differ."""
    if not all(form in FORMAT_IDS for form in forms):
        return False
    dense = {form in ("bfloat16", "float32") for form in forms}
    return len(set(forms)) == 1 or (len(dense) == 1 and all(_whole_panels(part) for part in parts))


def _whole_panels(part: Part) -> bool:
    return bool(part.view) and part.view[2] % PANEL == 0 and part.copies == 1


def pack_parts(
    forms: Sequence[str],
    parts: Sequence[Part],
    rows: Sequence[Callable[[], np.ndarray]],
    columns: int,
    dtype: jnp.dtype,
    empty: Callable[[int], np.ndarray],
) -> NativeWeight:
    """The weight of NumPy arrays whose parts have these rows.

    Args:
        forms: of each part, such that they are `packable`.
        dtype: that the matrix is taken to have.
        rows: of each part: gives its rows [outputs, bytes or elements] in the order of the model.
        empty: makes an aligned array of so many bytes.
    """
    sizes = [panel_bytes(form, columns) for form in forms]
    if len(parts) > 1 and not all(map(_whole_panels, parts)):
        whole = _in_order(parts, [make() for make in rows])
        data = empty(-(-len(whole) // PANEL) * sizes[0])
        pack_rows(forms[0], whole, columns, data)
        return _weight(data, [(0, -(-len(whole) // PANEL), forms[0])], len(whole), columns, dtype)
    counts = [part.shape[0] for part in parts]
    panels = [-(-count // PANEL) for count in counts]
    starts = np.cumsum([0, *(n * size for n, size in zip(panels, sizes, strict=True))]).tolist()
    data = empty(starts[-1])
    for i, make in enumerate(rows):
        pack_rows(forms[i], make(), columns, data[starts[i] : starts[i + 1]])
    groups = parts[0].view[0] if parts[0].view else 1
    runs = [
        (starts[i] + group * panels[i] // groups * sizes[i], panels[i] // groups, forms[i])
        for group in range(groups)
        for i in range(len(parts))
    ]
    return _weight(data, runs, sum(counts), columns, dtype)


def pack_quantized(values: np.ndarray, scales: np.ndarray, empty: Callable[[int], np.ndarray]) -> NativeWeight:
    """The weight of int8 values [out, in], in a multiple of 32, with a float32 scale per output."""
    outputs, columns = values.shape
    size = panel_bytes("int8", columns)
    data = empty(-(-outputs // PANEL) * size)
    pack_int8(values, scales, data)
    return _weight(data, [(0, -(-outputs // PANEL), "int8")], outputs, columns, scales.dtype)


def paired(weight: NativeWeight) -> NativeWeight:
    """A gate matrix over an up matrix, to be multiplied together; as it is where their panels are not whole."""
    return replace(weight, paired=True) if weight.shape[0] % (2 * PANEL) == 0 else weight


def _in_order(parts: Sequence[Part], rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of the parts in the order of the whole weight."""
    runs = [
        np.repeat(each, part.copies, axis=0) if part.copies > 1 else each
        for part, each in zip(parts, rows, strict=True)
    ]
    groups = parts[0].view[0]
    grouped = [each.reshape(groups, -1, *each.shape[1:]) for each in runs]
    return np.concatenate(grouped, axis=1).reshape(-1, *rows[0].shape[1:])


def _weight(
    data: Any, runs: Sequence[tuple[int, int, str]], outputs: int, columns: int, dtype: jnp.dtype
) -> NativeWeight:
    """From runs of (first byte, panels, format)."""
    numbers = [number for start, panels, form in runs for number in (start // _UNIT, panels, FORMAT_IDS[form])]
    dense = {"bfloat16": jnp.bfloat16, "float32": jnp.float32}.get(runs[0][2])
    return NativeWeight(data if dense is None else data.view(dense), tuple(numbers), (outputs, columns), dtype)
