"""What the scheduler asks of a step. NumPy only, so that the scheduler needs no JAX."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

# Most page updates of a step beyond those that its tokens fill: pages that sequences share. A longer prefix takes
# several steps to be told, so that what a step sends does not grow with the context.
MAX_SHARED_PAGE_UPDATES = 256


@dataclass(frozen=True)
class Constraint:
    """What a row's samples may be, and what is added to their logits.

    Attributes:
        allowed: [samples, ceil(vocab / 32)] uint32; bit i of word w allows id 32 w + i. None allows all.
        bias: ids [n] int32 and what is added to their logits [n] float32; None for nothing.
    """

    allowed: np.ndarray | None
    bias: tuple[np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class ScheduledStep:
    """The rows of one step, in each rank those with a single token first, and in both the longest context first.

    Attributes:
        slots: [rows] int32, distinct. Rank r has the slots from r * max_num_seqs on.
        num_computed: [rows] int32, tokens of the row already in the cache.
        num_tokens: [rows] int32 ≥ 1, tokens of the row to compute now.
        samples: [rows] bool, whether the row's last token is followed by a sampled one.
        page_updates: (slot, index in the sequence, page) of pages that the device does not know yet. Pages count from
            0 in each rank.
    """

    slots: np.ndarray
    num_computed: np.ndarray
    num_tokens: np.ndarray
    samples: np.ndarray
    page_updates: list[tuple[int, int, int]] = field(default_factory=list)

    @cached_property
    def total_tokens(self) -> int:
        """Tokens to compute in this step, over all rows."""
        return sum(self.num_tokens.tolist())

    def of_slots(self, first: int, count: int) -> ScheduledStep:
        """The rows of so many slots from `first` on, which counts as slot 0."""
        mine = (self.slots >= first) & (self.slots < first + count)
        return ScheduledStep(
            self.slots[mine] - first,
            self.num_computed[mine],
            self.num_tokens[mine],
            self.samples[mine],
            [(slot - first, index, page) for slot, index, page in self.page_updates if 0 <= slot - first < count],
        )
