"""New weights for old under a compiled step: everything that the compilation fixed must be the same."""

from __future__ import annotations

from typing import Any

import jax

from headrace.errors import StepError
from headrace.execution.retrace import differences


def place_like(old: Any, new: Any) -> Any:
    """The pytree `new`, each array where its counterpart in `old` lies.

    Args:
        old: pytree of JAX arrays.
        new: pytree of JAX or NumPy arrays of the same structure, shapes and dtypes, wherever they lie.

    Raises:
        StepError: names the first leaf that differs, and how. Nothing is placed then.
    """
    forms = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), old)
    difference = next(differences(forms, new), None)
    if difference is not None:
        raise StepError(difference)
    return jax.tree.map(lambda here, there: jax.device_put(there, here.sharding), old, new)
