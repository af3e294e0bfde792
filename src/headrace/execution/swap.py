"""New weights for old under a compiled step: everything that the compilation fixed must be the same."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from headrace.errors import StepError


def place_like(old: Any, new: Any) -> Any:
    """The pytree `new`, each array where its counterpart in `old` lies.

    Args:
        old: pytree of JAX arrays.
        new: pytree of JAX or NumPy arrays of the same structure, shapes and dtypes.

    Raises:
        StepError: names the first leaf that differs, and how. Nothing is placed then.
    """
    theirs, ours = _leaves(new), _leaves(old)
    for path in (*ours, *theirs):
        if path not in theirs:
            raise StepError(f"{path} is missing in the new weights")
        if path not in ours:
            raise StepError(f"{path} is not in the model")
        have, want = _form(theirs[path]), _form(ours[path])
        if have != want:
            raise StepError(f"{path} is {have}, the model has {want}")
    return jax.tree.map(lambda here, there: jax.device_put(there, here.sharding), old, new)


def _leaves(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _form(leaf: Any) -> str:
    """Shape and dtype of an array, or what else the leaf is."""
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"a {type(leaf).__name__}, not an array"
