"""Why arguments do not fit a compiled step: the leaves whose form differs from what it was compiled for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


def differences(expected: Any, given: Any) -> Iterator[str]:
    """The leaves, by their path, in which pytree `given` differs from pytree `expected`, in the order of the latter.

    Args:
        expected: pytree of arrays or of `jax.ShapeDtypeStruct`.
        given: pytree of JAX or NumPy arrays.

    Yields:
        One line for each leaf that is missing, unknown, no array, or of another shape, dtype, weak type or sharding.
        The sharding counts where both leaves have one. Where all leaves agree, the node whose static part differs.
    """
    found = False
    for line in _leaf_differences(expected, given):
        found = True
        yield line
    if not found and not _same_structure(expected, given):
        yield _other_node(expected, given, "")


def _leaf_differences(expected: Any, given: Any) -> Iterator[str]:
    wanted, got = _leaves(expected), _leaves(given)
    for path, want in wanted.items():
        if path not in got:
            yield f"{path} is missing"
            continue
        have = got[path]
        if _form(have) != _form(want):
            yield f"{path} is {_form(have)}, compiled for {_form(want)}"
            continue
        here, there = getattr(have, "sharding", None), getattr(want, "sharding", None)
        if here is not None and there is not None and not here.is_equivalent_to(there, have.ndim):
            yield f"{path} is sharded as {here}, compiled for {there}"
    for path in got:
        if path not in wanted:
            yield f"{path} is not in the model"


def _other_node(expected: Any, given: Any, path: str) -> str:
    """The innermost pair of nodes that differ although their leaves have the same paths: of another class, or with
    other static fields."""
    for (key, want), (_, have) in zip(_children(expected), _children(given), strict=True):
        if not _same_structure(want, have):
            return _other_node(want, have, path + jax.tree_util.keystr(key))
    return f"{path.lstrip('.')} is {jax.tree.structure(given)}, compiled for {jax.tree.structure(expected)}"


def _same_structure(one: Any, other: Any) -> bool:
    structures: list[Any] = [jax.tree.structure(tree) for tree in (one, other)]
    return bool(structures[0] == structures[1])


def _children(node: Any) -> list[tuple[Any, Any]]:
    children: list[tuple[Any, Any]] = jax.tree_util.tree_leaves_with_path(node, is_leaf=lambda inner: inner is not node)
    return children


def _leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _form(leaf: Any) -> str:
    """Shape and dtype of an array, or what else the leaf is."""
    if isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        weak = "weak " if getattr(leaf, "weak_type", False) else ""
        return f"{weak}{leaf.dtype}{list(leaf.shape)}"
    return f"a {type(leaf).__name__}, not an array"
