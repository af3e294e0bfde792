"""Matrices packed for the native CPU kernels, which multiply them together with what stands around the product."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from headrace.native.loader import handle

PANEL = 16  # outputs packed together

# Formats by the numbers that native/formats.h gives them. The first are block formats of GGUF.
FORMAT_IDS = {
    name: number
    for number, name in enumerate(
        ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "int8", "bfloat16", "float32")
    )
}

Gate = Literal["silu", "gelu_tanh"]
_ACTIVATIONS: dict[Gate | None, int] = {None: 0, "silu": 1, "gelu_tanh": 2}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NativeWeight:
    """A matrix [out, in] as panels of 16 outputs each; native/formats.h says how they are laid out.

    Attributes:
        array: the panels; uint8, of dense matrices bfloat16 or float32.
        runs: panels in the order of the outputs, as runs of panels that lie one after the other: for each run where it
            begins in units of 32 bytes, how many panels it has, and their format; static.
        shape: (out, in); static.
        dtype: the floating-point dtype that the matrix is taken to have; static.
        paired: the first half of the panels is a gate matrix, the second the up matrix that belongs to it; static.
    """

    array: jax.Array
    runs: tuple[int, ...] = field(metadata={"static": True})
    shape: tuple[int, int] = field(metadata={"static": True})
    dtype: jnp.dtype = field(metadata={"static": True})
    paired: bool = field(default=False, metadata={"static": True})

    def matmul(self, x: jax.Array) -> jax.Array:
        """See `WeightLeaf.matmul`."""
        return self.product(x, jnp.full(1, x.shape[0], jnp.int32))

    def product(
        self,
        x: jax.Array,
        num_rows: jax.Array,
        *,
        norm: jax.Array | None = None,
        bias: jax.Array | None = None,
        gate: Gate | None = None,
        post_norm: jax.Array | None = None,
        residual: jax.Array | None = None,
        eps: float = 0.0,
    ) -> jax.Array:
        """The matrix times the RMS norm of x, and what comes after, in one call.

        Of quantised matrices the rows of x are rounded to 8 bits, with a shift for each 16 numbers. A row's bits depend
        on nothing but the row.

        Args:
            x: [rows, in] float32.
            num_rows: [1] int32, rows that are not padding; the result of padding has no meaning.
            norm: [in] float32, weight of the norm.
            bias: [out] float32.
            gate: of a paired matrix: this activation of the gate's outputs, times the up matrix's.
            post_norm: [out] float32, weight of a norm of the result, before the residual.
            residual: [rows, out] float32, added last.
            eps: of the norms.

        Returns:
            [rows, out] float32, with a gate [rows, out / 2].
        """
        assert self.paired or gate is None
        assert bias is None or gate is None
        assert post_norm is None or residual is not None
        outputs, columns = self.shape
        width = outputs if gate is None else outputs // 2
        none = jnp.zeros(0, jnp.float32)
        optional = (none if each is None else each for each in (norm, bias, residual, post_norm))
        call = jax.ffi.ffi_call("headrace_linear", jax.ShapeDtypeStruct((x.shape[0], width), jnp.float32))
        y: jax.Array = call(
            x.astype(jnp.float32),
            self.array,
            *optional,
            num_rows,
            runs=self._runs,
            outputs=np.int64(outputs),
            columns=np.int64(columns),
            activation=np.int64(_ACTIVATIONS[gate]),
            eps=np.float32(eps),
        )
        return y

    def rows(self, index: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
        """Rows by index [n] -> [n, in] float32, of which the first num_rows [1] are worked out; None is all."""
        if num_rows is None:
            num_rows = jnp.full(1, index.shape[0], jnp.int32)
        form = jax.ShapeDtypeStruct((index.shape[0], self.shape[1]), jnp.float32)
        call = jax.ffi.ffi_call("headrace_embed", form)
        y: jax.Array = call(index, self.array, num_rows, runs=self._runs, outputs=np.int64(self.shape[0]))
        return y

    @property
    def _runs(self) -> np.ndarray:
        return np.array(self.runs, np.int64)


def feed_forward(
    h: jax.Array,
    x: jax.Array,
    o: NativeWeight,
    gate_up: NativeWeight,
    down: NativeWeight,
    num_rows: jax.Array,
    *,
    o_bias: jax.Array | None,
    o_post_norm: jax.Array | None,
    norm: jax.Array,
    post_norm: jax.Array | None,
    gate: Gate,
    eps: float,
) -> jax.Array:
    """What follows the attention of a layer, in one call, with the bits of three; see `product.feed_forward`.

    Args:
        h: [rows, heads * head_dim] float32; x: [rows, hidden] float32.
        num_rows: [1] int32, rows that are not padding; the result of padding has no meaning.

    Returns:
        [rows, hidden] float32.
    """
    none = jnp.zeros(0, jnp.float32)
    first, second = (none if each is None else each for each in (o_bias, o_post_norm))
    call = jax.ffi.ffi_call("headrace_feed_forward", jax.ShapeDtypeStruct(x.shape, jnp.float32))
    arrays = h, x, o.array, first, second, norm, gate_up.array, down.array, none if post_norm is None else post_norm
    y: jax.Array = call(
        *arrays,
        num_rows,
        o_runs=o._runs,
        gate_up_runs=gate_up._runs,
        down_runs=down._runs,
        inner=np.int64(down.shape[1]),
        activation=np.int64(_ACTIVATIONS[gate]),
        eps=np.float32(eps),
    )
    return y


def panel_bytes(form: str, columns: int) -> int:
    """Bytes of a panel of 16 outputs in this format; 0 where the columns do not fill whole blocks."""
    function = handle().headrace_panel_bytes
    function.restype = ctypes.c_int64
    size: int = function(FORMAT_IDS[form], ctypes.c_int64(columns))
    return size


def pack_rows(form: str, rows: np.ndarray, columns: int, out: np.ndarray) -> None:
    """Packs rows of a matrix.

    Args:
        form: a block format of GGUF; "bfloat16" or "float32".
        rows: [outputs, bytes of a row] of any dtype, as a GGUF file has them, or the elements of a dense matrix.
        columns: elements of a row.
        out: [panels * panel_bytes] uint8, filled.
    """
    rows = np.ascontiguousarray(rows)
    outputs = len(rows)
    assert out.nbytes == -(-outputs // PANEL) * panel_bytes(form, columns)
    _call("headrace_pack_rows", FORMAT_IDS[form], rows, outputs, columns, out)


def pack_int8(values: np.ndarray, scales: np.ndarray, out: np.ndarray) -> None:
    """The same for values [outputs, columns] int8 with scales [outputs] float32."""
    values, scales = np.ascontiguousarray(values), np.ascontiguousarray(scales)
    outputs, columns = values.shape
    assert out.nbytes == -(-outputs // PANEL) * panel_bytes("int8", columns)
    _call("headrace_pack_int8", values, scales, outputs, columns, out)


def _call(name: str, *arguments: np.ndarray | int) -> None:
    getattr(handle(), name)(
        *(
            ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a) if i else ctypes.c_int(a)
            for i, a in enumerate(arguments)
        )
    )
