"""The header of a GGUF file: metadata and tensor descriptions, parsed in one pass over the memory map.

The ``gguf`` package has a reader too, but it builds an array for every string: it takes 2 s to open a small model and
10 s for one with 262,144 tokens. This one takes about a hundredth of that. The package's constants are used.

Nothing in the file is believed before it was compared with what is left of the file, so a damaged length or count ends
in an error rather than in an allocation or a long loop.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from headrace.errors import ModelError
from headrace.weights.files import MappedFile, TensorInfo

SUPPORTED_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)

_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {  # value type -> little-endian NumPy dtype
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

# The least that one entry takes, to judge a count before looping over it.
_MIN_STRING = 8
_MIN_PAIR = 8 + 4 + 1
_MIN_TENSOR = 8 + 4 + 4 + 8

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Header:
    """What stands before the tensor data.

    Attributes:
        metadata: every key with its value.
        tensors: every tensor by its name.
        spans: where each tensor's bytes start and stop in the file.
        data_start: where the header ends and the tensor data start.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    spans: Mapping[str, tuple[int, int]]
    data_start: int


def parse_header(path: Path, file: MappedFile) -> Header:
    """Read the header of a GGUF file, checked against the file's size; raises ModelError where it is malformed."""
    cursor = _Cursor(path, file)
    tensor_count, pair_count = _read_preamble(cursor)
    metadata: dict[str, Any] = {}
    cursor.check_count(pair_count, _MIN_PAIR, "metadata entries")
    for _ in range(pair_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise cursor.error(f"the metadata key {key!r} occurs twice")
        metadata[key] = cursor.value(key)
    _refuse_split(cursor, metadata)
    tensors: dict[str, TensorInfo] = {}
    offsets: dict[str, int] = {}
    cursor.check_count(tensor_count, _MIN_TENSOR, "tensors")
    for _ in range(tensor_count):
        info, offset = _read_tensor(cursor)
        if info.name in tensors:
            raise cursor.error(f"the tensor {info.name!r} occurs twice")
        tensors[info.name], offsets[info.name] = info, offset
    alignment = _alignment(cursor, metadata)
    data_start = -(-cursor.position // alignment) * alignment
    spans = {}
    for name, info in tensors.items():
        if offsets[name] % alignment:
            raise cursor.error(f"tensor {name!r} does not start on a multiple of the file's alignment, {alignment}")
        start = data_start + offsets[name]
        spans[name] = (start, start + _stored_bytes(info))
    _check_size(cursor, spans)
    return Header(metadata, tensors, spans, data_start)


class _Cursor:
    """A position in the file, and the reads that move it; every read checks that the file is long enough."""

    def __init__(self, path: Path, file: MappedFile) -> None:
        self.path = path
        self.map = file.map
        self.size = file.size
        self.position = 0

    def error(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}")

    def take(self, count: int, what: str) -> int:
        """Move over ``count`` bytes and return where they start."""
        start = self.position
        if count > self.size - start:
            raise self.error(
                f"the header ends too early: {what} needs bytes up to {start + count}, the file has {self.size}; "
                "it is truncated or damaged, download it again"
            )
        self.position = start + count
        return start

    def number(self, dtype: np.dtype[Any], what: str) -> Any:
        start = self.take(dtype.itemsize, what)
        return np.frombuffer(self.map, dtype, 1, start)[0].item()

    def u32(self, what: str) -> int:
        return int(self.number(_NUMBERS[4], what))

    def u64(self, what: str) -> int:
        return int(self.number(_NUMBERS[10], what))

    def check_count(self, count: int, least: int, what: str) -> None:
        if count > (self.size - self.position) // least:
            raise self.error(f"{count} {what} do not fit in {self.size} bytes; the file is damaged, download it again")

    def string(self, what: str) -> str:
        return self.strings(1, what)[0]

    def strings(self, count: int, what: str) -> list[str]:
        self.check_count(count, _MIN_STRING, f"strings in {what}")
        # Hundreds of thousands of tokens pass through this loop, hence the local names and no call to take().
        position, size, data, unpack = self.position, self.size, self.map, _LENGTH.unpack_from
        result = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > size:
                    break
                result.append(str(data[start:position], "utf-8"))
        except struct.error:  # fewer than eight bytes left for a length
            position = start
        except UnicodeDecodeError as error:
            raise self.error(f"a string in {what} is not UTF-8 ({error.reason}); the file is damaged") from None
        self.take(position - self.position, what)
        return result

    def value(self, key: str) -> Any:
        kind = self.u32(key)
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _NUMBERS:
            raise self.error(f"the metadata key {key!r} has the unknown value type {kind}")
        number = self.number(_NUMBERS[kind], key)
        return bool(number) if kind == _BOOL else number

    def array(self, key: str) -> list[str] | np.ndarray[Any, Any]:
        kind, count = self.u32(key), self.u64(key)
        if kind == _STRING:
            return self.strings(count, key)
        if kind not in _NUMBERS:
            raise self.error(f"the metadata key {key!r} is an array of the unsupported value type {kind}")
        dtype = _NUMBERS[kind]
        start = self.take(count * dtype.itemsize, key)
        numbers = np.frombuffer(self.map, dtype, count, start)
        return numbers != 0 if kind == _BOOL else numbers.copy()


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    magic = cursor.map[cursor.take(4, "the magic number") : 4]
    if magic != b"GGUF":
        raise cursor.error(f"is not a GGUF file: it starts with {magic!r} instead of b'GGUF'")
    version = cursor.u32("the version")
    if version not in _VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise cursor.error("is a big-endian GGUF file; only little-endian files are supported")
        raise cursor.error(f"has GGUF version {version}; versions 2 and 3 are supported")
    return cursor.u64("the number of tensors"), cursor.u64("the number of metadata entries")


def _read_tensor(cursor: _Cursor) -> tuple[TensorInfo, int]:
    name = cursor.string("a tensor's name")
    dimensions = cursor.u32(name)
    if dimensions > _MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {dimensions} dimensions, the format allows {_MAX_DIMENSIONS}")
    # The file gives the fastest-moving dimension first.
    shape = tuple(cursor.u64(name) for _ in range(dimensions))[::-1]
    if 0 in shape:
        raise cursor.error(f"tensor {name!r} has an empty dimension: {list(shape)}")
    number, offset = cursor.u32(name), cursor.u64(name)
    try:
        dtype = GGMLQuantizationType(number).name
    except ValueError:
        dtype = f"number {number}"
    if dtype not in SUPPORTED_TYPES:
        raise cursor.error(f"tensor {name!r} has the type {dtype}; supported are {', '.join(SUPPORTED_TYPES)}")
    block, _ = block_sizes(dtype)
    if (shape[-1] if shape else 1) % block:
        raise cursor.error(f"tensor {name!r} {list(shape)}: its rows are not made of whole {dtype} blocks of {block}")
    return TensorInfo(name, shape, dtype), offset


def block_sizes(dtype: str) -> tuple[int, int]:
    """Return how many elements a block of this type holds, and in how many bytes."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
    return int(elements), int(size)


def _stored_bytes(info: TensorInfo) -> int:
    block, size = block_sizes(info.dtype)
    return math.prod(info.shape) // block * size


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {alignment!r}, not a power of two")
    return alignment


def _refuse_split(cursor: _Cursor, metadata: Mapping[str, Any]) -> None:
    count = metadata.get("split.count", 1)
    if type(count) is not int or count > 1:
        raise cursor.error(
            f"is one of {count} parts of a split model; join them into one file first (llama-gguf-split --merge)"
        )


def _check_size(cursor: _Cursor, spans: Mapping[str, tuple[int, int]]) -> None:
    last = max(spans, key=lambda name: spans[name][1], default=None)
    if last is not None and spans[last][1] > cursor.size:
        raise cursor.error(
            f"tensor {last!r} needs bytes up to {spans[last][1]}, the file has {cursor.size}: "
            "the file is truncated, download it again"
        )
