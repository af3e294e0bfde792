"""Small GGUF files, written with the ``gguf`` package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

# The package can read but not write these: where the float16 scales lie in a block, and scales with which values are
# mostly of 0.01 to 0.1, as the weights of a model are.
BLOCK_ONLY = {
    "IQ4_NL": {0: 5e-4},
    "Q2_K": {80: 4e-3, 82: 6e-3},
    "Q3_K": {108: 1e-3},
    "Q4_K": {0: 1e-4, 2: 7.5e-4},
    "Q5_K": {0: 5e-5, 2: 7.5e-4},
    "Q6_K": {208: 2e-5},
}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *BLOCK_ONLY)


def stored_rows(dtype: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Return a random matrix in the file's own form: bytes, or floats for F32 and F16."""
    rng = np.random.default_rng(seed)
    kind = GGMLQuantizationType[dtype]
    if dtype not in BLOCK_ONLY:
        return quantize(rng.normal(size=(rows, columns)).astype(np.float32), kind)
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // elements, size), np.uint8)
    for place in BLOCK_ONLY[dtype]:
        blocks[:, :, place + 1] &= 0xBF  # keeps the exponents small enough for finite values
    return blocks.reshape(rows, -1)


def small_blocks(dtype: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Return a random matrix in bytes whose values are as small as the weights of a model are."""
    stored = stored_rows(dtype, rows, columns, seed)
    if dtype not in BLOCK_ONLY:
        return quantize(0.05 * dequantize(stored, GGMLQuantizationType[dtype]), GGMLQuantizationType[dtype])
    blocks = stored.reshape(rows, -1, GGML_QUANT_SIZES[GGMLQuantizationType[dtype]][1])
    for place, scale in BLOCK_ONLY[dtype].items():
        blocks[..., place : place + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    return stored


def write_gguf(path: Path, tensors: dict[str, tuple[str, np.ndarray]], alignment: int | None = None) -> Path:
    """Write tensors given as (type, stored rows), with one metadata entry of every kind."""
    writer = GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_string("test.text", "¿qué?")
    writer.add_bool("test.yes", True)
    writer.add_int32("test.negative", -3)
    writer.add_uint64("test.large", 2**63)
    writer.add_float32("test.half", 0.5)
    writer.add_float64("test.third", 1 / 3)
    writer.add_array("test.words", ["", "a", "日本"])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.scores", [0.5, -1.5])
    writer.add_array("test.flags", [True, False, True])
    for name, (dtype, rows) in tensors.items():
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
