"""The prefix cache: what is found is what was computed, whatever is evicted, forgotten or reset."""

from __future__ import annotations

import random

import pytest

from headrace.engine.pages import PagePool
from headrace.engine.prefix import CacheScope, PrefixCache, PrefixNode

PLAIN = CacheScope()


def add(cache: PrefixCache, ids: list[int], pages: list[int], scope: CacheScope = PLAIN) -> PrefixNode:
    """Registers the full pages of a sequence, as a scheduler does."""
    node, size = cache.root, 2
    for index in range(len(ids) // size):
        node = cache.add(node, scope, ids[index * size : (index + 1) * size], pages[index])
    return node


def found(cache: PrefixCache, ids: list[int], scope: CacheScope = PLAIN) -> list[int]:
    return [node.page for node in cache.match(scope, ids)]


@pytest.fixture
def pool() -> PagePool:
    return PagePool(6, 2)


@pytest.fixture
def cache(pool: PagePool) -> PrefixCache:
    return PrefixCache(pool)


def test_a_match_is_of_full_pages_and_leaves_a_token(pool: PagePool, cache: PrefixCache) -> None:
    pages = pool.allocate(2)
    add(cache, [1, 2, 3, 4], pages)
    assert found(cache, [1]) == []
    assert found(cache, [1, 2]) == []
    assert found(cache, [1, 2, 3]) == pages[:1]
    assert found(cache, [1, 2, 3, 4]) == pages[:1]
    assert found(cache, [1, 2, 3, 4, 5]) == pages
    assert found(cache, [1, 2, 9, 4, 5]) == pages[:1]
    assert found(cache, [9, 2, 3, 4, 5]) == []


def test_a_cache_that_is_off_finds_and_keeps_nothing(pool: PagePool) -> None:
    cache = PrefixCache(pool, enabled=False)
    pages = pool.allocate(2)
    add(cache, [1, 2, 3, 4], pages)
    assert found(cache, [1, 2, 3, 4, 5]) == []
    pool.free(pages)
    assert pool.num_kept == 0


def test_the_least_recently_used_page_goes_first_and_takes_along_what_follows_it(
    pool: PagePool, cache: PrefixCache
) -> None:
    old, new = pool.allocate(3), pool.allocate(2)
    add(cache, [1, 2, 3, 4, 5, 6], old)
    add(cache, [7, 8, 9, 9], new)
    pool.free(reversed(old))
    pool.free(reversed(new))
    assert (pool.num_available, pool.num_kept) == (6, 5)
    pool.allocate(2)  # the free one, and the last of the older prompt
    assert found(cache, [1, 2, 3, 4, 5, 6, 0]) == old[:2]
    pool.reference(old[:2])
    pool.free(old[:2])  # the wrong way round: now its first page is the next to go after the other prompt's
    pool.allocate(3)
    assert found(cache, [7, 8, 9, 9, 0]) == []
    assert found(cache, [1, 2, 3, 4, 0]) == []
    assert pool.num_available == pool.num_kept + 1 == 1, "the second page is free, since nothing leads to it"
    cache.check()


def test_equal_pages_are_known_once_and_the_copy_is_free_after_use(pool: PagePool, cache: PrefixCache) -> None:
    first, second = pool.allocate(2), pool.allocate(3)
    add(cache, [1, 2, 3, 4], first)
    add(cache, [1, 2, 3, 4, 5, 6], second)
    assert found(cache, [1, 2, 3, 4, 5, 6, 0]) == [*first, second[2]]
    pool.free(second)
    assert pool.num_kept == 1
    # The page after the copies is found through the other's; when those go, it goes with them, in use or not.
    pool.reference(second[2:])
    pool.free(reversed(first))
    pool.allocate(3)
    assert pool.num_available == 2 == pool.num_kept
    pool.allocate(1)
    assert found(cache, [1, 2, 3, 4, 5, 6, 0]) == first[:1]
    cache.check()
    pool.free(second[2:])
    assert pool.num_kept == 1


def test_after_a_reset_a_running_sequence_adds_nothing(pool: PagePool, cache: PrefixCache) -> None:
    pages = pool.allocate(3)
    node = add(cache, [1, 2, 3, 4], pages)
    fresh = cache.root
    cache.reset()
    assert len(cache) == 0
    assert cache.add(node, PLAIN, [5, 6], pages[2]) is node
    assert cache.add(fresh, PLAIN, [1, 2], pages[0]) is fresh
    assert found(cache, [1, 2, 3, 4, 5, 6, 7]) == []
    pool.free(pages)
    assert pool.num_kept == 0
    assert pool.num_available == 6


@pytest.mark.parametrize("seed", range(4))
def test_random_use_finds_the_longest_known_beginning_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    pool = PagePool(20, 2)
    cache = PrefixCache(pool)
    contents: dict[int, tuple[CacheScope, tuple[int, ...]]] = {}  # what was last written to each page
    running: list[tuple[list[int], CacheScope, list[int], PrefixNode, int]] = []
    scopes = [CacheScope(), CacheScope(salt="a"), CacheScope(adapter="a")]
    hits = 0
    for _ in range(4000):
        if rng.random() < 0.5:
            ids = [rng.randrange(2) for _ in range(rng.randint(1, 12))]
            scope = rng.choice(scopes)
            nodes = cache.match(scope, ids)
            shared = [node.page for node in nodes]
            hits += len(shared)
            for index, page in enumerate(shared):
                assert contents[page] == (scope, tuple(ids[: 2 * index + 2]))
            longer = tuple(ids[: 2 * len(shared) + 2])
            if len(longer) < len(ids):
                assert all(contents[page] != (scope, longer) for page in cache._nodes)
            pool.reference(shared)
            wanted = pool.pages_for(len(ids)) - len(shared)
            if wanted > pool.num_available:
                pool.free(reversed(shared))
                continue
            pages = shared + pool.allocate(wanted)
            for index in range(len(shared), len(pages)):
                contents[pages[index]] = (scope, tuple(ids[: 2 * index + 2]))
            running.append((ids, scope, pages, nodes[-1] if nodes else cache.root, len(shared)))
        elif running:
            ids, scope, pages, node, start = running.pop(rng.randrange(len(running)))
            for index in range(start, rng.randint(start, max(start, len(ids) // 2))):
                node = cache.add(node, scope, ids[2 * index : 2 * index + 2], pages[index])
            if rng.random() < 0.1:
                cache.forget(pages)
            pool.free(reversed(pages) if rng.random() < 0.8 else pages)
        if rng.random() < 0.005:
            cache.reset()
        pool.check(pages for _, _, pages, _, _ in running)
        cache.check()
    assert hits > 300
    assert pool.num_evictions > 100
