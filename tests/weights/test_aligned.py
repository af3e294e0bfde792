"""Memory that packed weights share."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from headrace.weights.aligned import Arena
from system_pages import in_large_pages, needs_large_pages

CHUNK = Arena._CHUNK
SIZES = [0, 1, 63, 64, 65, 4096, 1 << 20, CHUNK // 8 - 1, CHUNK // 8, CHUNK // 8 + 1, CHUNK // 4]


def test_arrays_are_aligned_and_apart_whoever_asks() -> None:
    arena = Arena()

    def fill(number: int) -> np.ndarray:
        array = arena.empty(SIZES[number % len(SIZES)])
        array[:] = number % 251
        return array

    with ThreadPoolExecutor(8) as pool:
        arrays = list(pool.map(fill, range(8 * len(SIZES))))  # more than one chunk's worth
    for number, array in enumerate(arrays):
        assert array.shape == (SIZES[number % len(SIZES)],)
        assert array.dtype == np.uint8
        assert array.ctypes.data % 64 == 0
        assert (array == number % 251).all()


def test_memory_is_freed_with_the_last_array_in_it() -> None:
    arena = Arena()
    first, second = arena.empty(1000), arena.empty(1000)
    memory = first.base
    while memory.base is not None:
        memory = memory.base
    chunk = weakref.ref(memory)
    del arena, memory, first
    assert chunk() is not None
    del second
    assert chunk() is None


@needs_large_pages
def test_small_arrays_are_in_large_pages_of_the_system() -> None:
    array = Arena().empty(1 << 20)
    assert in_large_pages(array.ctypes.data, array.nbytes)
