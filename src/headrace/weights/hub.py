"""Models of the Hugging Face hub, through its own library and cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import errors, snapshot_download
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from headrace.errors import ModelError

_FOLDER_FILES = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model"]
# Sub-folders hold other formats of the same model, and so do consolidated files.
_NOT_FOLDER_FILES = ["*/*", "consolidated*"]


def fetch_folder(repo: str, progress: bool = True) -> Path:
    """Return the local folder with a repository's configuration, tokenizer and safetensors.

    Args:
        repo: ``organisation/name``.
        progress: show the hub library's progress bars.

    Raises:
        ModelError: the repository does not exist, is gated, cannot be reached or has no ``config.json``.
    """
    folder = _snapshot(repo, _FOLDER_FILES, _NOT_FOLDER_FILES, progress)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{repo}: has no config.json; if it holds GGUF files, choose one as in {repo}:Q4_K_M")
    return folder


def fetch_gguf(repo: str, choice: str, progress: bool = True) -> Path:
    """Return the local path of one GGUF file of a repository.

    Args:
        repo: ``organisation/name``.
        choice: the file's name, or how it ends before ``.gguf``, such as ``Q4_K_M``.
        progress: show the hub library's progress bars.

    Raises:
        ModelError: the repository does not exist, is gated or cannot be reached, or not exactly one file fits.
    """
    exact = choice.lower().endswith(".gguf")
    # A snapshot of what fits, not a listing and then a download: it works from the cache without a network too.
    wanted = [choice] if exact else sorted({f"*{end}.gguf" for end in (choice, choice.lower(), choice.upper())})
    folder = _snapshot(repo, wanted, ["*mmproj*"], progress)
    fits = re.compile(re.escape(choice) if exact else rf"(.*[-._/])?{re.escape(choice)}\.gguf", re.IGNORECASE)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.gguf"))}
    names = [name for name in files if fits.fullmatch(name)]
    if not names:
        raise ModelError(f"{repo}: has no GGUF file {choice!r}, nor one that ends so; its page on the hub lists them")
    if len(names) > 1:
        raise ModelError(f"{repo}: several GGUF files end in {choice!r}; choose by the whole name: {', '.join(names)}")
    return files[names[0]]


def _snapshot(repo: str, wanted: list[str], unwanted: list[str], progress: bool) -> Path:
    try:
        with _progress_bars(progress):
            return Path(snapshot_download(repo, allow_patterns=wanted, ignore_patterns=unwanted))
    except errors.GatedRepoError:
        reason = "is gated; accept its terms on its page on the hub, then log in with: hf auth login"
    except errors.RepositoryNotFoundError:
        reason = "is not on the hub, or private; check the name, or log in with: hf auth login"
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        reason = (
            "is not in the hub's local cache, and the hub cannot be reached (no network, or HF_HUB_OFFLINE is set); "
            "download it on another machine and give the path of the folder or .gguf file"
        )
    # The library lets other errors of its HTTP client and of its download accelerator through; which classes those
    # are depends on its version.
    except Exception as error:
        reason = f"cannot be fetched from the hub: {' '.join(str(error).split())}"
    raise ModelError(f"{repo}: {reason}")


@contextmanager
def _progress_bars(show: bool) -> Iterator[None]:
    if show or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
