"""Safetensors: the weights of a Hugging Face folder, in one file or in shards, memory-mapped.

The ``safetensors`` library opens and checks every file. The tensors are then read through a map of our own: the
library's slices leave every page that was read in the process's memory, and ours can be dropped chunk by chunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from headrace.errors import ModelError
from headrace.weights.files import PLAIN_DTYPES, MappedFile, TensorInfo, flat_target, row_span

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


class SafetensorsFolder:
    """The safetensors files of one folder, seen as one ``TensorFile``; see ``open``.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors: dict[str, TensorInfo] = {}
        self._shard_of: dict[str, _Shard] = {}
        if not (path / _SINGLE).exists() and (path / _INDEX).exists():
            self._add_indexed(path / _INDEX)
        else:
            for file in _find_files(path):
                shard = _Shard(file)
                for name in shard.tensors:
                    self._add(name, shard)

    @classmethod
    def open(cls, folder: str | Path) -> SafetensorsFolder:
        """Open ``model.safetensors``, or the shards of the index, or every ``*.safetensors`` where neither exists.

        Raises:
            ModelError: a file is missing, damaged or truncated, the index does not fit the shards, or a tensor has
                another type than F32, F16 and BF16.
        """
        return cls(Path(folder))

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its name."""
        return self._tensors

    def read_into(self, name: str, out: np.ndarray[Any, Any]) -> None:
        """Convert the whole tensor into ``out``, as ``TensorFile.read_into`` says."""
        self._shard_of[name].read_into(name, out)

    def read_rows_into(self, name: str, first: int, out: np.ndarray[Any, Any]) -> None:
        """Convert some rows into ``out``, as ``TensorFile.read_rows_into`` says."""
        self._shard_of[name].read_rows_into(name, first, out)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return the whole tensor as float32 in its own shape; raises KeyError if there is no such tensor."""
        out = np.empty(self._tensors[name].shape, np.float32)
        self.read_into(name, out)
        return out

    def _add_indexed(self, index: Path) -> None:
        shards: dict[str, _Shard] = {}
        for name, file in _read_index(index).items():
            if file not in shards:
                if not (self.path / file).is_file():
                    raise ModelError(f"{self.path / file}: the shard is missing, {index.name} names it; download it")
                shards[file] = _Shard(self.path / file)
            if name not in shards[file].tensors:
                raise ModelError(f"{self.path / file}: lacks the tensor {name!r} that {index.name} promises")
            self._add(name, shards[file])

    def _add(self, name: str, shard: _Shard) -> None:
        if name in self._tensors:
            raise ModelError(f"{shard.path}: the tensor {name!r} is also in {self._shard_of[name].path.name}")
        self._tensors[name] = shard.tensors[name]
        self._shard_of[name] = shard


class _Shard:
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            with safe_open(path, framework="numpy"):
                pass
        except SafetensorError as error:
            raise ModelError(f"{path}: is truncated or damaged, download it again ({error})") from None
        # The library has checked the header and that the data are as long as it says.
        data_start = 8 + int.from_bytes(self._file.map[:8], "little")
        header = json.loads(self._file.map[8:data_start])
        header.pop("__metadata__", None)
        self.tensors: dict[str, TensorInfo] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        for name, entry in header.items():
            if entry["dtype"] not in PLAIN_DTYPES:
                supported = ", ".join(PLAIN_DTYPES)
                raise ModelError(f"{path}: tensor {name!r} has the type {entry['dtype']}; supported are {supported}")
            start, stop = entry["data_offsets"]
            self.tensors[name] = TensorInfo(name, tuple(entry["shape"]), entry["dtype"])
            self._spans[name] = (data_start + start, data_start + stop)
        self._file.drop(0, data_start)

    def read_into(self, name: str, out: np.ndarray[Any, Any]) -> None:
        info = self.tensors[name]
        self._convert(info, self._spans[name], flat_target(info, out, info.shape))

    def read_rows_into(self, name: str, first: int, out: np.ndarray[Any, Any]) -> None:
        info = self.tensors[name]
        span = row_span(info, self._spans[name], first, len(out))
        self._convert(info, span, flat_target(info, out, (len(out), *info.shape[1:])))

    def _convert(self, info: TensorInfo, span: tuple[int, int], flat: np.ndarray[Any, Any]) -> None:
        dtype = PLAIN_DTYPES[info.dtype]
        self._file.convert(span, (1, dtype.itemsize), methodcaller("view", dtype), flat)


def _find_files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: holds no .safetensors file")
    names = {file.name for file in files}
    for match in filter(None, map(_SHARD.fullmatch, sorted(names))):
        stem, _, total = match.groups()
        for number in range(1, int(total) + 1):
            expected = f"{stem}-{number:05}-of-{total}.safetensors"
            if expected not in names:
                raise ModelError(f"{folder / expected}: the shard is missing, {match[0]} needs it; download it")
    return files


def _read_index(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except OSError as error:
        raise ModelError(f"{index}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ModelError(f"{index}: is not an index of safetensors files, download it again") from None
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index}: its weight_map is not an object, download it again")
    for name, file in weight_map.items():
        # A shard lies next to its index; a path must not lead out of the folder.
        if not isinstance(file, str) or not file or Path(file).name != file:
            raise ModelError(f"{index}: the tensor {name!r} has {file!r} for a file name")
    return weight_map
