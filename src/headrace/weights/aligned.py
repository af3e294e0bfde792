"""Memory for weights, at addresses that XLA:CPU takes over without a copy."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np

_ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: jnp.dtype) -> np.ndarray:
    """An uninitialised array that XLA:CPU can take over without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return raw[offset : offset + size].view(dtype).reshape(shape)


class Arena:
    """Arrays out of a few large ones, for which NumPy asks the system for large pages.

    A decode step reads all matrices; in arrays of their own most would be too small for a page of 2 MB. The memory is
    freed with the last array that lies in it.
    """

    _CHUNK = 64 << 20  # bytes; what is never written to takes no memory

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = np.empty(0, np.uint8)

    def empty(self, size: int) -> np.ndarray:
        """An uninitialised array [size] uint8; several threads may ask at once."""
        step = -(-size // _ALIGNMENT) * _ALIGNMENT
        if step > self._CHUNK // 8:  # large enough by itself
            return aligned_empty((size,), jnp.dtype(jnp.uint8))
        with self._lock:
            if step >= len(self._rest):  # also for nothing, which must be aligned too
                self._rest = aligned_empty((self._CHUNK,), jnp.dtype(jnp.uint8))
            taken, self._rest = self._rest[:size], self._rest[step:]
        return taken
