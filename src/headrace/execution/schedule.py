"""What the scheduler asks of a step. NumPy only, so that the scheduler needs no JAX."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# Most page updates of a step beyond those that its tokens fill: pages that sequences share. A longer prefix takes
# several steps to be told, so that what a step sends does not grow with the context.
MAX_SHARED_PAGE_UPDATES = 256


@dataclass(frozen=True)
class ScheduledStep:
    """The rows of one step, those with a single token first, and among them the longest context first.

    Attributes:
        slots: [rows] int32, distinct.
        num_computed: [rows] int32, tokens of the row already in the cache.
        num_tokens: [rows] int32 ≥ 1, tokens of the row to compute now.
        samples: [rows] bool, whether the row's last token is followed by a sampled one.
        page_updates: (slot, index in the sequence, page) of pages that the device does not know yet.
    """

    slots: np.ndarray
    num_computed: np.ndarray
    num_tokens: np.ndarray
    samples: np.ndarray
    page_updates: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def total_tokens(self) -> int:
        """Tokens to compute in this step, over all rows."""
        return int(self.num_tokens.sum())
