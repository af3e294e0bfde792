"""Safetensors folders against the ``safetensors`` library."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.errors import ModelError
from headrace.weights.files import CHUNK_ELEMENTS, TensorInfo
from headrace.weights.safetensors import SafetensorsFolder

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_shards(folder: Path, with_index: bool = True) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.full(4, 2.5, np.float16)}
    for file, (name, array) in zip(SHARDS, tensors.items(), strict=True):
        save_file({name: array}, folder / file)
    if with_index:
        write_index(folder, dict(zip(tensors, SHARDS, strict=True)))


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_equals_what_was_saved(tmp_path: Path, dtype: str) -> None:
    rows = CHUNK_ELEMENTS // 96 + 5  # the last chunk is a short one
    saved = np.random.default_rng(0).normal(size=(rows, 96)).astype(DTYPES[dtype])
    save_file({"w": saved, "scalar": np.array(3, DTYPES[dtype])}, tmp_path / "model.safetensors", {"format": "np"})
    folder = SafetensorsFolder.open(tmp_path)
    assert folder.tensors == {"w": TensorInfo("w", (rows, 96), dtype), "scalar": TensorInfo("scalar", (), dtype)}
    assert folder.read("scalar") == 3
    assert np.array_equal(folder.read("w"), saved.astype(np.float32))
    for target in DTYPES.values():
        out = np.empty((96, rows), target)
        folder.read_into("w", out)
        assert np.array_equal(out.ravel(), saved.ravel().astype(target))


def test_x10_rows_are_read_alone(tmp_path: Path) -> None:
    write_shards(tmp_path)
    folder = SafetensorsFolder.open(tmp_path)
    out = np.empty((1, 3), np.float32)
    folder.read_rows_into("a", 1, out)
    assert out.tolist() == [[3, 4, 5]]
    with pytest.raises(ValueError, match=r"^a \(2, 3\) has no rows 2 to 3"):
        folder.read_rows_into("a", 2, out)


@pytest.mark.parametrize("with_index", [True, False])
def test_shards_are_one_folder(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path, with_index)
    folder = SafetensorsFolder.open(tmp_path)
    assert set(folder.tensors) == {"a", "b"}
    assert folder.read("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert folder.read("b").tolist() == [2.5] * 4


def test_single_file_wins_over_others(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"only": np.ones(1, np.float32)}, tmp_path / "model.safetensors")
    assert set(SafetensorsFolder.open(tmp_path).tensors) == {"only"}


def test_empty_tensor_at_the_end_of_whole_pages(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}}).encode()
    header = header.ljust((2 << 20) - 8)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert SafetensorsFolder.open(tmp_path).read("w").shape == (0, 4)


def test_memory_stays_small_while_reading(tmp_path: Path) -> None:
    save_file({"w": np.ones((4096, 1024), ml_dtypes.bfloat16)}, tmp_path / "model.safetensors")
    folder = SafetensorsFolder.open(tmp_path)
    out = np.empty((4096, 1024), np.float32)
    tracemalloc.start()
    try:
        folder.read_into("w", out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20 < out.nbytes


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        SafetensorsFolder.open(folder)
    assert "\n" not in str(caught.value)


def test_folder_without_weights(tmp_path: Path) -> None:
    assert_refused(tmp_path, r"holds no \.safetensors file")


@pytest.mark.parametrize("with_index", [True, False])
def test_missing_shard(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path, with_index)
    (tmp_path / SHARDS[0]).unlink()
    assert_refused(tmp_path, f"{SHARDS[0]}: the shard is missing")


def test_tensor_that_the_index_promises_is_absent(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, {"a": SHARDS[0], "b": SHARDS[0]})
    assert_refused(tmp_path, f"{SHARDS[0]}: lacks the tensor 'b' that {INDEX} promises")


def test_same_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"w": np.ones(1, np.float32)}, tmp_path / f"{name}.safetensors")
    assert_refused(tmp_path, r"two\.safetensors: the tensor 'w' is also in one\.safetensors")


@pytest.mark.parametrize("length", [0, 4, 40, -1])
def test_truncated_shard(tmp_path: Path, length: int) -> None:
    write_shards(tmp_path)
    shard = tmp_path / SHARDS[1]
    shard.write_bytes(shard.read_bytes()[:length])
    assert_refused(tmp_path, f"{SHARDS[1]}: .*download it again")


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 4), ("I32", 16)])
def test_unsupported_type_is_refused_by_name(tmp_path: Path, dtype: str, size: int) -> None:
    header = json.dumps({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, size]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    assert_refused(tmp_path, f"model.safetensors: tensor 'w' has the type {dtype}; supported are F32, F16, BF16")


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_malformed_index(tmp_path: Path, index: str) -> None:
    (tmp_path / INDEX).write_text(index)
    assert_refused(tmp_path, f"{INDEX}: .*download it again")


@pytest.mark.parametrize("file", ["../other.safetensors", "", 3])
def test_index_must_not_lead_out_of_the_folder(tmp_path: Path, file: object) -> None:
    write_index(tmp_path, {"w": file})
    assert_refused(tmp_path, f"{INDEX}: the tensor 'w' has .* for a file name")
