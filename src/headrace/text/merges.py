"""Merges on disk: to work out those of 262,144 tokens takes more than a second, to read them a tenth of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

Merges = list[tuple[str, str]]

_DIGEST = 32  # bytes of SHA-256 in front of the ids of all pairs, int32


def kept_merges(path: Path, tokens: Sequence[str], make: Callable[[], Merges]) -> Merges:
    """The merges that `make` gives, from `path` if they are there and whole; else they are written there, if possible.

    Args:
        path: named by everything that the merges depend on.
        tokens: all of the vocabulary, by id.
    """
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if len(content) > _DIGEST and hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
            left, right = np.frombuffer(content[_DIGEST:], np.int32).reshape(2, -1).tolist()
            return list(zip(map(tokens.__getitem__, left), map(tokens.__getitem__, right), strict=True))
    merges = make()
    ids = {token: id for id, token in enumerate(tokens)}
    pairs = [[ids[left] for left, _ in merges], [ids[right] for _, right in merges]]
    data = np.array(pairs, np.int32).tobytes()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(hashlib.sha256(data).digest() + data)
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    return merges
