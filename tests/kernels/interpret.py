"""Pallas kernels for GPU and TPU run on the CPU, by Pallas' interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from jax._src.literals import TypedInt
from jax.experimental.pallas import tpu as pltpu


@contextmanager
def interpreted() -> Iterator[None]:
    """Every Pallas kernel that is traced in here is one for the CPU.

    It is the interpreter that turns a kernel into XLA; the one that simulates a TPU's memory cannot reshape a view of
    it, which JAX's ragged paged attention does. This one asks an index that is a plain number for its shape when a
    store has a mask (jax 0.10.2), so numbers get one.
    """
    with mock.patch.object(TypedInt, "shape", (), create=True), pltpu.force_tpu_interpret_mode(True):
        yield
