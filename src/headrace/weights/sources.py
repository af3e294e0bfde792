"""From what a user types to a model on this machine: a path, a known name, or a repository of the hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headrace.errors import ModelError
from headrace.weights.known import KNOWN_MODELS, KnownModel
from headrace.weights.pull import cached_path, pull

__all__ = ["KNOWN_MODELS", "KnownModel", "cached_path", "pull", "resolve"]

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(.+))?")


def resolve(model: str, *, progress: bool = True) -> Path:
    """Return the local ``.gguf`` file or Hugging Face folder of a model, fetched first if need be.

    Args:
        model: in this order: the path of a ``.gguf`` file, or of a folder with a ``config.json`` or with one
            ``.gguf`` file; a key of ``KNOWN_MODELS``; ``organisation/name`` on the Hugging Face hub, where
            ``organisation/name:file.gguf`` or ``organisation/name:Q4_K_M`` choose a GGUF file.
        progress: show progress bars while fetching.

    Raises:
        ModelError: there is no such model, it is incomplete, or it cannot be fetched.
    """
    if not model:
        raise ModelError("model: must be a name or a path, not ''")
    path = Path(os.path.expanduser(model))  # which, unlike Path's own, leaves an unknown ~user alone
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError) as error:  # too long, or with a NUL
        raise ModelError(f"{model[:100]!r} cannot be a path: {error}") from None
    if is_file:
        return _local_file(path)
    if is_folder:
        return _local_folder(path)
    if model in KNOWN_MODELS:
        return pull(model, progress)
    if path.suffix.lower() == ".gguf" and ":" not in model:
        raise ModelError(f"{model}: there is no such file")
    if match := _HUB_NAME.fullmatch(model):
        from headrace.weights import hub  # slow to import, and not needed for a local file

        repo, choice = match.groups()
        return hub.fetch_gguf(repo, choice, progress) if choice else hub.fetch_folder(repo, progress)
    raise ModelError(
        f"{model!r} is no file or folder and no known model; give a path, one of {', '.join(KNOWN_MODELS)}, or "
        "organisation/name of a model on the Hugging Face hub"
    )


def _local_file(path: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path}: is not a .gguf file; for safetensors, give the folder that holds config.json")
    return path


def _local_folder(path: Path) -> Path:
    ggufs = sorted(path.glob("*.gguf"))
    if (path / "config.json").is_file() and (any(path.glob("*.safetensors")) or not ggufs):
        return path
    if not ggufs:
        raise ModelError(f"{path}: the folder holds neither a config.json nor a .gguf file")
    if len(ggufs) > 1:
        names = ", ".join(file.name for file in ggufs)
        raise ModelError(f"{path}: the folder holds several .gguf files, give the path of one of them: {names}")
    return ggufs[0]
