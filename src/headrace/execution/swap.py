"""New weights for old under a compiled step: everything that the compilation fixed must be the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax
import numpy as np

from headrace.errors import StepError
from headrace.execution.retrace import differences
from headrace.models.spec import DecoderSpec


def check_spec(old: DecoderSpec, new: DecoderSpec) -> None:
    """Raises StepError if a compiled step has another spec built in; it names the first field that differs."""
    for name in (field.name for field in fields(DecoderSpec)):
        have, want = getattr(new, name), getattr(old, name)
        if have != want:
            raise StepError(f"graphdef.{name} is {have!r}, the compiled steps have {want!r}")


def place_like(old: Any, new: Any) -> Any:
    """A copy of the pytree `new`, each array where its counterpart in `old` lies.

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
    return jax.tree.map(_copy_like, old, new)


def _copy_like(here: jax.Array, there: jax.Array | np.ndarray) -> jax.Array:
    """A copy, because the caller may go on to change its array or to donate it. Of NumPy memory JAX makes none on the
    CPU, whatever `may_alias` says."""
    source = there.copy() if isinstance(there, np.ndarray) else there
    placed: jax.Array = jax.device_put(source, here.sharding, may_alias=False)
    return placed
