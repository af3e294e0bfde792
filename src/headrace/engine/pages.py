"""The page pool: which pages of the KV cache are free, and how many sequences use each of the others."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Hands out page numbers 0 … num_pages − 1 and counts references to them.

    A page is either free or has at least one reference; `free` drops one and the page returns to the pool with the
    last. Pages come back in last-in first-out order, so that a busy pool keeps touching the same memory.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody uses."""
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` free pages, each with one reference; ValueError, and nothing is taken, if there are fewer."""
        if count > len(self._free):
            raise ValueError(f"{count} pages asked for, {len(self._free)} are free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._references[page] = 1
        return pages

    def reference(self, pages: Iterable[int]) -> None:
        """Adds a reference to pages that are in use."""
        for page in pages:
            if self._references[page] == 0:
                raise ValueError(f"page {page} is free, it cannot be shared")
            self._references[page] += 1

    def free(self, pages: Iterable[int]) -> None:
        """Drops a reference of each page."""
        for page in pages:
            if self._references[page] == 0:
                raise ValueError(f"page {page} is free already")
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def check(self, held: Iterable[Iterable[int]]) -> None:
        """AssertionError unless the counts are exactly those of the page lists `held` by sequences. For tests."""
        counts = [0] * self.num_pages
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert counts == self._references, "reference counts differ from the sequences' pages"
        free = set(self._free)
        assert len(free) == len(self._free), "a page is in the free list twice"
        assert free == {page for page, count in enumerate(counts) if count == 0}, "a page is lost, or free and in use"
