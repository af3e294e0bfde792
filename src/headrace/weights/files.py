"""What every weight file offers, and the memory map that the readers share."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from headrace.errors import ModelError

# Elements converted at once. Dequantising takes up to some 20 bytes of temporaries per element, so a chunk stays
# within a core's cache (larger chunks are slower) and far below 16 MiB.
CHUNK_ELEMENTS = 1 << 15

# A page fault also maps cached pages around it, within the region that one page table covers, so pages are dropped by
# whole regions.
_FAULT_REGION = 2 << 20

PLAIN_DTYPES: dict[str, np.dtype[Any]] = {  # both formats use these names
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
TARGET_DTYPES = tuple(np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16))


@dataclass(frozen=True)
class TensorInfo:
    """What a weight file says about one tensor.

    Attributes:
        name: the tensor's name in the file.
        shape: row-major, as NumPy has it: a matrix is ``[out, in]``.
        dtype: the file's name of the element or block type, for example ``F32``, ``BF16`` or ``Q4_1``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


class TensorFile(Protocol):
    """A file, or a folder of files, of named tensors that are read one at a time."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its name."""
        ...

    def read_into(self, name: str, out: np.ndarray[Any, Any]) -> None:
        """Convert the whole tensor into ``out``, with little memory beyond it.

        Args:
            name: a key of ``tensors``.
            out: float32, float16 or bfloat16, C-contiguous, with as many elements as the tensor.

        Raises:
            KeyError: there is no such tensor.
            ValueError: ``out`` does not fit.
        """
        ...

    def read_rows_into(self, name: str, first: int, out: np.ndarray[Any, Any]) -> None:
        """Convert the rows from ``first`` on, as many as ``out`` [rows, ...] has; else as ``read_into``."""
        ...

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return the whole tensor as float32 in its own shape; raises KeyError if there is no such tensor."""
        ...


class MappedFile:
    """A read-only memory map whose pages leave the process's resident memory once they were read.

    Raises:
        ModelError: the file cannot be opened, is empty, or is the stand-in that Git LFS leaves.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelError(f"{path}: there is no such file") from None
        except ValueError:  # what mmap says of an empty file
            raise ModelError(f"{path}: the file is empty, download it again") from None
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
        self.size = len(self.map)
        self._bytes = np.frombuffer(self.map, np.uint8)
        if self.map[:24] == b"version https://git-lfs.":
            raise ModelError(f"{path}: is a Git LFS pointer instead of the file itself; fetch it with: git lfs pull")

    def convert(
        self,
        span: tuple[int, int],
        block: tuple[int, int],
        decode: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]],
        out: np.ndarray[Any, Any],
    ) -> None:
        """Decode a sequence of blocks into ``out``, a chunk at a time, and drop the pages that were read.

        Args:
            span: where the blocks start and stop in the file.
            block: how many elements a block holds, and in how many bytes.
            decode: turns the bytes of whole blocks into their elements.
            out: one dimension, one entry for each element.
        """
        elements, size = block
        blocks = CHUNK_ELEMENTS // elements
        for index, start in enumerate(range(*span, blocks * size)):
            stop = min(start + blocks * size, span[1])
            values = decode(self._bytes[start:stop])
            first = index * blocks * elements
            out[first : first + values.size] = values
            if stop // _FAULT_REGION > start // _FAULT_REGION:
                self.drop(start, stop)
        self.drop(*span)

    def copy(self, span: tuple[int, int]) -> np.ndarray[Any, Any]:
        """A copy of these bytes; the pages that were read are dropped."""
        stored = self._bytes[slice(*span)].copy()
        self.drop(*span)
        return stored

    def drop(self, start: int, stop: int) -> None:
        """Let the system take back the pages of these bytes; reading them again fetches them again."""
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            first = start - start % _FAULT_REGION
            last = min(stop + -stop % _FAULT_REGION, self.size)
            if first < last:  # an empty tensor may lie at the very end of the file
                self.map.madvise(mmap.MADV_DONTNEED, first, last - first)


def flat_target(info: TensorInfo, out: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return ``out`` as one dimension after checking that it takes this shape of the tensor; raises ValueError if
    not."""
    elements = math.prod(shape)
    if out.dtype not in TARGET_DTYPES:
        raise ValueError(f"{info.name} cannot be read into {out.dtype}, only into float32, float16 or bfloat16")
    if out.size != elements or not out.flags.c_contiguous:
        raise ValueError(f"{info.name} {shape} needs a C-contiguous array of {elements} elements, got {out.shape}")
    return out.reshape(-1)


def row_span(info: TensorInfo, span: tuple[int, int], first: int, count: int) -> tuple[int, int]:
    """Where these rows of a tensor start and stop, given where the tensor does; raises ValueError beyond its end."""
    if not 0 <= first <= first + count <= info.shape[0]:
        raise ValueError(f"{info.name} {info.shape} has no rows {first} to {first + count}")
    row_bytes = (span[1] - span[0]) // info.shape[0]
    return span[0] + first * row_bytes, span[0] + (first + count) * row_bytes
