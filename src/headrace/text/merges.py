"""Merges on disk: to work out those of 262,144 tokens takes more than a second, to read them a tenth of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from headrace.kept import read_kept, write_kept

Merges = list[tuple[str, str]]


def kept_merges(path: Path, tokens: Sequence[str], make: Callable[[], Merges]) -> Merges:
    """The merges that `make` gives, from `path` if they are there and whole; else they are written there, if possible.

    Args:
        path: named by everything that the merges depend on.
        tokens: all of the vocabulary, by id.
    """
    with contextlib.suppress(OSError, ValueError):
        left, right = np.frombuffer(read_kept(path), np.int32).reshape(2, -1).tolist()
        return list(zip(map(tokens.__getitem__, left), map(tokens.__getitem__, right), strict=True))
    merges = make()
    ids = {token: id for id, token in enumerate(tokens)}
    pairs = [[ids[left] for left, _ in merges], [ids[right] for _, right in merges]]
    with contextlib.suppress(OSError):
        write_kept(path, np.array(pairs, np.int32).tobytes())
    return merges
