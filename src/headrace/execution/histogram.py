"""Counts of values by size, cheap enough for each step and each token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many values lay in each of some ranges. One thread observes; any thread may read.

    Attributes:
        bounds: ascending upper ends of the ranges, each within its range; the last range has no end.
        counts: values in each range, one more than `bounds`.
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """The same counts, on their own from now on."""
        other = Histogram(self.bounds)
        other.counts, other.total = self.counts.copy(), self.total
        return other
