"""X9: how the rows of a step are divided over data parallel ranks, and found again."""

from __future__ import annotations

import numpy as np

from headrace.execution.batch import BatchLayout, HostBatch
from headrace.execution.schedule import ScheduledStep
from headrace.execution.sequences import SequenceTable
from headrace.execution.spread import RankedBatch, in_step_order, largest_rank
from headrace.sampling.params import SamplingParams

SLOTS, RANKS, LENGTH = 3, 2, 40
LAYOUT = BatchLayout((16, 4), 16)


def table(slots: dict[int, int]) -> SequenceTable:
    """Slots 0 … n − 1 that hold the sequences of some seeds; the device knows the token of the first at position 7."""
    made = SequenceTable(len(slots), LENGTH)
    for slot, seed in slots.items():
        ids = np.random.default_rng(seed).integers(0, 99, LENGTH).tolist()
        made.load(slot, ids, 5 + seed, SamplingParams(temperature=seed / 8, top_k=seed), seed)
    made.launched(np.array([0]), np.array([7]))
    return made


def step(rows: list[tuple[int, int, int]], updates: list[tuple[int, int, int]]) -> ScheduledStep:
    slots, computed, counts = np.array(rows, np.int32).reshape(-1, 3).T
    return ScheduledStep(slots, computed, counts, counts == 1, updates)


# (slot, tokens computed, tokens to compute), ranks mixed: 2 rows of 9 tokens in the first, 3 of 8 in the second.
ROWS = [(5, 20, 1), (0, 7, 1), (3, 2, 1), (1, 0, 8), (4, 4, 6)]
UPDATES = [(5, 1, 8), (1, 0, 2), (4, 0, 2), (3, 0, 9)]


def test_x9_each_rank_has_the_packed_array_of_its_own_rows() -> None:
    both = RankedBatch(LAYOUT, SLOTS, RANKS)
    both.packed[:] = 77  # of an earlier step
    both.fill(step(ROWS, UPDATES), table({slot: slot for slot in range(SLOTS * RANKS)}))

    first = HostBatch(LAYOUT, SLOTS)
    first.fill(step([(0, 7, 1), (1, 0, 8)], [(1, 0, 2)]), table({0: 0, 1: 1, 2: 2}))
    np.testing.assert_array_equal(both.packed[0], first.packed)

    second = HostBatch(LAYOUT, SLOTS)
    own = table({0: 3, 1: 4, 2: 5})
    own.device_position[:] = -1
    second.fill(step([(2, 20, 1), (0, 2, 1), (1, 4, 6)], [(2, 1, 8), (1, 0, 2), (0, 0, 9)]), own)
    np.testing.assert_array_equal(both.packed[1], second.packed)
    assert first["input_ids"][0] == -1  # the token of slot 0 at position 7 is on the device
    assert second["input_ids"][0] >= 0


def test_x9_a_rank_without_rows_has_nothing_but_padding() -> None:
    both, empty = RankedBatch(LAYOUT, SLOTS, RANKS), HostBatch(LAYOUT, SLOTS)
    every = table({slot: slot for slot in range(SLOTS * RANKS)})
    both.fill(step([(3, 0, 2)], []), every)
    empty.fill(step([], []), every)
    np.testing.assert_array_equal(both.packed[0], empty.packed)


def test_x9_the_bucket_is_that_of_the_largest_rank() -> None:
    assert largest_rank(step(ROWS, []), SLOTS, RANKS) == (9, 3)  # most tokens in the one, most rows in the other
    assert largest_rank(step(ROWS, []), SLOTS * RANKS, 1) == (17, 5)
    assert largest_rank(step([], []), SLOTS, RANKS) == (0, 0)


def test_x9_tokens_come_in_the_order_of_the_step() -> None:
    slots = np.array([row[0] for row in ROWS], np.int32)
    tokens = np.array([10, 11, -1, -1, 20, 21, 22, -1], np.int32)  # 4 rows of the first rank, 4 of the second
    once, counts = np.ones(5, np.int32), np.array([1, 2, 1, 1, 1], np.int32)
    assert in_step_order(tokens, slots, once, SLOTS, RANKS).tolist() == [20, 10, 21, 11, 22]
    assert in_step_order(tokens, slots, once, SLOTS * RANKS, 1).tolist() == [10, 11, -1, -1, 20]
    assert in_step_order(tokens, slots[:0], once[:0], SLOTS, RANKS).tolist() == []
    assert in_step_order(tokens, slots, counts, SLOTS, RANKS).tolist() == [20, 10, 11, 21, -1, 22]
    two = np.stack([tokens, tokens + 100], axis=1)
    assert in_step_order(two, slots, once, SLOTS, RANKS).tolist() == [[t, t + 100] for t in (20, 10, 21, 11, 22)]
