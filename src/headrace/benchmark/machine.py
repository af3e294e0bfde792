"""What a CPU can do at most: read memory, and multiply and add.

Where there are native kernels, the probes are loops of their instruction set over memory and over registers
(`native/probe.h`), and products that XLA computes are held against XLA's own product of large matrices. Without the
kernels memory is read by NumPy's maximum.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from headrace import native
from headrace.layers.linear import dot
from headrace.native.loader import handle

_RUNS = 6
_LEAST_BYTES, _CACHES = 256 << 20, 16  # of what is read: so much, and so many times the last level cache
_LEAST_SECONDS = 0.01  # of a run
_XLA_SIZE = 2048  # rows and columns of its matrices
_XLA = "XLA "


@dataclass(frozen=True)
class Rate:
    """What one thread does in a second, and all together.

    Attributes:
        one: None where one thread cannot be had alone.
    """

    one: float | None
    all: float


@dataclass(frozen=True)
class Machine:
    """The limits of this machine.

    Attributes:
        threads: that this process may run at once.
        last_level_cache: its bytes; None where the system does not tell.
        instruction_set: of the native kernels; empty where there are none.
        bandwidth: bytes read from memory.
        operations: multiply-adds by their kind: "int8", "bfloat16" and "float32" of the native kernels' instructions,
            "XLA float32" or another dtype of XLA's matrix product.
    """

    threads: int
    last_level_cache: int | None
    instruction_set: str
    bandwidth: Rate
    operations: dict[str, Rate]

    def best(self, other: Machine) -> Machine:
        """The higher limits of two measurements: what is in the way of one slows it down, and nothing speeds it up."""
        operations = {kind: _higher(rate, other.operations[kind]) for kind, rate in self.operations.items()}
        bandwidth = _higher(self.bandwidth, other.bandwidth)
        return Machine(self.threads, self.last_level_cache, self.instruction_set, bandwidth, operations)


def _higher(a: Rate, b: Rate) -> Rate:
    return Rate(None if a.one is None or b.one is None else max(a.one, b.one), max(a.all, b.all))


def probe(kinds: Iterable[str]) -> Machine:
    """Measures this machine, a second or so; each rate is the best of some runs.

    Args:
        kinds: of the multiply-adds to measure.
    """
    threads, cache = _threads(), last_level_cache()
    return Machine(
        threads,
        cache,
        native.isa(),
        _bandwidth(threads, cache),
        {kind: _xla_rate(kind) if kind.startswith(_XLA) else _native_rate(kind, threads) for kind in sorted(kinds)},
    )


def kind_of_xla(dtype: jnp.dtype) -> str:
    """The kind of XLA's products in this dtype."""
    return f"{_XLA}{dtype}"


def last_level_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Bytes of the largest cache that the first processor has, as Linux tells; None elsewhere."""
    sizes = [file.read_text().strip() for file in folder.glob("index*/size")]
    return max((int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes), default=None)


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bandwidth(threads: int, cache: int | None) -> Rate:
    size = max(_LEAST_BYTES, _CACHES * (cache or 0))
    size = min(size, psutil.virtual_memory().available // 8)
    data = np.ones(size // 4, np.int32)  # written, so that there is memory behind it
    return _rates(lambda count: [partial(_read, part) for part in np.array_split(data, count)], threads)


def _read(data: np.ndarray) -> int:
    if not native.available():
        np.maximum.reduce(data)
        return data.nbytes
    return _call("headrace_probe_read", ctypes.c_void_p(data.ctypes.data), ctypes.c_int64(data.nbytes))


def _native_rate(kind: str, threads: int) -> Rate:
    names = {"int8": "dot", "float32": "fma", "bfloat16": "dot_bfloat"}
    function = f"headrace_probe_{names[kind]}"
    count, seconds = 1 << 16, 0.0
    while seconds < _LEAST_SECONDS:
        count, begin = 2 * count, time.perf_counter()
        _call(function, ctypes.c_int64(count))
        seconds = time.perf_counter() - begin
    work = partial(_call, function, ctypes.c_int64(count))
    return _rates(lambda threads: [work] * threads, threads)


def _call(name: str, *arguments: ctypes.c_void_p | ctypes.c_int64) -> int:
    function = getattr(handle(), name)
    function.restype = ctypes.c_int64
    done: int = function(*arguments)
    return done


def _rates(work: Callable[[int], Sequence[Callable[[], int]]], threads: int) -> Rate:
    """Of one thread and of all. `work` gives as many pieces as there are threads, each of which tells what it did."""
    return Rate(_rate(work(1)), _rate(work(threads)))


def _rate(work: Sequence[Callable[[], int]]) -> float:
    best = 0.0
    with ThreadPoolExecutor(len(work)) as pool:
        for _ in range(_RUNS):
            begin = time.perf_counter()
            done = sum(pool.map(lambda piece: piece(), work))  # without Python's lock, in native code or NumPy's
            best = max(best, done / (time.perf_counter() - begin))
    return best


def _xla_rate(kind: str) -> Rate:
    matrix = jnp.ones((_XLA_SIZE, _XLA_SIZE), kind.removeprefix(_XLA))
    product = jax.jit(lambda x: dot(x, x, jnp.float32))

    def work() -> int:
        product(matrix).block_until_ready()
        return _XLA_SIZE**3

    work()  # compiles
    return Rate(None, _rate([work]))
