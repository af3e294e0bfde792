"""From what a user types to a path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import ModelError
from headrace.weights.sources import KNOWN_MODELS, cached_path, resolve


def test_gguf_file_and_folders_are_local(tmp_path: Path) -> None:
    gguf = tmp_path / "one" / "M.GGUF"
    gguf.parent.mkdir()
    gguf.touch()
    assert resolve(str(gguf)) == gguf
    lower = gguf.rename(gguf.with_name("m.gguf"))
    assert resolve(str(lower.parent)) == lower
    (lower.parent / "config.json").touch()
    assert resolve(str(lower.parent)) == lower
    (lower.parent / "model.safetensors").touch()
    assert resolve(str(lower.parent)) == lower.parent


def test_local_path_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds neither a config\.json nor a \.gguf file"):
        resolve(str(tmp_path))
    weights = tmp_path / "model.safetensors"
    weights.touch()
    with pytest.raises(ModelError, match=r"model\.safetensors: is not a \.gguf file; for safetensors, give the folder"):
        resolve(str(weights))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"several \.gguf files, give the path of one of them: a\.gguf, b\.gguf"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("model", ["models/none.gguf", "./none.gguf", "~nobody/none.gguf"])
def test_missing_gguf_file(model: str) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf: there is no such file"):
        resolve(model)


@pytest.mark.parametrize("model", ["gpt-17", "a//b", "a/b/c", "./a"])
def test_unknown_name_lists_the_known_ones(model: str) -> None:
    with pytest.raises(ModelError, match="one of smollm2, gemma3-270m, or organisation/name"):
        resolve(model)


def test_cached_known_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert cached_path("smollm2") is None
    known = KNOWN_MODELS["smollm2"]
    file = tmp_path / "models" / "smollm2" / known.file
    file.parent.mkdir(parents=True)
    with file.open("wb") as stream:
        stream.truncate(known.size)
    assert cached_path("smollm2") == file == resolve("smollm2")
    os.truncate(file, known.size - 1)
    assert cached_path("smollm2") is None


def resolve_offline(model: str, hub_cache: Path) -> str:
    """Resolve in a new process, since the hub's library reads its settings once, and return what it prints."""
    code = (
        "import sys\n"
        "from headrace.errors import ModelError\n"
        "from headrace.weights.sources import resolve\n"
        "try:\n    print(resolve(sys.argv[1], progress=False))\n"
        "except ModelError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache)}
    command = [sys.executable, "-c", code, model]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("model", ["some/model", "some/model:Q4_K_M", "some/model:m.gguf"])
def test_hub_cannot_be_reached(tmp_path: Path, model: str) -> None:
    message = resolve_offline(model, tmp_path)
    assert message.startswith("some/model: is not in the hub's local cache, and the hub cannot be reached")
    assert "\n" not in message


def test_hub_name_that_cannot_be(tmp_path: Path) -> None:
    message = resolve_offline("some/model--x", tmp_path)
    assert message.startswith("some/model--x: cannot be fetched from the hub: ")
    assert "\n" not in message


def cached_snapshot(hub_cache: Path, *names: str) -> Path:
    repo = hub_cache / "models--some--model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c0ffee")
    snapshot = repo / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    for name in names:
        (snapshot / name).touch()
    return snapshot


def test_hub_model_is_found_in_the_hub_cache_without_a_network(tmp_path: Path) -> None:
    snapshot = cached_snapshot(tmp_path, "config.json", "model.safetensors", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf")
    assert resolve_offline("some/model", tmp_path) == str(snapshot)
    assert resolve_offline("some/model:q4_k_m", tmp_path) == str(snapshot / "m-Q4_K_M.gguf")
    assert resolve_offline("some/model:m-Q4_K_S.gguf", tmp_path) == str(snapshot / "m-Q4_K_S.gguf")
    assert "has no GGUF file 'K_X'" in resolve_offline("some/model:K_X", tmp_path)


def test_hub_choice_that_fits_several_files(tmp_path: Path) -> None:
    cached_snapshot(tmp_path, "a-Q8_0.gguf", "b-Q8_0.gguf")
    assert resolve_offline("some/model:Q8_0", tmp_path).endswith("by the whole name: a-Q8_0.gguf, b-Q8_0.gguf")
    assert resolve_offline("some/model", tmp_path).startswith("some/model: has no config.json")
