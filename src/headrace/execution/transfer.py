"""The two places where a step's data crosses between host and device, and the count of what did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from headrace.execution.spread import put_per_rank

try:
    from jax._src.interpreters import pxla

    _put: Any = pxla.batched_device_put
except (ImportError, AttributeError):  # a JAX that keeps it elsewhere; device_put does the same, more slowly
    _put = None


@dataclass
class TransferCounts:
    """Transfers between host and device; bytes are those of the arrays."""

    h2d_transfers: int = 0
    h2d_bytes: int = 0
    d2h_transfers: int = 0
    d2h_bytes: int = 0


class Transfers:
    """Moves arrays to the devices and back, explicitly, so that a transfer guard can refuse all else.

    Attributes:
        counts: what was moved so far.
    """

    def __init__(self, device: jax.Device, mesh: Mesh | None = None) -> None:
        """Takes the device, or the mesh instead."""
        self.counts = TransferCounts()
        self._mesh, self._device, self._sharding = mesh, device, SingleDeviceSharding(device)
        self._avals: dict[int, Any] = {}

    def to_device(self, array: np.ndarray) -> jax.Array:
        """Begins to move an int32 vector to the device, or each line [ranks, size] to the devices of its rank. It must
        not change until what uses it has run."""
        self.counts.h2d_transfers += 1
        self.counts.h2d_bytes += array.nbytes
        if self._mesh is not None:
            with jax.transfer_guard_host_to_device("allow"):  # JAX takes the callback's arrays for implicit ones
                return put_per_rank(array, self._mesh)
        if _put is None:
            return jax.device_put(array, self._sharding)  # type: ignore[no-any-return]
        aval = self._avals.get(array.size)
        if aval is None:
            aval = self._avals[array.size] = jax.core.ShapedArray(array.shape, array.dtype)
        # What device_put ends in, without the way there: that takes 0.2 ms when a step of XLA:CPU has emptied the
        # caches, as long as all the rest of a batch's preparation. The guard would take it for an implicit one.
        with jax.transfer_guard_host_to_device("allow"):
            return _put(aval, self._sharding, [array], [self._device])  # type: ignore[no-any-return]

    def to_host(self, array: jax.Array) -> np.ndarray:
        """Waits for an array and moves it to the host."""
        fetched: np.ndarray = jax.device_get(array)
        self.counts.d2h_transfers += 1
        self.counts.d2h_bytes += fetched.nbytes
        return fetched
