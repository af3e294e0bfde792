"""The page pool: which pages of the KV cache are free, and how many sequences use each of the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class PagePool:
    """Hands out page numbers 0 … num_pages − 1 and counts references to them.

    A page is in use while it has a reference. With its last one it is free again, or, if what it holds is worth
    keeping, it is kept: still there to be referenced, and taken, least recently used first, when no page is free.
    Free pages come back in last-in first-out order, so that a busy pool keeps touching the same memory.

    Attributes:
        on_evict: called with a kept page that is about to be handed out for something else.
        num_evictions: how many there were.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.on_evict: Callable[[int], None] = lambda page: None
        self.num_evictions = 0
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages
        self._worth_keeping: set[int] = set()
        self._kept: OrderedDict[int, None] = OrderedDict()  # without a reference, least recently used first

    @property
    def num_available(self) -> int:
        """Pages that no sequence uses: free ones, and those that are kept."""
        return len(self._free) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Pages that no sequence uses but that hold something worth keeping."""
        return len(self._kept)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages that no sequence uses, each with one reference: free ones, then kept ones.

        ValueError, and nothing is taken, if there are fewer.
        """
        if count > self.num_available:
            raise ValueError(f"{count} pages asked for, {self.num_available} are available")
        while len(self._free) < count:
            self._evict()
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def _evict(self) -> None:
        page = next(iter(self._kept))
        self.num_evictions += 1
        self.on_evict(page)
        self.discard(page)

    def reference(self, pages: Iterable[int]) -> None:
        """Adds a reference to pages that are in use or kept."""
        for page in pages:
            if self._references[page] == 0 and page not in self._kept:
                raise ValueError(f"page {page} is free, it cannot be shared")
            self._kept.pop(page, None)
            self._references[page] += 1

    def free(self, pages: Iterable[int]) -> None:
        """Drops a reference of each page."""
        for page in pages:
            if self._references[page] == 0:
                raise ValueError(f"page {page} is free already")
            self._references[page] -= 1
            if self._references[page] == 0:
                if page in self._worth_keeping:
                    self._kept[page] = None
                else:
                    self._free.append(page)

    def keep(self, page: int) -> None:
        """Marks a page in use as worth keeping when nobody uses it any more."""
        if self._references[page] == 0:
            raise ValueError(f"page {page} is not in use")
        self._worth_keeping.add(page)

    def discard(self, page: int) -> None:
        """Takes back `keep`: the page is free once nobody uses it."""
        self._worth_keeping.discard(page)
        if page in self._kept:
            del self._kept[page]
            self._free.append(page)

    def check(self, held: Iterable[Iterable[int]]) -> None:
        """AssertionError unless the counts are exactly those of the page lists `held` by sequences. For tests."""
        counts = [0] * self.num_pages
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert counts == self._references, "reference counts differ from the sequences' pages"
        unused = {page for page, count in enumerate(counts) if count == 0}
        free = set(self._free)
        assert len(free) == len(self._free), "a page is in the free list twice"
        assert free == unused - self._worth_keeping, "a page is lost, or free and in use"
        assert set(self._kept) == unused & self._worth_keeping, "a page is kept and in use, or lost"
