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
        samples: [rows] int32, how many of the row's last tokens are followed by a sampled one: 0, 1, or 1 + drafts.
        page_updates: (slot, index in the sequence, page) of pages that the device does not know yet. Pages count from
            0 in each rank.
        scores_prompt: [rows] bool, whether log-probabilities of the row's prompt tokens are wanted; None for nowhere.
        constraints: by slot, for rows that have one.
    """

    slots: np.ndarray
    num_computed: np.ndarray
    num_tokens: np.ndarray
    samples: np.ndarray
    page_updates: list[tuple[int, int, int]] = field(default_factory=list)
    scores_prompt: np.ndarray | None = None
    constraints: dict[int, Constraint] = field(default_factory=dict)

    @cached_property
    def total_tokens(self) -> int:
        """Tokens to compute in this step, over all rows."""
        return sum(self.num_tokens.tolist())

    @cached_property
    def num_logits(self) -> np.ndarray:
        """[rows] int32 ≥ 1, logits rows of each row: one for each sample, and one for a row that does not sample."""
        counts: np.ndarray = np.maximum(self.samples, 1).astype(np.int32)
        return counts

    @cached_property
    def total_logits(self) -> int:
        """Logits rows of this step."""
        return sum(self.num_logits.tolist())

    def of_slots(self, first: int, count: int) -> ScheduledStep:
        """The rows of so many slots from `first` on, which counts as slot 0."""
        mine = (self.slots >= first) & (self.slots < first + count)
        return ScheduledStep(
            self.slots[mine] - first,
            self.num_computed[mine],
            self.num_tokens[mine],
            self.samples[mine],
            [(slot - first, index, page) for slot, index, page in self.page_updates if 0 <= slot - first < count],
            None if self.scores_prompt is None else self.scores_prompt[mine],
            {slot - first: one for slot, one in self.constraints.items() if 0 <= slot - first < count},
        )
