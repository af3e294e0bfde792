"""The page pool: counts under random operations, and every misuse refused."""

from __future__ import annotations

import random

import pytest

from headrace.engine.pages import PagePool


def test_pages_for_rounds_up_at_every_boundary() -> None:
    pool = PagePool(4, 16)
    assert [pool.pages_for(n) for n in (0, 1, 15, 16, 17, 32, 33)] == [0, 1, 1, 1, 2, 2, 3]


def test_random_operations_keep_the_counts() -> None:
    rng = random.Random(7)
    pool = PagePool(40, 16)
    held: list[list[int]] = []
    for _ in range(3000):
        choice = rng.random()
        if choice < 0.4 and pool.num_available:
            held.append(pool.allocate(rng.randint(0, pool.num_available)))
        elif choice < 0.55 and held:
            shared = list(rng.choice(held))
            pool.reference(shared)
            held.append(shared)
        elif held:
            pool.free(held.pop(rng.randrange(len(held))))
        pool.check(held)
        assert pool.num_available == 40 - len({page for pages in held for page in pages})
    for pages in held:
        pool.free(pages)
    assert pool.num_available == 40


def test_a_page_is_never_handed_out_twice() -> None:
    pool = PagePool(8, 16)
    assert sorted(pool.allocate(3) + pool.allocate(5)) == list(range(8))


def test_misuse_is_refused_and_changes_nothing() -> None:
    pool = PagePool(3, 16)
    pages = pool.allocate(2)
    with pytest.raises(ValueError, match="2 pages asked for, 1 are available"):
        pool.allocate(2)
    pool.free(pages)
    with pytest.raises(ValueError, match="is free already"):
        pool.free(pages)
    with pytest.raises(ValueError, match="is free, it cannot be shared"):
        pool.reference(pages)
    pool.check([])
