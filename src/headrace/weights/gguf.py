"""GGUF files: memory-mapped, with metadata and tensors of the common plain and quantised types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType

from headrace.weights.files import PLAIN_DTYPES, MappedFile, TensorInfo, flat_target, row_span
from headrace.weights.gguf_header import block_sizes, parse_header


class GGUFFile:
    """An open GGUF file; see ``open``. It is a ``TensorFile`` with metadata.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        self._header = parse_header(path, self._file)
        self._file.drop(0, self._header.data_start)

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Map the file and read its header; tensor data stay on disk until they are asked for.

        Raises:
            ModelError: the file is missing, damaged, truncated, one part of a split model, or holds a tensor of a
                type that is not supported.
        """
        return cls(Path(path))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Every key: str, int, float or bool; an array is a list of str or a NumPy array."""
        return self._header.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its name."""
        return self._header.tensors

    def read_into(self, name: str, out: np.ndarray[Any, Any]) -> None:
        """Dequantise or convert the whole tensor into ``out``, as ``TensorFile.read_into`` says."""
        info = self.tensors[name]
        self._convert(info, self._header.spans[name], flat_target(info, out, info.shape))

    def read_rows_into(self, name: str, first: int, out: np.ndarray[Any, Any]) -> None:
        """Dequantise or convert some rows into ``out``, as ``TensorFile.read_rows_into`` says."""
        info = self.tensors[name]
        span = row_span(info, self._header.spans[name], first, len(out))
        self._convert(info, span, flat_target(info, out, (len(out), *info.shape[1:])))

    def read_stored(self, name: str) -> np.ndarray[Any, Any]:
        """Return the rows of a matrix as they are stored: bytes [rows, bytes per row] uint8."""
        return self._file.copy(self._header.spans[name]).reshape(self.tensors[name].shape[0], -1)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return the whole tensor as float32 in its own shape; raises KeyError if there is no such tensor."""
        out = np.empty(self.tensors[name].shape, np.float32)
        self.read_into(name, out)
        return out

    def _convert(self, info: TensorInfo, span: tuple[int, int], flat: np.ndarray[Any, Any]) -> None:
        # Rows are whole blocks, so they are one sequence of blocks and chunks need not follow the rows.
        self._file.convert(span, block_sizes(info.dtype), partial(_decode, info.dtype), flat)


def _decode(dtype: str, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if dtype in PLAIN_DTYPES:
        return data.view(PLAIN_DTYPES[dtype])
    # A damaged scale may be infinite or NaN. It passes through like any other weight, without NumPy's warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        values: np.ndarray[Any, Any] = quants.dequantize(data, GGMLQuantizationType[dtype])
    return values
