"""Matrices of a model file, packed for the native CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from headrace.layers.native import FORMAT_IDS, PANEL, NativeWeight, pack_int8, pack_rows, panel_bytes
from headrace.models.weights import Part
from headrace.native.library import available

_UNIT = 32  # bytes that panels' places are counted in


def wanted(mesh: Mesh | None) -> bool:
    """Whether matrices are to be packed: for the CPU, where there are native kernels, and for one device."""
    return mesh is None and jax.default_backend() == "cpu" and available()


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
    empty: Callable[[int], np.ndarray],
) -> NativeWeight:
    """The weight of NumPy arrays whose parts have these rows.

    Args:
        forms: of each part, such that they are `packable`.
        rows: of each part: gives its rows [outputs, bytes or elements] in the order of the model.
        empty: makes an aligned array of so many bytes.
    """
    sizes = [panel_bytes(form, columns) for form in forms]
    if len(parts) > 1 and not all(map(_whole_panels, parts)):
        whole = _in_order(parts, [make() for make in rows])
        data = empty(-(-len(whole) // PANEL) * sizes[0])
        pack_rows(forms[0], whole, columns, data)
        return _weight(data, _places(0, len(whole), sizes[0], forms[0]), len(whole), columns)
    counts = [part.shape[0] for part in parts]
    panels = [-(-count // PANEL) for count in counts]
    starts = np.cumsum([0, *(n * size for n, size in zip(panels, sizes, strict=True))])
    data = empty(int(starts[-1]))
    for i, make in enumerate(rows):
        pack_rows(forms[i], make(), columns, data[starts[i] : starts[i + 1]])
    tables = [_places(int(starts[i]), counts[i], sizes[i], forms[i]) for i in range(len(parts))]
    return _weight(data, _in_order(parts, tables, PANEL), sum(counts), columns)


def pack_quantized(values: np.ndarray, scales: np.ndarray, empty: Callable[[int], np.ndarray]) -> NativeWeight:
    """The weight of int8 values [out, in] with a float32 scale per output."""
    outputs, columns = values.shape
    size = panel_bytes("int8", columns)
    data = empty(-(-outputs // PANEL) * size)
    pack_int8(values, scales, data)
    return _weight(data, _places(0, outputs, size, "int8"), outputs, columns)


def paired(weight: NativeWeight) -> NativeWeight:
    """A gate matrix over an up matrix, with their panels side by side; as it is where their panels are not whole."""
    if weight.shape[0] % (2 * PANEL):
        return weight
    table: Any = np.ascontiguousarray(weight.table.reshape(2, -1, 2).swapaxes(0, 1)).reshape(-1, 2)
    return NativeWeight(weight.data, table, weight.shape, paired=True)


def _in_order(parts: Sequence[Part], rows: Sequence[np.ndarray], per: int = 1) -> np.ndarray:
    """Rows of the parts (or of their panels of `per` rows) in the order of the whole weight."""
    if len(parts) == 1 and not parts[0].view:
        return rows[0]
    runs = [
        np.repeat(each, part.copies, axis=0) if part.copies > 1 else each
        for part, each in zip(parts, rows, strict=True)
    ]
    groups = parts[0].view[0]
    grouped = [each.reshape(groups, -1, *each.shape[1:]) for each in runs]
    return np.concatenate(grouped, axis=1).reshape(-1, *rows[0].shape[1:])


def _places(start: int, outputs: int, size: int, form: str) -> np.ndarray:
    """Table [panels, 2] of panels that lie one after the other."""
    first = start // _UNIT + np.arange(-(-outputs // PANEL), dtype=np.int64) * (size // _UNIT)
    return np.stack([first, np.full_like(first, FORMAT_IDS[form])], axis=1).astype(np.int32)


def _weight(data: Any, table: Any, outputs: int, columns: int) -> NativeWeight:
    return NativeWeight(data, table, (outputs, columns))
