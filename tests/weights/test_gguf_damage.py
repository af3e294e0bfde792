"""Damaged GGUF files end in one clear error, whatever the damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ModelError
from headrace.weights.gguf import GGUFFile
from weights.gguf_files import stored_rows, write_gguf


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def u32(key: str, value: int) -> bytes:
    return string(key) + struct.pack("<II", 4, value)


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    version: int = 3,
    pair_count: int | None = None,
    tensor_count: int | None = None,
    data: int = 64,
) -> bytes:
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + data)


HUGE = 2**63
MALFORMED = {
    "empty": (b"", "the file is empty"),
    "short magic": (b"GG", "header ends too early: the magic number"),
    "bad magic": (b"PK\x03\x04" + bytes(60), r"is not a GGUF file: it starts with b'PK\\x03\\x04'"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "big endian": (b"GGUF" + struct.pack(">I", 3) + bytes(60), "big-endian"),
    "version": (gguf(version=1), "has GGUF version 1; versions 2 and 3"),
    "no counts": (b"GGUF" + struct.pack("<I", 3), "header ends too early: the number of tensors"),
    "pair count": (gguf(pair_count=HUGE), f"{HUGE} metadata entries do not fit"),
    "tensor count": (gguf(tensor_count=HUGE), f"{HUGE} tensors do not fit"),
    "key length": (gguf([struct.pack("<Q", HUGE) + bytes(5)]), "header ends too early: a metadata key"),
    "key not utf-8": (gguf([struct.pack("<Q", 1) + b"\xff" + bytes(8)]), "a metadata key is not UTF-8"),
    "array count": (gguf([string("a") + struct.pack("<IIQ", 9, 4, HUGE)]), "header ends too early: a needs"),
    "string count": (gguf([string("a") + struct.pack("<IIQ", 9, 8, HUGE)]), f"{HUGE} strings in a do not fit"),
    "string in array": (
        gguf([string("a") + struct.pack("<IIQQ", 9, 8, 1, HUGE)]),
        "header ends too early: a needs",
    ),
    "array of arrays": (gguf([string("a") + struct.pack("<IIQ", 9, 9, 1)]), "unsupported value type 9"),
    "value type": (gguf([string("a") + struct.pack("<I", 77)]), "unknown value type 77"),
    "key twice": (gguf([u32("a", 1), u32("a", 2)]), "the metadata key 'a' occurs twice"),
    "alignment": (gguf([u32("general.alignment", 0)]), "general.alignment is 0, not a power of two"),
    "tensor twice": (gguf(tensors=[tensor("t", (4,)), tensor("t", (4,))]), "the tensor 't' occurs twice"),
    "dimensions": (gguf(tensors=[tensor("t", (1,) * 5)]), "tensor 't' has 5 dimensions"),
    "empty dimension": (gguf(tensors=[tensor("t", (0, HUGE))]), "tensor 't' has an empty dimension"),
    "huge shape": (gguf(tensors=[tensor("t", (HUGE, HUGE))]), "tensor 't' needs bytes up to"),
    "type": (gguf(tensors=[tensor("t", (4,), kind=999)]), "tensor 't' has the type number 999"),
    "row of no whole blocks": (gguf(tensors=[tensor("t", (31, 2), kind=8)]), "not made of whole Q8_0 blocks of 32"),
    "offset": (gguf(tensors=[tensor("t", (4,), offset=HUGE)]), "tensor 't' needs bytes up to"),
    "misaligned": (gguf(tensors=[tensor("t", (4,), offset=7)]), "multiple of the file's alignment, 32"),
    "truncated data": (
        gguf(tensors=[tensor("t", (16,)), tensor("u", (1,), offset=32)], data=63),
        r"tensor 't' needs bytes up to 160, the file has 159: the file is truncated, download it again",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_named_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    content, message = MALFORMED[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        GGUFFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([u32("a", 5)], [tensor("t", (4, 2))], version=2))
    file = GGUFFile.open(path)
    assert file.metadata == {"a": 5}
    assert file.read("t").tolist() == [[0.0] * 4] * 2


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be read"):
        GGUFFile.open(tmp_path)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    tensors = {name: (name, stored_rows(name, 2, 256)) for name in ("F32", "BF16", "Q4_1", "Q6_K")}
    return write_gguf(tmp_path_factory.mktemp("valid") / "m.gguf", tensors).read_bytes()


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_damage_gives_an_error_or_a_result(valid: bytes, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(valid)
    header = valid.index(b"Q6_K") + 40
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path = tmp_path / "m.gguf"
    path.unlink(missing_ok=True)  # an earlier example's map may still be open
    path.write_bytes(content)
    try:
        file = GGUFFile.open(path)
    except ModelError:
        return
    for name, info in file.tensors.items():
        assert file.read(name).shape == info.shape
