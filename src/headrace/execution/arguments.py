"""What a compiled step is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from headrace.execution.buckets import Bucket
from headrace.execution.compiled import Executable


@dataclass(frozen=True)
class PreparedBatch:
    """A batch on its way to the device: its bucket, the compiled step, and its arrays there, and here as one.

    Attributes:
        constraints: those of its rows; if none has any, an array that is always there.
    """

    bucket: Bucket
    executable: Executable
    packed: jax.Array
    constraints: jax.Array
    host: np.ndarray


class Arguments(NamedTuple):
    """Arrays, or their shapes.

    Attributes:
        spare: memory for the logits, donated and not read; None with a mesh.
    """

    weights: Any
    state: Any
    packed: Any
    constraints: Any
    spare: Any = None
