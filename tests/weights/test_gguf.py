"""GGUF files against the ``gguf`` package."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from headrace.errors import ModelError
from headrace.weights.files import CHUNK_ELEMENTS, TensorInfo
from headrace.weights.gguf import GGUFFile
from weights.gguf_files import TYPES, stored_rows, write_gguf

COLUMNS = 512


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_equals_the_package(tmp_path: Path, dtype: str) -> None:
    rows = CHUNK_ELEMENTS // COLUMNS + 3  # the last chunk is a short one
    stored = stored_rows(dtype, rows, COLUMNS)
    expected = dequantize(stored, GGMLQuantizationType[dtype])
    assert np.isfinite(expected).all()
    file = GGUFFile.open(
        write_gguf(tmp_path / "m.gguf", {"first": ("F32", np.ones(7, np.float32)), "w": (dtype, stored)})
    )
    assert file.tensors["w"] == TensorInfo("w", (rows, COLUMNS), dtype)
    assert np.array_equal(file.read("w"), expected)
    for target in (np.float16, ml_dtypes.bfloat16):
        out = np.empty((COLUMNS, rows), target)  # any shape of that many elements
        file.read_into("w", out)
        assert np.array_equal(out.ravel(), expected.ravel().astype(target))


@pytest.mark.parametrize("dtype", ["F16", "Q8_0", "Q6_K"])
def test_x10_rows_are_read_alone_and_as_they_are_stored(tmp_path: Path, dtype: str) -> None:
    stored = stored_rows(dtype, 100, COLUMNS)
    tensors = {"first": ("F32", np.ones(7, np.float32)), "w": (dtype, stored)}
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", tensors))
    assert file.read_stored("w").tobytes() == stored.tobytes()
    assert len(file.read_stored("w")) == 100
    whole = file.read("w")
    for first, count in [(0, 100), (0, 1), (99, 1), (70, 30), (33, 2), (100, 0)]:
        out = np.empty((count, COLUMNS), np.float32)
        file.read_rows_into("w", first, out)
        assert np.array_equal(out, whole[first : first + count])
    for first, count in [(-1, 1), (100, 1), (71, 30), (0, 101)]:
        with pytest.raises(ValueError, match=r"^w \(100, 512\) has no rows"):
            file.read_rows_into("w", first, np.empty((count, COLUMNS), np.float32))
    with pytest.raises(ValueError, match=r"^w \(3, 512\) needs a C-contiguous array of 1536 elements, got \(3, 511\)"):
        file.read_rows_into("w", 0, np.empty((3, COLUMNS - 1), np.float32))


def test_metadata_has_python_values(tmp_path: Path) -> None:
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", {}))
    metadata = file.metadata
    scalars = {key: value for key, value in metadata.items() if not isinstance(value, np.ndarray)}
    assert scalars == {
        "general.architecture": "llama",
        "test.text": "¿qué?",
        "test.yes": True,
        "test.negative": -3,
        "test.large": 2**63,
        "test.half": 0.5,
        "test.third": 1 / 3,
        "test.words": ["", "a", "日本"],
    }
    assert type(metadata["test.yes"]) is bool
    assert type(metadata["test.negative"]) is int
    assert type(metadata["test.half"]) is float
    assert metadata["test.numbers"].tolist() == [1, -2, 3]
    assert metadata["test.scores"].tolist() == [0.5, -1.5]
    assert metadata["test.flags"].tolist() == [True, False, True]
    assert file.tensors == {}


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_of_the_file_is_respected(tmp_path: Path, alignment: int) -> None:
    tensors = {f"t{i}": ("F32", np.full(3, i, np.float32)) for i in range(4)}
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", tensors, alignment))
    for i in range(4):
        assert file.read(f"t{i}").tolist() == [i] * 3


def test_memory_stays_small_while_reading(tmp_path: Path) -> None:
    rows = 128 * CHUNK_ELEMENTS // COLUMNS
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", {"w": ("Q4_K", stored_rows("Q4_K", rows, COLUMNS))}))
    out = np.empty((rows, COLUMNS), ml_dtypes.bfloat16)
    tracemalloc.start()
    try:
        file.read_into("w", out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20 < out.size * 4  # the tensor itself in float32


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="counts resident pages as Linux shows them")
def test_pages_read_do_not_stay_resident(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"w": ("F16", stored_rows("F16", 4096, COLUMNS))})
    file = GGUFFile.open(path)
    file.read("w")
    mapping = Path("/proc/self/smaps").read_text().split(str(path))[1]
    resident_kib = int(mapping.split("Rss:")[1].split()[0])
    assert resident_kib <= 64 < path.stat().st_size // 1024


@pytest.mark.parametrize(
    "out",
    [
        np.empty((4, 31), np.float32),
        np.empty((4, 32), np.float64),
        np.empty((32, 4), np.float32).T,
    ],
    ids=["size", "dtype", "order"],
)
def test_target_that_does_not_fit_is_refused(tmp_path: Path, out: np.ndarray) -> None:
    file = GGUFFile.open(write_gguf(tmp_path / "m.gguf", {"w": ("F32", stored_rows("F32", 4, 32))}))
    with pytest.raises(ValueError, match=r"^w "):
        file.read_into("w", out)


def test_unsupported_type_is_refused_by_name(tmp_path: Path) -> None:
    stored = np.zeros((2, 74), np.uint8)
    path = write_gguf(tmp_path / "m.gguf", {"blk.0.w": ("IQ2_XS", stored)})
    with pytest.raises(
        ModelError, match=r"m\.gguf: tensor 'blk\.0\.w' has the type IQ2_XS; supported are F32, F16, .*Q6_K"
    ):
        GGUFFile.open(path)


def test_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"m\.gguf: is one of 3 parts of a split model; join them"):
        GGUFFile.open(tmp_path / "m.gguf")
