"""Drafts by prompt lookup, against a search through all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.lookup import MAX_INDEXED, PromptLookup


def searched(ids: Sequence[int], max_ngram: int, min_ngram: int, most: int, last: int) -> list[int]:
    """Longest suffix first, then the latest end up to `last`; a draft goes on with its own tokens."""
    for size in range(max_ngram, min_ngram - 1, -1):
        for end in range(min(len(ids) - 1, last), size - 1, -1):
            if ids[end - size : end] == ids[len(ids) - size :]:
                known = list(ids)
                for i in range(most):
                    known.append(known[end + i])
                return known[len(ids) :]
    return []


@given(
    ids=st.lists(st.integers(0, 2), max_size=40),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    jumps=st.lists(st.integers(1, 9), max_size=8),
    most=st.integers(0, 6),
    per_call=st.sampled_from([1, 2, 5, MAX_INDEXED]),
)
def test_drafts_are_those_of_a_search(
    ids: list[int], sizes: tuple[int, int], jumps: list[int], most: int, per_call: int
) -> None:
    """Whether the sequence grows token by token or by several at once, and however far the index has come."""
    low, high = sorted(sizes)
    lookup, length, last = PromptLookup(max_ngram=high, min_ngram=low), 0, 0
    with patch("headrace.engine.lookup.MAX_INDEXED", per_call):
        for jump in [*jumps, len(ids), *[0] * 40]:
            length = min(length + jump, len(ids))
            last = min(last + per_call, max(length - 1, 0))
            assert lookup.draft(ids[:length], most) == searched(ids[:length], high, low, most, last)
    assert last == max(len(ids) - 1, 0)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], []),
        ([7], []),
        ([7, 8], []),
        ([7, 7], [7, 7, 7]),
        ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([1, 2, 8, 1, 2, 9, 1, 2], [9, 1, 2]),  # the latest
        ([5, 1, 2, 8, 1, 2, 9, 5, 1, 2], [8, 1, 2]),  # the longest
        ([1, 2, 3, 4, 2], [3, 4, 2]),  # shorter than the longest that is looked for
    ],
)
def test_drafts_of_short_sequences(ids: list[int], expected: list[int]) -> None:
    assert PromptLookup(max_ngram=3, min_ngram=1).draft(ids, 3) == expected


def test_a_suffix_below_the_shortest_gives_nothing() -> None:
    ids = [1, 2, 3, 4, 2]
    assert PromptLookup(max_ngram=3, min_ngram=2).draft(ids, 3) == []
    assert PromptLookup(max_ngram=3, min_ngram=2).draft([*ids, 3], 3) == [4, 2, 3]


class Watched(list[int]):
    """Counts the items that are read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
        return super().__getitem__(key)


def test_a_long_context_costs_no_more_per_token() -> None:
    lookup, ids = PromptLookup(max_ngram=4, min_ngram=2), Watched(i * i % 1009 for i in range(20_000))
    for _ in range(-(-len(ids) // MAX_INDEXED)):
        before = ids.reads
        lookup.draft(ids, 8)
        assert 0 < ids.reads - before <= (MAX_INDEXED + 1) * (4 + 3 + 2) + 8
    for _ in range(3):
        before = ids.reads
        ids.append(-len(ids))
        lookup.draft(ids, 1)
        assert ids.reads - before <= 2 * (4 + 3 + 2)  # n-grams for the index, and those to look for
