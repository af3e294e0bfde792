"""Files that are kept in a cache: other processes see the whole of one or none, and what is damaged is not taken."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_DIGEST = 32  # bytes of SHA-256 in front of the rest


def read_kept(path: Path) -> bytes:
    """What `write_kept` wrote there.

    Raises:
        OSError: there is no such file.
        ValueError: it is damaged.
    """
    content = path.read_bytes()
    digest, data = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(data).digest() != digest:
        raise ValueError(f"{path} is damaged")
    return data


def write_kept(path: Path, data: bytes) -> None:
    """Writes or replaces a file; its folder need not exist.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(hashlib.sha256(data).digest() + data)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise
